"""The schedule for few rows: each warp multiplies chunks of k of its own.

It takes kernels of one pipeline whose product is a ``k16_chunk1024``, or a ``k16`` of a single chain,
over at most 8 rows. A workgroup owns the kernel's tile; chunk c of 1024 k belongs to warp c mod W,
where W, the warps of the workgroup, follows from K at launch. A warp streams its chunks through a ring
of shared memory that no other warp touches, so nothing but the end waits for anybody. Sums of chunks
are added in order by the first warp, which alone runs what follows the pipeline.

The whole kernel is lowered as if a workgroup were one warp. The right operand of such a product is a
weight: no kernel of a sequence writes it, so that its first loads start while earlier kernels run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from poot_core import DType, f32
from poot_kernel.ir.core import KernelFunction, Op
from poot_kernel.ir.types import TileType
from poot_kernel.targets.common.chunks import CHUNK
from poot_kernel.targets.common.copies import product_operands
from poot_kernel.targets.common.fragments import Bit, bits_along, log2
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import Atom, AtomSide, FragmentProducts
from poot_kernel.targets.common.staging import Stage, StagedCopy
from poot_kernel.targets.common.tiles import FragmentTile, MemoryTile, UniformTile
from poot_kernel.targets.nvptx.machine import PtxMachine

__all__ = ["MAX_WARPS", "SplitProducts", "chunk_of", "depth_of", "suits_split"]

MAX_WARPS = 8
MAX_ROWS = 8
_RENAMES = ("assume_multiple", "convert")
_PROLOGUE = ("constant", "workgroup_id", "add", "sub", "mul", "min", "max", "convert", "tile_full",
             "assume_multiple")  # fmt: skip


def _exchanged(name: str) -> Atom:
    """m16n8k16 with the sides exchanged: its 16 rows are columns of the product, weights' rows."""
    pairs = bits_along(1, 2, 4)
    return Atom(
        name=f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32",
        m=8, n=16, k=16, inputs=(name, name), output="f32", is_exchanged=True,
        a=AtomSide((Bit(1, 1), Bit(1, 8)), (*pairs, *bits_along(0, 1, 8))),
        b=AtomSide((Bit(0, 1), Bit(1, 8), Bit(0, 8)), (*bits_along(0, 2, 4), *bits_along(1, 1, 8))),
        acc=AtomSide((Bit(0, 1), Bit(1, 8)), (*bits_along(0, 2, 4), *bits_along(1, 1, 8))),
    )  # fmt: skip


EXCHANGED = {name: _exchanged(name) for name in ("bf16", "f16")}


def suits_split(kernel: KernelFunction) -> bool:
    """Whether the schedule takes a kernel."""
    pipelines = [op for op in kernel.body.operations if op.opcode == "pipeline"]
    products = [op for op in kernel.body.walk() if op.opcode == "mma"]
    if len(pipelines) != 1 or len(products) != 1 or kernel.level != "tile":
        return False
    (product,) = products
    rows = cast(TileType, product.result.type).shape[0]
    before = kernel.body.operations[: kernel.body.operations.index(pipelines[0])]
    return (
        product.attributes["signature"] in ("k16_chunk1024", "k16")
        and rows == MAX_ROWS
        and len(pipelines[0].results) == 1
        and all(op.opcode in _PROLOGUE for op in before)
        and bool(depth_of(kernel))
    )


def chunk_of(kernel: KernelFunction) -> int:
    """Return the k of a chunk; a single chain is one chunk of any length."""
    (product,) = (op for op in kernel.body.walk() if op.opcode == "mma")
    return CHUNK if product.attributes["signature"] == "k16_chunk1024" else 1 << 30


def depth_of(kernel: KernelFunction) -> str:
    """Return the name of the parameter that bounds the pipeline."""
    (pipeline,) = (op for op in kernel.body.operations if op.opcode == "pipeline")
    value = pipeline.operands[1]
    while value.definition is not None and value.definition.opcode in _RENAMES:
        value = value.definition.operands[0]
    return value.name if value in kernel.parameters else ""


