"""The state of one kernel's lowering, and how an operation finds its lowering.

Values of the kernel map to runtime objects: ``Val`` (a scalar or a vector), ``Memory`` (arrays and
workgroup memory) and ``Tile``. A handler takes an operation and records its results. Tables of
handlers by opcode stand beside their code. SPMD kernels are lowered by ``lane_lower`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Protocol, cast

from poot_core import UnsupportedError
from poot_kernel.ir.core import KernelFunction, Op, Region, Value
from poot_kernel.ir.opcodes import OPCODES
from poot_kernel.ir.sizes import Size
from poot_kernel.targets.host.elements import lower_element
from poot_kernel.targets.host.emitter import Emitter, Val
from poot_kernel.targets.host.machine import HostMachine

__all__ = ["Bundle", "Handler", "Lowering"]


class Bundle(Protocol):
    """A runtime value made of several LLVM values, such as a tile; its type decides their form."""

    def count(self, lowering: Lowering) -> int:
        """Return the number of LLVM values."""
        ...

    def parts(self, lowering: Lowering) -> list[Val]:
        """Return the LLVM values, emitting what is missing."""
        ...

    def rebuilt(self, lowering: Lowering, parts: list[Val]) -> Bundle:
        """Return a bundle of the same form made of other values."""
        ...


Handler = Callable[["Lowering", Op], None]


class Lowering:
    """Lowers one kernel.

    Attributes:
        kernel: The kernel.
        machine: The target's facts.
        emitter: Where instructions go.
        handlers: Lowering by opcode.
    """

    def __init__(
        self, kernel: KernelFunction, machine: HostMachine, handlers: Mapping[str, Handler]
    ) -> None:
        self.kernel = kernel
        self.machine = machine
        self.emitter = Emitter()
        self.handlers = handlers
        self.sizes: dict[str, Val] = {}
        self.coordinates: tuple[list[Val], list[Val]] = ([], [])
        self.scratch: tuple[str, Val] = ("", self.emitter.index(0))
        # Called before memory is written (with it) or a loop that writes to it begins.
        self.before_write: list[Callable[[object], None]] = []
        self._values: dict[Value, object] = {}
        self._scopes = [0]
        self._num_scopes = 1

    # ---- values

    def set(self, value: Value, runtime: object) -> None:
        """Record what a value is."""
        self._values[value] = runtime

    def get(self, value: Value) -> object:
        """Return what a value is."""
        return self._values[value]

    def val(self, value: Value) -> Val:
        """Return a scalar, vector or varying value."""
        found = self._values[value]
        assert isinstance(found, Val), f"{value!r} is no element value"
        return found

    def size(self, size: Size) -> Val:
        """Return a size's value; parameters were read at entry."""
        e = self.emitter
        if size.kind == "constant":
            return e.index(size.value)
        if size.kind == "parameter":
            return self.sizes[size.name]
        a, b = (self.size(argument) for argument in size.arguments)
        if isinstance(a.constant, int) and isinstance(b.constant, int):
            return e.index(size.evaluate({}))
        match size.kind:
            case "add":
                return e.add(a, b)
            case "mul":
                return e.mul(a, b)
            case "sub":
                return e.binary("sub nsw", a, b)
            case "min" | "max":
                return e.overloaded("smin" if size.kind == "min" else "smax", a, b)
            case "ceildiv":
                minus = e.add(b, e.index(-1))
                # Sizes are not negative.
                return self._divide(e.add(a, minus), b)
            case "floordiv":
                return self._divide(a, b)
            case _:
                return e.binary("urem", a, b)

    def _divide(self, a: Val, b: Val) -> Val:
        return a if b.constant == 1 else self.emitter.binary("udiv", a, b)

    # ---- scopes: a value emitted in a scope may be used there and in scopes inside of it

    @property
    def scope(self) -> int:
        """The current scope."""
        return self._scopes[-1]

    def is_open(self, scope: int) -> bool:
        """Whether values of a scope may be used here."""
        return scope in self._scopes

    @contextmanager
    def entered(self) -> Generator[None]:
        """A nested scope, such as a loop's body."""
        self._scopes.append(self._num_scopes)
        self._num_scopes += 1
        try:
            yield
        finally:
            self._scopes.pop()

    # ---- operations

    def lower_region(self, region: Region) -> list[Value]:
        """Lower a region's operations; return the values that its terminator hands on."""
        for op in region.operations:
            if OPCODES[op.opcode].is_terminator:
                return op.operands
            self.lower(op)
        return []

    def lower(self, op: Op) -> None:
        """Lower one operation.

        Raises:
            UnsupportedError: If the host has no lowering of it.
        """
        handler = self.handlers.get(op.opcode)
        if handler is not None:
            handler(self, op)
        elif OPCODES[op.opcode].is_elementwise:
            operands = [self.val(v) for v in op.operands]
            self.set(op.result, self.element(op, operands))
        else:
            raise UnsupportedError(
                f"the host has no lowering of {op.opcode!r} in a {self.kernel.level} kernel",
                op=op.opcode,
            )

    def element(self, op: Op, operands: list[Val]) -> Val:
        """Return an element operation's value over given operands."""
        return lower_element(self.emitter, self.machine, op.opcode, op.attributes, operands)

    def announce_write(self, memory: object) -> None:
        """Tell everyone who reads lazily that a memory is about to change."""
        for callback in self.before_write:
            callback(memory)

    def announce_loop(self, regions: list[Region]) -> None:
        """Announce all writes of a loop's regions."""
        for region in regions:
            for op in region.walk():
                if OPCODES[op.opcode].effect == "write" and op.operands[0] in self._values:
                    self.announce_write(self._values[op.operands[0]])

    # ---- values that control flow carries

    def flatten(self, value: object) -> list[Val]:
        """Return the LLVM values that a carried value is made of."""
        return [value] if isinstance(value, Val) else cast("Bundle", value).parts(self)

    def rebuild(self, form: object, parts: list[Val]) -> object:
        """Return a value of the form of ``form`` out of LLVM values, and take them off the list."""
        if isinstance(form, Val):
            return parts.pop(0)
        bundle = cast("Bundle", form)
        count = bundle.count(self)
        taken, parts[:count] = parts[:count], []
        return bundle.rebuilt(self, taken)
