"""The state of one workgroup under interpretation, and the walk over its operations.

At lane level every scalar is an array with one element for each invocation, (lanes,), and a vector
is (lanes, count). At tile level there is one invocation: scalars have shape (), tiles their own.
Inside a ``map`` body elements have their tile's shape. Element operations therefore see arrays that
broadcast, whatever the level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from poot_core import PootError
from poot_kernel.interpreter._memory import Memory
from poot_kernel.interpreter._races import Accessors
from poot_kernel.interpreter.errors import KernelFault
from poot_kernel.ir import OPCODES, KernelFunction, Op, Region, Size, Value

__all__ = ["Array", "Machine", "Rule", "Workgroup"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workgroup:
    """Where a workgroup stands.

    Attributes:
        ids: Coordinates along x, y, z.
        grid: Workgroups along x, y, z.
        number: Flat number.
        num_lanes: Invocations; None at tile level.
        subgroup_size: Invocations of a subgroup.
        order: Order in which invocations' writes land.
    """

    ids: tuple[int, int, int]
    grid: tuple[int, int, int]
    number: int
    num_lanes: int | None
    subgroup_size: int
    order: Array


class Machine:
    """Runs one workgroup.

    Attributes:
        kernel: The kernel.
        workgroup: Its place.
        scalars: Values of the integer parameters, for sizes.
        mask: Which invocations are active: (lanes,), or () at tile level.
        check: Whether accesses and races are checked.
    """

    def __init__(
        self,
        kernel: KernelFunction,
        rules: Mapping[str, Rule],
        workgroup: Workgroup,
        scalars: Mapping[str, int],
        *,
        check: bool,
    ) -> None:
        self.kernel = kernel
        self.workgroup = workgroup
        self.scalars = scalars
        self.check = check
        shape = () if workgroup.num_lanes is None else (workgroup.num_lanes,)
        self.mask: Array = np.ones(shape, np.bool_)
        lanes = np.arange(workgroup.num_lanes or 1).reshape(shape)
        self.lane = lanes
        self.subgroup = lanes // workgroup.subgroup_size
        self.memories: list[Memory] = []
        self._rules = rules
        self._values: dict[Value, Any] = {}

    # ---- values

    def set(self, value: Value, item: Any) -> None:
        """Record what a value is."""
        self._values[value] = item

    def get(self, value: Value) -> Any:
        """Return what a value is."""
        return self._values[value]

    def array(self, value: Value) -> Array:
        """Return a value that is an array of elements."""
        return cast("Array", self._values[value])

    def memory(self, value: Value) -> Memory:
        """Return a value that is a memory."""
        return cast("Memory", self._values[value])

    def size(self, size: Size) -> int:
        """Return a size under the launch's scalars."""
        return size.evaluate(self.scalars)

    def accessors(self, shape: tuple[int, ...]) -> Accessors:
        """Return who stands behind an access of a shape whose first axis is the lanes'."""
        extra = (1,) * (len(shape) - self.lane.ndim)

        def spread(each: Array) -> Array:
            return np.broadcast_to(each.reshape(each.shape + extra), shape)

        number = np.broadcast_to(np.asarray(self.workgroup.number), shape)
        return Accessors(spread(self.lane), spread(self.subgroup), number)

    # ---- execution

    def run(self, region: Region, arguments: Sequence[Any] = ()) -> list[Any]:
        """Run a region and return what its terminator passes on."""
        for value, item in zip(region.arguments, arguments, strict=True):
            self._values[value] = item
        return self.run_body(region)

    def run_body(self, region: Region) -> list[Any]:
        """Run a region whose arguments are set."""
        for op in region.operations:
            if OPCODES[op.opcode].is_terminator:
                return [self._values[operand] for operand in op.operands]
            self._step(op)
        return []

    def _step(self, op: Op) -> None:
        try:
            results = self._rules[op.opcode](self, op)
        except KernelFault as fault:
            if "kernel" in fault.details:
                raise
            place = f" at {op.location}" if op.location else ""
            raise type(fault)(
                f"kernel {self.kernel.name!r}, workgroup {self.workgroup.ids}: {op.opcode!r} "
                f"{fault.message}{place}",
                kernel=self.kernel.name, opcode=op.opcode, location=op.location, **fault.details,
            ) from None  # fmt: skip
        for value, item in zip(op.results, results, strict=True):
            self._values[value] = item

    def masked(self, mask: Array) -> _Masked:
        """Run the ``with`` block with fewer invocations."""
        return _Masked(self, mask)

    def merge(self, mask: Array, new: Any, old: Any) -> Any:
        """Return new where the mask holds and old elsewhere."""
        if mask.ndim == 0:
            return new if mask else old
        if mask.all():
            return new
        extra = (1,) * (np.ndim(new) - mask.ndim)
        return np.where(mask.reshape(mask.shape + extra), new, old)

    def uniform(self, value: Value) -> int:
        """Return an integer that all active invocations agree on.

        Raises:
            PootError: If they do not.
        """
        items = np.unique(np.asarray(self._values[value])[self.mask])
        if items.size != 1:
            raise PootError(f"{value!r} differs among invocations: {items[:4]}")
        return int(items[0])

    def require_all(self) -> None:
        """Check that no invocation of the workgroup is masked off.

        Raises:
            KernelFault: If one is.
        """
        if not self.mask.all():
            raise KernelFault("stands under control flow that not all invocations reach")


class _Masked:
    def __init__(self, machine: Machine, mask: Array) -> None:
        self._machine = machine
        self._mask = mask
        self._before = machine.mask

    def __enter__(self) -> None:
        self._machine.mask = self._mask

    def __exit__(self, *_: object) -> None:
        self._machine.mask = self._before


Rule = Callable[[Machine, Op], Sequence[Any]]