@dataclass(slots=True)
class _Filtered:
    """A stage that only does copies of one side of the product.

    Rows of x are read by all warps of a multiprocessor at about the same time: they stay in L1.
    """

    stage: Stage
    copies: frozenset[Op]
    weights: frozenset[Op]

    def copy(self, low: Lowering, staged: StagedCopy) -> MemoryTile:
        """Do the copy if it is one of those, and return the tile in shared memory."""
        if staged.op in self.copies:
            machine = cast(PtxMachine, low.machine)
            machine.cached = "cg" if staged.op in self.weights else "ca"
            found = self.stage.copy(low, staged)
            machine.cached = "cg"
            return found
        return Stage("use", self.stage.slot, self.stage.num_slots).copy(low, staged)


class SplitProducts(FragmentProducts):
    """Lowers a whole kernel, see the module.

    Attributes:
        partial_bytes: Shared memory of a chunk's sums.
        depth: What bounds k.
    """

    signatures = (*FragmentProducts.signatures, "k16_chunk1024")

    def __init__(self, *, overlaps: bool) -> None:
        self.overlaps = overlaps
        self.partial_bytes = 0

    def atom(self, low: Lowering, op: Op) -> Atom:
        """Return the instruction whose narrow side holds the rows."""
        found = cast(TileType, op.operands[0].type).dtype.name
        return EXCHANGED.get(found) or super().atom(low, op)

    def run(self, low: Lowering) -> None:
        """Lower the kernel: up to the pipeline in every warp, what follows in the first."""
        operations = low.kernel.body.operations
        place = next(i for i, op in enumerate(operations) if op.opcode == "pipeline")
        for op in operations[:place]:
            low.operation(op)
        _Chunks(self, low, operations[place]).emit()
        machine = cast(PtxMachine, low.machine)
        first = machine.compare("eq", machine.warp(), low.arithmetic.word(0))

        def rest() -> None:
            for op in operations[place + 1 :]:
                low.operation(op)

        machine.branch(first, rest)


