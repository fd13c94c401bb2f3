"""The state of one kernel's lowering for a GPU, and how operations find their handlers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from poot_core import DType, UnsupportedError, i32, i64, u32, u64
from poot_kernel.ir.core import KernelFunction, Op, Region, Value
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import ArrayType, ScalarType, SharedType, VectorType
from poot_kernel.targets.common.arithmetic import Arithmetic
from poot_kernel.targets.common.fragments import Fragment, log2, runs, spread
from poot_kernel.targets.common.machine import Machine, Register
from poot_kernel.targets.common.promises import Promises

if TYPE_CHECKING:
    from poot_kernel.targets.common.staging import StagedCopy
    from poot_kernel.targets.common.tiles import MemoryTile, Tile

__all__ = ["CopyStage", "Handler", "Lowering", "Products"]

Handler = Callable[["Lowering", Op], None]


class CopyStage(Protocol):
    """What copies that feed products do at present; see ``Stage``."""

    def copy(self, low: Lowering, staged: StagedCopy) -> MemoryTile:
        """Do this stage's part of a copy and return the tile in shared memory."""
        ...


class Products(ABC):
    """How a target multiplies tiles.

    Attributes:
        signatures: Combine orders that it keeps.
    """

    signatures: tuple[str, ...] = ("native", "exact", "k16")

    @abstractmethod
    def accumulator(self, low: Lowering, op: Op) -> Fragment | None:
        """Return the layout of a product's accumulator; None if it is opaque."""

    @abstractmethod
    def operand(self, low: Lowering, op: Op, index: int) -> Fragment | None:
        """Return the layout of operand 0 or 1 in registers; None if it has none."""

    @abstractmethod
    def multiply(self, low: Lowering, op: Op) -> Tile:
        """Return acc + a @ b."""

    def promoted(self, low: Lowering, runtime: object) -> object | None:
        """Return an accumulator in the form that loops carry; None leaves it to the layouts."""
        return None

    def pipeline(self, low: Lowering, op: Op) -> bool:
        """Lower a pipeline by a schedule of the target's own; False leaves it to the shared ones."""
        return False

    def run(self, low: Lowering) -> None:
        """Lower the whole kernel, whose parameters are set."""
        kernel = low.kernel
        low.region(kernel.body, arguments=[low.get(v) for v in kernel.parameters])


