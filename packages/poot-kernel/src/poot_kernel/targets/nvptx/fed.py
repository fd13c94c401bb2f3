"""The schedule of sm_90a for pipelines that do more than one product: attention over a paged pool.

One warp feeds a ring by TMA, two warpgroups do everything else: products by wgmma, whose right operand
is read from the ring, and what stands between them. A turn has two products. The left operand of the
first is the same in all turns and waits in shared memory; that of the second is made of the first's
results, in registers. Copies of several blocks that are joined (``interleave`` of whole tiles) lie side
by side in a slot, so that they are one operand. A kernel is lowered twice: for the warp that loads,
where only addresses, loops and loads count, and for the warpgroups. The place in the ring goes on from
pipeline to pipeline.

Columns of right operands are neighbours in memory: rows of 32, 64 or 128 bytes, swizzled by as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from poot_core import f32, u32, u64
from poot_kernel.ir.core import KernelFunction, Op, Region, Value
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import ArrayType, ScalarType, TileType
from poot_kernel.targets.common.control import Carried
from poot_kernel.targets.common.lower import TensorMap
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.common.tiles import FragmentTile, Tile, UniformTile
from poot_kernel.targets.nvptx.machine import PtxMachine
from poot_kernel.targets.nvptx.ring import ALIGNMENT, GROUP, Ring

__all__ = ["FedProducts", "fed_threads", "suits_fed"]

ROWS = 64  # rows of an instruction, which a warpgroup multiplies
STEP = 16  # k of an instruction
ATOM_ROWS = 8  # rows of a swizzle's pattern
BANKS = 128  # bytes
_SWIZZLES = {128: 1, 64: 2, 32: 3}  # bytes of a row, and how a descriptor says so
_ROWS_OF_K = 1 << 62 | ATOM_ROWS * BANKS >> 4 << 32 | 1 << 16  # descriptor of the left operand
_MOST_ROWS = 1 << 31  # of an array whose first extent is open
_BITS = 16


def suits_fed(kernel: KernelFunction) -> bool:
    """Whether the schedule takes a kernel."""
    pipelines = _pipelines(kernel.body)
    products = [op for op in kernel.body.walk() if op.opcode == "mma"]
    if len(products) < 2 or not pipelines or kernel.level != "tile":
        return False
    rows = {cast(TileType, op.result.type).shape[0] for op in products}
    if rows != {2 * ROWS}:
        return False
    loads = [[op for op in p.regions[0].operations if "copy" in op.opcode] for p in pipelines]
    alike = {tuple((op.operands[0], op.result.type) for op in copies) for copies in loads}
    copies = loads[0]
    joins = [op.operands[1].definition for op in products]
    return (
        len(alike) == 1
        and all(_suits(op) for op in copies)
        and _are_paired(kernel)
        and all(op is not None and op.opcode == "interleave" for op in joins)
        and all(op.attributes["signature"] == "k16" for op in products)
    )


def fed_threads() -> int:
    """Return the invocations that multiply; the warp that loads and its group come after them."""
    return 2 * GROUP


def _pipelines(region: Region) -> list[Op]:
    return [op for op in region.walk() if op.opcode == "pipeline"]


def _products(region: Region) -> list[Op]:
    return [op for op in region.operations if op.opcode == "mma"]


def _are_paired(kernel: KernelFunction) -> bool:
    """Whether each turn has two products, the first one with the same left operand in all turns."""
    found = [_products(pipeline.regions[1]) for pipeline in _pipelines(kernel.body)]
    lefts = {pair[0].operands[0] for pair in found if pair}
    if any(len(pair) != 2 for pair in found) or len(lefts) != 1:
        return False
    (left,) = lefts
    columns = cast(TileType, left.type).shape[1]
    return left.definition in kernel.body.operations and 2 * columns % BANKS == 0


def _suits(op: Op) -> bool:
    """Whether TMA takes a copy and wgmma what it brings: whole rows of an array of 16 bits."""
    memory, tile = op.operands[0].type, op.result.type
    if not isinstance(memory, ArrayType) or not isinstance(tile, TileType):
        return False
    extents = [None if size is None else size.constant for size in memory.shape]
    return (
        op.opcode == "copy"
        and memory.strides is None
        and memory.dtype.bits == _BITS
        and memory.alignment % 16 == 0
        and tuple(extents[-2:]) == tile.shape
        and None not in extents[1:]
        and tile.shape[1] in (16, 32, 64, 128)
        and tile.shape[0] % STEP == 0
        and tile.shape[0] <= 128
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A copy's place in a slot.

    Instructions read a row of all joined tiles at once. Where those rows are shorter than the banks
    are wide, each tile lies one row further from its start than the one before, so that no two rows
    of a number share banks; what is copied begins as many rows earlier.

    Attributes:
        start: Bytes from the slot's start to what is copied.
        shape: Of its tile.
        lead: Rows that are copied before the tile's own; none are behind, where the array may end.
        room: Rows that there is room for, the same for all tiles of an array.
    """

    start: int
    shape: tuple[int, int]
    lead: int
    room: int

    @property
    def rows(self) -> int:
        """Rows that are copied."""
        return self.lead + self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in shared memory; wider rows of the array are cut into columns of such."""
        return row_bytes_of(self.shape)

    @property
    def offset(self) -> int:
        """Bytes from the slot's start to the tile."""
        return self.start + self.lead * self.row_bytes

    @property
    def columns(self) -> int:
        """How many pieces a row is cut into; they lie one after the other."""
        return 2 * self.shape[1] // self.row_bytes

    @property
    def column_bytes(self) -> int:
        """Bytes from one piece of all rows to the next."""
        return self.row_bytes * self.room

    @property
    def filled_bytes(self) -> int:
        """Bytes that are copied."""
        return self.row_bytes * self.rows * self.columns

    @property
    def num_bytes(self) -> int:
        """Bytes that are set aside: a swizzle's pattern begins anew behind them."""
        pattern = ATOM_ROWS * self.row_bytes
        return -(-self.column_bytes * self.columns // pattern) * pattern


def row_bytes_of(shape: tuple[int, int]) -> int:
    """Return the bytes of a tile's row in shared memory, see ``_Part``."""
    return min(BANKS, 2 * shape[1])


@dataclass(frozen=True, slots=True)
class _Joined:
    """Tiles in the ring, one beside the other along an axis: a right operand.

    Attributes:
        base: Address of the first.
        part: What each is.
        stride: Bytes from one to the next.
        count: How many.
        axis: 0 where they are joined along k, 1 along columns.
    """

    base: Register
    part: _Part
    stride: int = 0
    count: int = 1
    axis: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Extents of k and of columns."""
        rows, columns = self.part.shape
        return (rows * self.count, columns) if self.axis == 0 else (rows, columns * self.count)

    def descriptor(self) -> int:
        """Return the fixed bits: how far pieces of columns and groups of 8 rows are apart."""
        part = self.part
        across = self.stride if part.columns == 1 else part.column_bytes
        down = ATOM_ROWS * part.row_bytes
        return _SWIZZLES[part.row_bytes] << 62 | (down >> 4) << 32 | (across >> 4) << 16

    def step(self, number: int) -> int:
        """Return the bytes from the start to a step of k."""
        row = number * STEP
        if self.axis == 1:
            return row * self.part.row_bytes
        tile, inside = divmod(row, self.part.shape[0])
        return tile * self.stride + inside * self.part.row_bytes


class _Blocks(Ring):
    """Slots that hold what one turn's copies bring, copies of an array side by side."""

    def __init__(self, low: Lowering, pipeline: Op) -> None:
        copies = copies_of(pipeline)
        found: dict[Op, _Part] = {}
        size = 0
        for array in dict.fromkeys(op.operands[0] for op in copies):
            own = [op for op in copies if op.operands[0] is array]
            shape = cast("tuple[int, int]", cast(TileType, own[0].result.type).shape)
            is_short = row_bytes_of(shape) < BANKS
            room = shape[0] + (len(own) - 1 if is_short else 0)
            size = -(-size // ALIGNMENT) * ALIGNMENT
            for number, op in enumerate(own):
                found[op] = _Part(size, shape, number if is_short else 0, room)
                size += found[op].num_bytes
        self.parts = [found[op] for op in copies]
        self.filled_bytes = sum(part.filled_bytes for part in self.parts)
        self.slot_bytes = -(-size // ALIGNMENT) * ALIGNMENT
        stages = max(2, cast(int, pipeline.attributes["stages"]))
        super().__init__(low, stages, stages * self.slot_bytes)

    def start(self, slot: Register) -> Register:
        """Return a slot's address."""
        return self.low.arithmetic.add(self.low.arithmetic.mul(slot, self.slot_bytes), self.base)


def copies_of(pipeline: Op) -> list[Op]:
    """Return a pipeline's copies in order."""
    return [op for op in pipeline.regions[0].operations if op.opcode == "copy"]


class FedProducts(FragmentProducts):
    """Lowers a whole kernel, see the module.

    Attributes:
        tensor_maps: Descriptions of the arrays that are copied.
    """

    def __init__(self) -> None:
        self.tensor_maps: list[TensorMap] = []
        self._maps: dict[tuple[Value, int], str] = {}  # by array and rows of a copy
        self._ring: _Blocks | None = None
        self._left: Value | None = None  # of every turn's first product
        self._kept: Register | None = None  # where that lies

    @property
    def ring(self) -> _Blocks:
        """The ring, from ``run`` on."""
        assert self._ring is not None
        return self._ring

    def run(self, low: Lowering) -> None:
        """Lower the kernel: roles first."""
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        first = _pipelines(low.kernel.body)[0]
        self._ring = _Blocks(low, first)
        self._left = _products(first.regions[1])[0].operands[0]
        self._declare_maps(low, machine, copies_of(first))
        begins = machine.compare("eq", low.thread(), ops.word(0))
        machine.branch(begins, lambda: self.ring.prepare(low.threads // GROUP))
        machine.line("bar.sync 0")
        loads = machine.compare("ge", low.thread(), ops.word(low.threads))
        machine.branch(loads, lambda: self._load(low), lambda: self._multiply(low))

    def _declare_maps(self, low: Lowering, machine: PtxMachine, copies: Sequence[Op]) -> None:
        for part, op in zip(self.ring.parts, copies, strict=True):
            array = op.operands[0]
            if (array, part.rows) in self._maps:
                continue
            found = machine.result("mov.b64", u64, f"map{len(self._maps)}")
            self._maps[array, part.rows] = machine.result("cvta.param.u64", u64, found).code
            columns = part.shape[1]
            self.tensor_maps.append(
                TensorMap(
                    parameter=low.kernel.parameters.index(array),
                    shape=(Size("constant", value=_MOST_ROWS), Size("constant", value=columns)),
                    box=(part.rows, part.row_bytes // 2),
                )
            )

    # ---- the warp that loads

    def _load(self, low: Lowering) -> None:
        machine = cast(PtxMachine, low.machine)
        machine.line("setmaxnreg.dec.sync.aligned.u32 40")
        one = machine.compare("eq", low.thread(), low.arithmetic.word(low.threads))
        machine.branch(one, lambda: self._follow(low, low.kernel.body.operations))

    def _follow(self, low: Lowering, operations: Sequence[Op]) -> None:
        """Lower scalars, loops and the loads of pipelines."""
        for op in operations:
            if op.opcode == "pipeline":
                self._issue(low, op)
            elif op.opcode == "for":
                self._repeat(low, op)
            elif op.results and all(isinstance(v.type, ScalarType) for v in op.results):
                low.operation(op)

    def _repeat(self, low: Lowering, op: Op) -> None:
        """Lower a loop without what it carries, which loads do not depend on."""
        machine, (body,) = low.machine, op.regions
        lower, upper, step = (low.index(v) for v in op.operands[:3])
        counter = machine.variable(lower)

        def turn() -> None:
            index = machine.read(counter)
            low.set(body.arguments[0], index)
            self._follow(low, body.operations)
            machine.assign(counter, low.arithmetic.add(index, step))

        machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), turn)

    def _issue(self, low: Lowering, op: Op) -> None:
        machine, ring = low.machine, self.ring
        lower, upper, step = (low.index(v) for v in op.operands[:3])
        counter, copies = machine.variable(lower), copies_of(op)

        def turn() -> None:
            index, slot = machine.read(counter), machine.read(ring.slot)
            low.set(op.regions[0].arguments[0], index)
            # Block tables are read before the slot is free.
            self._follow(low, op.regions[0].operations)
            places = [self._place(low, copy) for copy in copies]
            ring.wait_empty(slot)
            ring.expect(slot, ring.filled_bytes)
            for part, copy, place in zip(ring.parts, copies, places, strict=True):
                self._copy(low, copy, part, slot, place)
            ring.advance()
            machine.assign(counter, low.arithmetic.add(index, step))

        machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), turn)

    def _place(self, low: Lowering, op: Op) -> Register:
        """Return the row at which a copy begins, of the array's rows of the last axis."""
        ops, memory = low.arithmetic, cast(ArrayType, op.operands[0].type)
        indices = [low.index(v) for v in op.operands[1 : 1 + memory.rank]]
        assert indices[-1].literal == 0, "copies are whole rows"
        row = indices[0]
        for index, size in zip(indices[1:-1], memory.shape[1:-1], strict=True):
            assert size is not None
            assert size.constant is not None
            row = ops.add(ops.mul(row, size.constant), index)
        return ops.convert(row, u32)

    def _copy(self, low: Lowering, op: Op, part: _Part, slot: Register, row: Register) -> None:
        ring, machine, ops = self.ring, low.machine, low.arithmetic
        start = ops.add(ring.start(slot), part.start)
        first = machine.binary("sub", row, ops.word(part.lead)) if part.lead else row
        full = ring.barrier_of(ring.full, slot)
        described = self._maps[op.operands[0], part.rows]
        for number in range(part.columns):
            to = ops.add(start, number * part.column_bytes)
            column = number * part.row_bytes // 2
            ring.machine.line(
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                f"[{to.code}], [{described}, {{{column}, {first.code}}}], "
                f"[{full.code}]"
            )

    # ---- the warpgroups that multiply

    def _multiply(self, low: Lowering) -> None:
        machine = cast(PtxMachine, low.machine)
        machine.line("setmaxnreg.inc.sync.aligned.u32 232")
        machine.members = low.threads
        low.handlers = {**low.handlers, "interleave": self._join}
        for op in low.kernel.body.operations:
            low.operation(op)
            if self._left in op.results:
                self._keep_left(low)

    def pipeline(self, low: Lowering, op: Op) -> bool:
        """Lower a pipeline's computing part."""
        _Turns(self, low, op).emit()
        return True

    def _join(self, low: Lowering, op: Op) -> None:
        """Join tiles that lie side by side in their slot."""
        tiles = [cast(_Joined, low.get(v)) for v in op.operands]
        first, axis = tiles[0], cast(int, op.attributes["axis"])
        offsets = [tile.part.offset - first.part.offset for tile in tiles]
        stride = offsets[1] if len(tiles) > 1 else 0
        assert offsets == [n * stride for n in range(len(tiles))], "copies are joined in order"
        assert op.attributes["block"] == first.part.shape[axis], "tiles are joined as a whole"
        low.set(op.result, _Joined(first.base, first.part, stride, len(tiles), axis))

    def start(self, low: Lowering, op: Op, held: list[Register]) -> None:
        """Start a product whose sums go to registers, from zeros."""
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        right = cast(_Joined, low.get(op.operands[1]))
        assert isinstance(low.get(op.operands[2]), UniformTile), "sums start from zeros"
        depth, columns = right.shape
        described = self._described(low, right.base, right.descriptor())
        names = ", ".join(x.code for x in held)
        kind = cast(TileType, op.operands[0].type).dtype.name
        lefts, tail = self._lefts(low, op, depth)
        machine.line("wgmma.fence.sync.aligned")
        for number, left in enumerate(lefts):
            at = ops.add(described, right.step(number) >> 4)
            machine.line(
                f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{names}}}, "
                f"{left}, {at.code}, {int(number > 0)}, 1, 1, {tail}"
            )
        machine.line("wgmma.commit_group.sync.aligned")

    def _described(self, low: Lowering, address: Register, fixed: int) -> Register:
        """Return a descriptor of what lies at an address in shared memory."""
        ops, machine = low.arithmetic, low.machine
        base = ops.integer("and", ops.integer("shr", address, 4), 0x3FFF)
        return machine.binary("or", ops.convert(base, u64), machine.constant(fixed, u64))

    def _lefts(self, low: Lowering, op: Op, depth: int) -> tuple[list[str], str]:
        """Return left operands, step by step, and what an instruction says of transposed sides."""
        if op.operands[0] is not self._left:
            atom = self.atom(low, op)
            words = [self._words(low, op, 0, k, atom).all() for k in range(0, depth, STEP)]
            return [f"{{{', '.join(x.code for x in row)}}}" for row in words], "1"
        assert self._kept is not None
        ops = low.arithmetic
        own = ops.mul(ops.integer("shr", low.thread(), GROUP.bit_length() - 1), ROWS * BANKS)
        described = self._described(low, ops.add(self._kept, own), _ROWS_OF_K)
        found: list[str] = []
        for k in range(0, depth, STEP):
            piece, inside = divmod(2 * k, BANKS)
            place = piece * 2 * ROWS * BANKS + inside
            found.append(ops.add(described, place >> 4).code)
        return found, "0, 1"

    def _keep_left(self, low: Lowering) -> None:
        """Put the left operand of all first products where instructions read it: rows of 64 k."""
        assert self._left is not None
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        layout = low.layouts[self._left]
        tile = cast(Tile, low.get(self._left)).fragment(low, layout)
        words = tile.words or ops.pack(tile.elements(low))
        rows, columns = tile.shape
        block = low.allocate("left", 2 * rows * columns + ALIGNMENT)
        self._kept = ops.integer("and", ops.add(block, ALIGNMENT - 1), -ALIGNMENT & 0xFFFFFFFF)
        row, column = low.coordinate(layout, 0), low.coordinate(layout, 1)
        start = ops.add(ops.add(self._kept, ops.mul(row, BANKS)), ops.mul(column, 2))
        turn = ops.integer("shl", ops.integer("and", row, ATOM_ROWS - 1), 4)
        for (down, across), word in zip(layout.coordinates()[::2], words, strict=True):
            piece, inside = divmod(2 * across, BANKS)
            assert down % ATOM_ROWS == 0
            assert inside % 16 == 0
            swizzled = machine.binary("xor", turn, ops.word(inside)) if inside else turn
            place = piece * rows * BANKS + down * BANKS
            machine.store("shared", ops.add(start, swizzled), place, [word])
        machine.line("fence.proxy.async.shared::cta")
        low.barrier()

    def release(self, low: Lowering, slot: Register) -> None:
        """Let a slot be filled: one arrival for each warpgroup."""
        lane = low.arithmetic.integer("and", low.thread(), GROUP - 1)
        leads = low.machine.compare("eq", lane, low.arithmetic.word(0))
        at = self.ring.barrier_of(self.ring.empty, slot)
        self.ring.machine.line(f"@{leads.code} mbarrier.arrive.shared::cta.b64 _, [{at.code}]")