class _Chunks:
    """The pipeline of one kernel."""

    def __init__(self, products: SplitProducts, low: Lowering, op: Op) -> None:
        self.products, self.low, self.op = products, low, op
        self.machine, self.ops = cast(PtxMachine, low.machine), low.arithmetic
        (self.product,) = (o for o in op.regions[1].walk() if o.opcode == "mma")
        self.layout = low.layouts[self.product.result]
        self.stages = max(2, cast(int, op.attributes["stages"]))
        self.chunk = chunk_of(low.kernel)
        lower, upper, step = (low.index(v) for v in op.operands[:3])
        self.upper, self.step = upper, step
        assert lower.literal == 0, "chunks count from k = 0"
        operands = product_operands(low.kernel.body)
        copies = [o for o in op.regions[0].operations if "copy" in o.opcode]
        sides = {o: operands[o.result][1] for o in copies}
        self.weights = frozenset(o for o in copies if sides[o] == 1)
        self.others = frozenset(o for o in copies if sides[o] == 0)
        index = low.index_dtype
        self.warp = self.ops.convert(self.machine.warp(), index)
        self.warps = self.ops.convert(self.machine.num_warps(), index)
        self.skip = self.ops.mul(self.ops.add(self.warps, -1), self.chunk)

    def emit(self) -> None:
        low, machine, ops = self.low, self.machine, self.ops
        start = ops.mul(self.warp, self.chunk)
        ahead = self._first_steps(start)
        for slot, index in enumerate(ahead):
            self._issue(index, ops.word(slot), self.weights)
        if self.products.overlaps:
            machine.line("griddepcontrol.wait")
        for slot, index in enumerate(ahead):
            self._issue(index, ops.word(slot), self.others)
            machine.async_commit()
        held = [machine.fresh(f32) for _ in self.layout.coordinates()]
        self._clear(held)
        counter = machine.variable(start)
        coming = machine.variable(self._after(ahead[-1]))
        reading = machine.variable(ops.word(0))
        writing = machine.variable(ops.word(self.stages - 1))

        def turn() -> None:
            index, free = machine.read(counter), machine.read(writing)
            machine.async_wait(self.stages - 2)
            low.barrier()
            following = machine.read(coming)
            self._issue(following, free, self.weights | self.others)
            machine.async_commit()
            machine.assign(coming, self._after(following))
            slot = machine.read(reading)
            self._multiply(index, slot, held)
            machine.assign(reading, self._turned(slot))
            machine.assign(writing, self._turned(free))
            later = self._after(index)
            ends = machine.compare("ne", ops.add(index, self.step), later)
            last = machine.compare("ge", later, self.upper)
            machine.branch(machine.binary("or", ends, last), lambda: self._deposit(index, held))
            machine.assign(counter, later)

        machine.loop(lambda: machine.compare("lt", machine.read(counter), self.upper), turn)
        machine.line("bar.sync 0")
        self._total()

    def _first_steps(self, start: Register) -> list[Register]:
        found = [start]
        for _ in range(self.stages - 2):
            found.append(self._after(found[-1]))
        return found

    def _after(self, index: Register) -> Register:
        """Return the step after one: the next in the chunk, or the first of the warp's next chunk."""
        machine, ops = self.machine, self.ops
        moved = ops.add(index, self.step)
        inside = ops.integer("and", moved, self.chunk - 1)
        ends = machine.compare("eq", inside, machine.constant(0, inside.dtype))
        return machine.select(ends, ops.add(moved, self.skip), moved)

    def _turned(self, slot: Register) -> Register:
        moved = self.ops.add(slot, 1)
        wraps = self.machine.compare("eq", moved, self.ops.word(self.stages))
        return self.machine.select(wraps, self.ops.word(0), moved)

    def _issue(self, index: Register, slot: Register, copies: frozenset[Op]) -> None:
        low, machine = self.low, self.machine

        def body() -> None:
            low.stage = _Filtered(Stage("issue", slot, self.stages), copies, self.weights)
            low.region(self.op.regions[0], [index])
            low.stage = None

        machine.branch(machine.compare("lt", index, self.upper), body)

    def _multiply(self, index: Register, slot: Register, held: list[Register]) -> None:
        low = self.low
        low.stage = Stage("use", slot, self.stages)
        tiles = low.region(self.op.regions[0], [index])
        low.stage = None
        present = FragmentTile(self.layout, f32, list(held))
        (found,) = low.region(self.op.regions[1], [index, present, *tiles])
        values = cast(FragmentTile, found).fragment(low, self.layout).elements(low)
        for register, value in zip(held, values, strict=True):
            self.machine.line(f"mov.f32 {register.code}, {value.code}")

    def _clear(self, held: list[Register]) -> None:
        for register in held:
            self.machine.line(f"mov.f32 {register.code}, 0f00000000")

    # ---- sums of chunks: one plane of shared memory for each

    def _plane(self, chunk: Register, dtype: DType) -> Register:
        """Return where a lane's sums of a chunk lie."""
        ops, count = self.ops, len(self.layout.coordinates())
        self.products.partial_bytes = 32 * 4 * count
        base = self.machine.partials()
        lane = ops.mul(self.low.lane(), 16)
        number = ops.mul(ops.convert(chunk, dtype), self.products.partial_bytes)
        return ops.add(ops.add(base, number), lane)

    def _deposit(self, index: Register, held: list[Register]) -> None:
        chunk = self.ops.integer("shr", index, log2(self.chunk))
        at = self._plane(chunk, self.ops.word(0).dtype)
        for first in range(0, len(held), 4):
            self.machine.store("shared", at, 32 * 4 * first, held[first : first + 4])
        self._clear(held)

    def _total(self) -> None:
        """Add the chunks in order; every warp does, the first alone goes on."""
        low, machine, ops = self.low, self.machine, self.ops
        zero = ops.word(0)
        ends = ops.add(ops.convert(self.upper, zero.dtype), self.chunk - 1)
        chunks = ops.integer("shr", ends, log2(self.chunk))
        totals = [machine.fresh(f32) for _ in self.layout.coordinates()]
        self._clear(totals)
        counter = machine.variable(zero)

        def turn() -> None:
            at = self._plane(machine.read(counter), zero.dtype)
            for first in range(0, len(totals), 4):
                found = machine.load("shared", at, 32 * 4 * first, f32, 4)
                for total, part in zip(totals[first : first + 4], found, strict=True):
                    machine.line(f"add.rn.f32 {total.code}, {total.code}, {part.code}")
            machine.assign(counter, ops.add(machine.read(counter), 1))

        machine.loop(lambda: machine.compare("lt", machine.read(counter), chunks), turn)
        low.set(self.op.results[0], FragmentTile(self.layout, f32, totals))
        assert isinstance(low.get(self.op.operands[3]), UniformTile), "chunks start from zeros"