class Lowering:
    """Lowers one kernel through a machine.

    Attributes:
        threads: Invocations of a workgroup.
        layouts: Solved layout of tile values, see ``solve_layouts``.
        shared_bytes: Shared memory allocated so far.
        stage: What copies that feed products do now: see ``Stage``.
        is_whole: Whether the tiles that are stored now are known to lie inside of their arrays.
        late: Collects stores that may wait for the loads of neighbouring turns, or None.
        place: Coordinates of the workgroup where a schedule loops over them.
    """

    def __init__(
        self,
        kernel: KernelFunction,
        machine: Machine,
        products: Products,
        handlers: Mapping[str, Handler],
        *,
        threads: int,
        multiples: Mapping[str, int],
    ) -> None:
        self.kernel, self.machine = kernel, machine
        self.products, self.handlers = products, handlers
        self.threads = threads
        self.promises = Promises(kernel, multiples)
        self.arithmetic = Arithmetic(machine)
        self.index_dtype = i32 if kernel.index_bits == 32 else i64
        self.layouts: dict[Value, Fragment] = {}
        self.shared_bytes = 0
        self.stage: CopyStage | None = None
        self.is_whole = False
        self.late: list[Callable[[], None]] | None = None
        self.sizes: dict[str, Register] = {}
        self.place: tuple[Register, ...] | None = None
        self._values: dict[Value, object] = {}
        self._memo: dict[object, Register] = {}
        self._blocks: dict[object, int] = {}

    @property
    def num_subgroups(self) -> int:
        """Subgroups of a workgroup."""
        return self.threads // self.machine.subgroup_size

    # ---- values

    def set(self, value: Value, runtime: object) -> None:
        """Record what a value is."""
        self._values[value] = runtime

    def get(self, value: Value) -> object:
        """Return what a value is."""
        return self._values[value]

    def scalar(self, value: Value) -> Register:
        """Return a scalar."""
        found = self._values[value]
        assert isinstance(found, Register), f"{value!r} is no scalar"
        return found

    def index(self, value: Value) -> Register:
        """Return a scalar as an index."""
        return self.arithmetic.convert(self.scalar(value), self.index_dtype)

    def dtype(self, value: Value) -> DType:
        """Return the dtype that a scalar has in generated code."""
        assert isinstance(value.type, ScalarType | VectorType)
        return self.index_dtype if value.type.dtype is i64 else value.type.dtype

    # ---- regions

    def region(self, region: Region, arguments: Sequence[object]) -> list[object]:
        """Lower a region and return what it yields."""
        for value, runtime in zip(region.arguments, arguments, strict=True):
            self.set(value, runtime)
        for op in region.operations:
            if op.opcode in ("yield", "condition"):
                return [self.get(value) for value in op.operands]
            self.operation(op)
        return []

    def operation(self, op: Op) -> None:
        """Lower one operation.

        Raises:
            UnsupportedError: If no GPU target lowers it yet.
        """
        handler = self.handlers.get(op.opcode, Lowering.element)
        handler(self, op)

    def element(self, op: Op) -> None:
        """Lower an element opcode on scalars, or on vectors element by element."""
        if len(op.results) == 1 and isinstance(op.result.type, VectorType) and not op.regions:
            self._vector(op, op.result.type.count)
            return
        if len(op.results) == 1 and isinstance(op.result.type, ScalarType):
            operands = [self.scalar(value) for value in op.operands]
            self.set(op.result, self.arithmetic.element(op, operands, self.dtype(op.result)))
            return
        where = f" at {op.location}" if op.location else ""
        raise UnsupportedError(
            f"{op.opcode!r}{where} has no lowering for GPUs yet; lowered are "
            f"{sorted(self.handlers)} and element opcodes on scalars"
        )

    def _vector(self, op: Op, count: int) -> None:
        ops, dtype = self.arithmetic, self.dtype(op.result)
        columns = [cast("Register | list[Register]", self.get(v)) for v in op.operands]
        first = columns[0]
        if op.opcode == "bitcast" and isinstance(first, list):
            found = [x for word in ops.pack(first) for x in ops.unpack(word, dtype)]
        else:
            rows = [[c[i] if isinstance(c, list) else c for c in columns] for i in range(count)]
            found = [ops.element(op, row, dtype) for row in rows]
        self.set(op.result, found)

    # ---- sizes

    def size(self, size: Size) -> Register:
        """Return a size's value as an index, computed once at the entry."""
        if size.kind == "constant":
            return self.machine.constant(size.value, self.index_dtype)
        if size.kind == "parameter":
            return self.sizes[size.name]
        key = ("size", str(size))
        if key not in self._memo:
            with self.machine.at_entry():
                self._memo[key] = self._size(size)
        return self._memo[key]

    def _size(self, size: Size) -> Register:
        a, b = (self.size(argument) for argument in size.arguments)
        ops = self.arithmetic
        match size.kind:
            case "ceildiv":
                return self.machine.binary("div", ops.add(ops.add(a, b), -1), b)
            case "floordiv" | "mod" if isinstance(b.literal, int):
                name = "div" if size.kind == "floordiv" else "rem"
                # Sizes are not negative: as unsigned numbers they divide by shifts and masks.
                unsigned = u32 if self.index_dtype is i32 else u64
                plain = ops.integer(name, self.machine.reinterpret(a, unsigned), b.literal)
                return self.machine.reinterpret(plain, self.index_dtype)
            case "floordiv" | "mod":
                return self.machine.binary("div" if size.kind == "floordiv" else "rem", a, b)
            case _:
                return ops.integer(size.kind, a, b)

    def stride_sizes(self, memory: ArrayType | SharedType) -> list[Size]:
        """Return the strides of an array, in elements."""
        given = memory.strides if isinstance(memory, ArrayType) else None
        if given is not None:
            return list(given)
        found = Size("constant", value=1)
        sizes = [found]
        for extent in reversed(memory.shape[1:]):
            assert extent is not None
            found = extent if found.constant == 1 else found * extent
            sizes.append(found)
        return sizes[::-1]

    def strides(self, memory: ArrayType | SharedType) -> list[Register]:
        """Return the strides of an array, in elements."""
        return [self.size(size) for size in self.stride_sizes(memory)]

    # ---- invocations and shared memory

    def at_entry(self, key: object, emit: Callable[[], Register]) -> Register:
        """Return a value computed once, at the entry."""
        if key not in self._memo:
            with self.machine.at_entry():
                self._memo[key] = emit()
        return self._memo[key]

    def is_from_entry(self, register: Register | None) -> bool:
        """Whether a value is known at the entry: none, an argument or something made there."""
        known = (*self.sizes.values(), *self._memo.values())
        return register is None or register.literal is not None or register in known

    def lane(self) -> Register:
        """Return the invocation's lane."""
        size = self.machine.subgroup_size
        return self.at_entry(
            "lane", lambda: self.arithmetic.integer("and", self.thread(), size - 1)
        )

    def subgroup(self) -> Register:
        """Return the invocation's subgroup."""
        if self.num_subgroups == 1:
            return self.arithmetic.word(0)
        shift = log2(self.machine.subgroup_size)
        return self.at_entry("group", lambda: self.arithmetic.integer("shr", self.thread(), shift))

    def thread(self) -> Register:
        """Return the invocation's number."""
        return self.at_entry("thread", self.machine.thread)

    def coordinate(self, layout: Fragment, axis: int) -> Register:
        """Return where an invocation's first element lies along an axis (u32)."""

        def emit() -> Register:
            total = self.arithmetic.word(0)
            for source, slots in ((self.lane, layout.lanes), (self.subgroup, layout.subgroups)):
                for start, count, first in runs(slots):
                    if first.axis == axis:
                        ops = self.arithmetic
                        part = ops.field(source(), start, count, len(slots), first.step)
                        total = ops.add(total, part)
            return total

        return self.at_entry(("coordinate", layout.lanes, layout.subgroups, axis), emit)

    def allocate(self, key: object, num_bytes: int) -> Register:
        """Return the address of a block of shared memory; equal keys share one."""
        if key not in self._blocks:
            self._blocks[key] = self.shared_bytes
            self.shared_bytes += -(-num_bytes // 128) * 128
        base = self.at_entry("shared", self.machine.shared_base)
        start = self._blocks[key]
        return self.at_entry(("block", start), lambda: self.arithmetic.add(base, start))

    def barrier(self) -> None:
        """Order shared memory among the workgroup."""
        if self.threads > 1:
            self.machine.barrier()

    def default_layout(self, shape: tuple[int, ...]) -> Fragment:
        """Return the layout of tiles that no product shapes."""
        return spread(shape, self.machine.subgroup_size, self.num_subgroups)

    def layout_of(self, value: Value, shape: tuple[int, ...]) -> Fragment:
        """Return the solved layout of a value."""
        found = self.layouts.get(value)
        return found if found is not None else self.default_layout(shape)

    def column(self, value: Register) -> Register:
        """Return a u32 as an index."""
        return self.arithmetic.convert(value, self.index_dtype)