class _Turns:
    """The computing part of one pipeline.

    The first product of a turn starts in the turn before, behind the second one of that: so it runs
    while the results of that turn are combined.
    """

    def __init__(self, products: FedProducts, low: Lowering, op: Op) -> None:
        self.products, self.low, self.op = products, low, op
        self.ring, self.machine = products.ring, cast(PtxMachine, low.machine)
        self.compute = op.regions[1]
        self.first, self.second = _products(self.compute)
        self.head = _before(self.compute, self.first)
        self.layout = low.layouts[self.first.result]
        self.scores = [self.machine.fresh(f32) for _ in self.layout.coordinates()]
        copies = copies_of(op)
        self.parts = dict(zip((c.result for c in copies), self.ring.parts, strict=True))
        initial = op.operands[3:]
        self.arguments = self.compute.arguments[1 : 1 + len(initial)]
        self.carried = Carried(low, self.arguments, [low.get(v) for v in initial])
        self.present = self.machine.variable(low.arithmetic.word(0))  # slot of a turn's tiles

    def emit(self) -> None:
        """Emit the loop; its last turn starts no other."""
        machine, ops = self.machine, self.low.arithmetic
        lower, upper, step = (self.low.index(v) for v in self.op.operands[:3])
        counter = machine.variable(lower)

        def following() -> Register:
            return ops.add(machine.read(counter), step)

        def turn() -> None:
            self._turn(machine.read(counter), is_last=False)
            machine.assign(counter, following())

        def turns() -> None:
            self._begin()
            machine.loop(lambda: machine.compare("lt", following(), upper), turn)
            self._turn(machine.read(counter), is_last=True)

        machine.branch(machine.compare("lt", machine.read(counter), upper), turns)
        for value, runtime in zip(self.op.results, self.carried.read(), strict=True):
            self.low.set(value, runtime)

    def _name_tiles(self, slot: Register) -> None:
        """Say where the turn's tiles lie."""
        ops, start = self.low.arithmetic, self.ring.start(slot)
        yielded = self.op.regions[0].terminator.operands
        for value, name in zip(
            yielded, self.compute.arguments[1 + len(self.arguments) :], strict=True
        ):
            part = self.parts[value]
            self.low.set(name, _Joined(ops.add(start, part.offset), part))

    def _begin(self) -> None:
        """Start the next turn's first product."""
        machine, ring = self.machine, self.ring
        slot = machine.read(ring.slot)
        ring.wait(ring.full, slot, machine.read(ring.parity))
        self._name_tiles(slot)
        for op in self.head:
            self.low.operation(op)
        self.products.start(self.low, self.first, self.scores)
        machine.assign(self.present, slot)
        ring.advance()

    def _turn(self, index: Register, *, is_last: bool) -> None:
        low, machine, products = self.low, self.machine, self.products
        slot = machine.read(self.present)
        machine.line("wgmma.wait_group.sync.aligned 0")
        self._name_tiles(slot)
        low.set(self.compute.arguments[0], index)
        for value, runtime in zip(self.arguments, self.carried.read(), strict=True):
            low.set(value, runtime)
        low.set(self.first.result, FragmentTile(self.layout, f32, self.scores))
        layout = low.layouts[self.second.result]
        sums = [machine.fresh(f32) for _ in layout.coordinates()]
        is_running = False
        for op in self.compute.operations:
            if op is self.second:
                products.start(low, op, sums)
                low.set(op.result, FragmentTile(layout, f32, sums))
                if not is_last:
                    self._begin()
                is_running = True
                continue
            if op is self.first or op in self.head:
                continue
            if is_running and self.second.result in op.operands:
                machine.line(f"wgmma.wait_group.sync.aligned {int(not is_last)}")
                products.release(low, slot)
                is_running = False
            if op.opcode == "yield":
                self.carried.assign([low.get(value) for value in op.operands])
            else:
                low.operation(op)


def _before(region: Region, op: Op) -> list[Op]:
    """Return what an operation of a region needs of it, in order."""
    wanted: set[Op] = set()
    open_ = [op]
    while open_:
        for value in open_.pop().operands:
            made = value.definition
            if made is not None and made in region.operations and made not in wanted:
                wanted.add(made)
                open_.append(made)
    return [o for o in region.operations if o in wanted]
