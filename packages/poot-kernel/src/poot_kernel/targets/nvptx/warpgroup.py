"""The warp-specialised schedule of sm_90a: one warp feeds a ring by TMA, warpgroups multiply by wgmma.

It takes kernels whose pipeline does one product and nothing else. Narrow tiles are multiplied several
side by side, by one instruction (``span_of``): an operand that is read from shared memory for more
columns costs less of its bandwidth, which else is the limit. The grid becomes a loop over
tiles inside of every workgroup, so that the next tile's loads run under this tile's stores. A
kernel is lowered twice: for the warp that loads, where only addresses and loads count, and for the
warpgroups that multiply.

Few tiles of few rows leave most multiprocessors idle. Two workgroups then share a tile (``ranks_of``):
the first adds the first half of the chunks and hands its sum over, the second keeps the sums of its own
chunks apart until then and adds them in order, so that bits do not depend on who added what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from poot_core import boolean, f32, u32, u64
from poot_kernel.ir.core import KernelFunction, Op, Value
from poot_kernel.ir.types import ArrayType, TileType
from poot_kernel.targets.common.chunks import CHUNK, is_chunked
from poot_kernel.targets.common.copies import product_operands
from poot_kernel.targets.common.fragments import Bit, Fragment, bits_along
from poot_kernel.targets.common.lower import TensorMap
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.common.promises import Promises
from poot_kernel.targets.common.staging import StagedCopy
from poot_kernel.targets.common.tiles import FragmentTile, MemoryTile, Stride, Tile
from poot_kernel.targets.nvptx.machine import PtxMachine
from poot_kernel.targets.nvptx.ring import GROUP, Ring

__all__ = ["WarpgroupProducts", "suits_warpgroups", "warpgroup_rows"]

ROWS = 64  # rows of an instruction
ROW_BYTES = 128  # of a swizzled tile: 64 elements of k
TILE_ROWS = 8  # tiles that walk down together, for L2
PAIR = 2  # workgroups that share rows of weights where tiles are large: each loads a half for both
MANY_ROWS = 8  # tiles along rows from which on a place without a partner costs little
CHUNKED_SPAN, SINGLE_SPAN = (
    3,
    4,
)  # large tiles side by side: registers hold sums of chunks beside all
NARROW_SPAN = 2  # where that takes fewer rounds of all multiprocessors
RING_BYTES = 192 << 10  # of all slots: what follows a pipeline may need memory too
CHUNKED_COLUMNS = 128  # sums of a chunk and of all chunks share the registers
FILLING = 100  # spans that keep most of a device's multiprocessors busy
SUM_BYTES = 64 * 64 * 4  # of a chunk's sums
SPAN_COLUMNS = 64  # tiles this narrow are multiplied side by side
SPLIT_CHUNKS = 16  # most chunks of a tile that two workgroups share: the second keeps half of them
_VIEWS = ("transpose", "mma", "yield")


def suits_warpgroups(kernel: KernelFunction, multiples: Mapping[str, int]) -> bool:
    """Whether the schedule takes a kernel."""
    pipelines = [op for op in kernel.body.operations if op.opcode == "pipeline"]
    products = [op for op in kernel.body.walk() if op.opcode == "mma"]
    if len(pipelines) != 1 or len(products) != 1 or len(kernel.grid) != 2:
        return False
    compute = pipelines[0].regions[1]
    if any(op.opcode not in _VIEWS for op in compute.operations) or len(pipelines[0].results) != 1:
        return False
    found = cast(TileType, products[0].result.type)
    if is_chunked(pipelines[0]) and found.shape[1] > CHUNKED_COLUMNS:
        return False
    if found.shape[0] not in (ROWS, 2 * ROWS) or found.shape[1] not in (8, 16, 32, 64, 128, 256):
        return False
    promises = Promises(kernel, multiples)
    return all(
        _suits(op, promises) for op in pipelines[0].regions[0].operations if "copy" in op.opcode
    )


def warpgroup_rows(kernel: KernelFunction) -> int:
    """Return the rows of the product's tile; each 64 take a warpgroup."""
    (product,) = (op for op in kernel.body.walk() if op.opcode == "mma")
    return cast(TileType, product.result.type).shape[0]


def span_of(kernel: KernelFunction) -> int:
    """Return how many tiles of a row are multiplied at once: as many as registers hold the sums of."""
    (pipeline,) = (op for op in kernel.body.operations if op.opcode == "pipeline")
    (product,) = (op for op in kernel.body.walk() if op.opcode == "mma")
    rows, columns = cast(TileType, product.result.type).shape
    if columns != SPAN_COLUMNS:
        return 1
    if rows == ROWS:
        return 2
    return CHUNKED_SPAN if is_chunked(pipeline) else SINGLE_SPAN


def pair_of(kernel: KernelFunction) -> int:
    """Return how many workgroups, one below the other, may share columns: a cluster along x."""
    return PAIR if warpgroup_rows(kernel) > ROWS and span_of(kernel) > 1 else 1


def ranks_of(kernel: KernelFunction) -> int:
    """Return how many workgroups may share the chunks of a tile: a cluster along x."""
    (pipeline,) = (op for op in kernel.body.operations if op.opcode == "pipeline")
    (product,) = (op for op in kernel.body.walk() if op.opcode == "mma")
    shape = cast(TileType, product.result.type).shape
    # Gated halves change hands through shared memory, which leaves too little for sums of chunks.
    is_gated = any(op.opcode == "slice" for op in kernel.body.operations)
    return 2 if is_chunked(pipeline) and shape == (ROWS, SPAN_COLUMNS) and not is_gated else 1


def _suits(op: Op, promises: Promises) -> bool:
    """Whether TMA takes a copy: two axes, rows of 64 16-bit elements, 16 bytes aligned."""
    memory = op.operands[0].type
    if not isinstance(memory, ArrayType) or memory.rank != 2 or memory.strides is not None:
        return False
    tile = op.result.type
    shape = tile.shape if isinstance(tile, TileType) else tile.tile.shape  # type: ignore[union-attr]
    size = memory.shape[1]
    wide = size is not None and promises.of_size(size) * memory.dtype.itemsize % 16 == 0
    base = promises.multiples.get(op.operands[0].name, 1) % 16 == 0
    return memory.dtype.bits == 16 and shape[1] * 2 == ROW_BYTES and wide and base


def _held(low: Lowering, x: Register) -> Register:
    """Return a literal in a register."""
    return x if x.code.startswith("%") else low.machine.read(low.machine.variable(x))


class _Ring(Ring):
    """Slots, and where in them copies lie; several tiles of a span lie side by side."""

    def __init__(self, low: Lowering, op: Op, wide: Op, span: int, ranks: int) -> None:
        self.wide, self.span, self.widest = wide, span, span
        self.is_tight = False  # slots have the size of the present span
        copies = [o for o in op.regions[0].operations if o.opcode.startswith("copy")]
        self.offsets: dict[Op, int] = {}
        self.stride = 0  # bytes of a slot of the widest span
        for copy in copies:
            self.offsets[copy] = self.stride
            self.stride += self.rows(copy) * ROW_BYTES
        self.most = max(2, cast(int, op.attributes["stages"]))
        stages = self._fitting
        size = stages * self.stride
        if span == CHUNKED_SPAN:  # the narrow span may fill more
            self.span = NARROW_SPAN
            size = max(size, self._fitting * self.slot_bytes)
            self.span = span
        sums_offset = 0
        if ranks > 1:
            # A shared tile is a single one: its slots are small, and sums of chunks follow them.
            self.span = 1
            sums_offset = stages * self.slot_bytes
            self.span = span
            size = max(size, sums_offset + SPLIT_CHUNKS // 2 * SUM_BYTES)
        super().__init__(low, self.most, size)
        self.stages = stages
        self.sums_offset = sums_offset
        self.received = low.arithmetic.add(self.base, size + 16 * self.most)
        self.sums = low.arithmetic.add(self.base, sums_offset)

    @property
    def _fitting(self) -> int:
        """Slots that there is room for at the present span."""
        return max(2, min(self.most, RING_BYTES // self.slot_bytes))

    def narrow(self, span: int) -> None:
        """Lower for a span from now on: slots lie closely, and more of them."""
        self.span, self.is_tight = span, True
        self.stages = self._fitting

    @property
    def slot_bytes(self) -> int:
        """Bytes that fill a slot at the present span."""
        return sum(self.rows(copy) * ROW_BYTES for copy in self.offsets)

    def _offset(self, copy: Op) -> int:
        """Return where a copy lies in a slot."""
        if not self.is_tight:
            return self.offsets[copy]
        before = list(self.offsets)[: list(self.offsets).index(copy)]
        return sum(self.rows(other) * ROW_BYTES for other in before)

    def rows(self, copy: Op) -> int:
        """Return how many rows of a copy a slot holds: those of all tiles of a span."""
        rows = cast(TileType, copy.result.type).shape[0]
        return rows * self.span if copy is self.wide else rows

    def piece(self, copy: Op, parts: int) -> int:
        """Return the rows that one load brings of a copy made in parts, the same at all spans."""
        return self.rows(copy) // parts if self.widest != CHUNKED_SPAN else ROWS // parts

    def prepare(self, num_consumers: int | Register) -> None:
        """Initialise the barriers.

        What a slot holds may come from both workgroups of a cluster, and both must have done with it.
        """
        if self.sums_offset:
            line = f"mbarrier.init.shared::cta.b64 [{self.received.code}+0], {GROUP}"
            self.machine.line(line)
        super().prepare(num_consumers)

    def tile(self, copy: Op, slot: Register) -> MemoryTile:
        """Return a copy's tile: rows of 128 bytes, swizzled as TMA and wgmma agree."""
        found, ops = cast(TileType, copy.result.type), self.low.arithmetic
        stride = self.slot_bytes if self.is_tight else self.stride
        base = ops.add(ops.add(ops.mul(slot, stride), self.base), self._offset(copy))
        sides = zip((ROW_BYTES, 2), found.shape, strict=True)
        strides = tuple(
            tuple(Stride(step * b.step) for b in bits_along(0, 1, e)) for step, e in sides
        )
        return MemoryTile("shared", found.dtype, found.shape, base, strides)


class _Issue:
    """What copies do in the loading warp: start TMA.

    Args:
        ring: The ring.
        slot: Where to.
        maps: Registers with the address of each array's description.
        shared: The copy that is made in as many parts as a cluster has workgroups.
        parts: How many those are.
        rank: The workgroup's number in the cluster where it loads one part, for all; else it loads
            all of them.
    """

    def __init__(
        self, ring: _Ring, slot: Register, maps: dict[Value, str], shared: Op, parts: int,
        rank: Register | None,
    ) -> None:  # fmt: skip
        self.ring, self.slot, self.maps = ring, slot, maps
        self.shared, self.parts, self.rank = shared, parts, rank

    def copy(self, low: Lowering, staged: StagedCopy) -> MemoryTile:
        """Start one copy."""
        tile, op, ops = self.ring.tile(staged.op, self.slot), staged.op, low.arithmetic
        row, column = (ops.convert(low.scalar(v), u32) for v in op.operands[1:3])
        full = self.ring.barrier_of(self.ring.full, self.slot)
        base, form, mask = tile.base, "", ""
        rows, pieces = ROWS, self.ring.span if op is self.ring.wide else 1
        if op is self.shared:
            rows = self.ring.piece(op, self.parts)
            pieces = self.ring.rows(op) // rows
            if self.rank is not None:
                pieces //= self.parts
                skipped = ops.mul(self.rank, pieces * rows)
                row = ops.add(row, skipped)
                base = ops.add(base, ops.mul(skipped, ROW_BYTES))
                form = ".multicast::cluster"
                mask = f", {self.ring.machine.half((1 << self.parts) - 1)}"
        for number in range(pieces):
            at = ops.add(base, number * rows * ROW_BYTES)
            line = ops.add(row, number * rows)
            self.ring.machine.line(
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                f"{form} [{at.code}], [{self.maps[op.operands[0]]}, {{{column.code}, {line.code}}}]"
                f", [{full.code}]{mask}"
            )
        return tile


class _Use:
    """What copies do in the multiplying warpgroups: name the tile."""

    def __init__(self, ring: _Ring, slot: Register) -> None:
        self.ring, self.slot = ring, slot

    def copy(self, low: Lowering, staged: StagedCopy) -> MemoryTile:
        """Return the tile."""
        return self.ring.tile(staged.op, self.slot)


class WarpgroupProducts(FragmentProducts):
    """Lowers a whole kernel, see the module."""

    signatures = (*FragmentProducts.signatures, "k16_chunk1024")

    def __init__(self) -> None:
        self.ring: _Ring | None = None
        self.shared: Op | None = None
        self.span = 1
        self.ranks = 1
        self.pair = 1  # workgroups of a cluster that may share columns
        self.sharing = 1  # how many do in what is lowered at present
        self._pairs: Register | None = None  # whether they do in this launch
        self.rank: Register | None = None  # in a tile that two workgroups share
        self.is_loading = False
        self.maps: dict[Value, str] = {}
        self.tensor_maps: list[TensorMap] = []

    def accumulator(self, low: Lowering, op: Op) -> Fragment:
        """Return the layout of wgmma's results: a warpgroup for each 64 rows."""
        rows, columns = cast(TileType, op.result.type).shape
        registers = (Bit(1, 1), Bit(0, 8), *bits_along(1, 8, columns // 8))
        lanes = (*bits_along(1, 2, 4), *bits_along(0, 1, 8))
        return Fragment((rows, columns), registers, lanes, bits_along(0, 16, rows // 16))

    def run(self, low: Lowering) -> None:
        """Lower the kernel: roles first, each a loop over tiles."""
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        (pipeline,) = (op for op in low.kernel.body.operations if op.opcode == "pipeline")
        operands = product_operands(low.kernel.body)
        copies = [op for op in pipeline.regions[0].operations if op.opcode.startswith("copy")]
        sides = {operands[op.result][1]: op for op in copies}
        self.span = span_of(low.kernel)
        self.ranks = ranks_of(low.kernel)
        self.pair = pair_of(low.kernel)
        self.ring = _Ring(low, pipeline, sides[1], self.span, self.ranks)
        # Large tiles of a cluster lie one below the other and share columns; small ones, rows.
        self.shared = sides[1 if self.pairs_rows(low) else 0]
        self._declare_maps(low, machine, pipeline)
        first = machine.compare("eq", low.thread(), ops.word(0))
        consumers: int | Register = low.threads // GROUP
        if self.pair > 1:
            self._pairs = self._has_pairs(low)
            both = ops.word(consumers * self.pair)
            consumers = machine.select(self._pairs, both, ops.word(consumers))
        machine.branch(first, lambda: cast(_Ring, self.ring).prepare(consumers))
        self._meet(machine)
        loads = machine.compare("ge", low.thread(), ops.word(low.threads))
        machine.branch(loads, lambda: self._load(low), lambda: self._multiply(low))
        # Nobody leaves while the other workgroup may still write to its memory.
        self._meet(machine)

    def pairs_rows(self, low: Lowering) -> bool:
        """Whether the tiles of a cluster are neighbours along rows."""
        return low.threads > GROUP

    def _meet(self, machine: PtxMachine) -> None:
        if self.pair * self.ranks == 1:
            machine.line("bar.sync 0")
            return
        machine.line("barrier.cluster.arrive.release")
        machine.line("barrier.cluster.wait.acquire")

    def _declare_maps(self, low: Lowering, machine: PtxMachine, pipeline: Op) -> None:
        copies = [
            op for op in pipeline.regions[0].operations if op in cast(_Ring, self.ring).offsets
        ]
        assert all(op.result in product_operands(low.kernel.body) for op in copies)
        for number, op in enumerate(copies):
            array = op.operands[0]
            found = machine.result("mov.b64", u64, f"map{number}")
            found = machine.result("cvta.param.u64", u64, found)
            self.maps[array] = found.code
            memory = cast(ArrayType, array.type)
            sizes = tuple(size for size in memory.shape if size is not None)
            box = cast(TileType, op.result.type).shape
            if op is self.shared:
                box = (cast(_Ring, self.ring).piece(op, self.pair), *box[1:])
            place = low.kernel.parameters.index(array)
            self.tensor_maps.append(TensorMap(parameter=place, shape=sizes, box=box))

    def _load(self, low: Lowering) -> None:
        machine = cast(PtxMachine, low.machine)
        machine.line("setmaxnreg.dec.sync.aligned.u32 40")
        one = machine.compare("eq", low.thread(), low.arithmetic.word(low.threads))
        self.is_loading = True
        machine.branch(one, lambda: self._spans(low))
        self.is_loading = False

    def _multiply(self, low: Lowering) -> None:
        cast(PtxMachine, low.machine).line("setmaxnreg.inc.sync.aligned.u32 232")
        self._spans(low)

    def _spans(self, low: Lowering) -> None:
        """Lower for the widest span, and where that would leave workgroups idle for single tiles."""
        machine, ring = low.machine, cast(_Ring, self.ring)
        if self._pairs is not None:
            self._in_pairs(low, self._pairs)
            return
        if self.span == 1 or self.pairs_rows(low):
            self._tiles(low)
            return
        widest = self.span
        columns = low.arithmetic.convert(low.size(low.kernel.grid[0]), u32)
        fills = machine.compare("ge", columns, low.arithmetic.word(FILLING * widest))

        def single() -> None:
            self.span = ring.span = 1
            self._tiles(low)
            self.span = ring.span = widest

        def few() -> None:
            if self.ranks == 1:
                single()
                return
            machine.branch(self._is_shared(low), lambda: self._together(low, single), single)

        machine.branch(fills, lambda: self._tiles(low), few)

    def _has_pairs(self, low: Lowering) -> Register:
        """Return whether the workgroups of a cluster share columns: few of them lack a partner."""
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        rows = ops.convert(low.size(low.kernel.grid[1]), u32)
        even = machine.compare("eq", ops.integer("and", rows, self.pair - 1), ops.word(0))
        return machine.binary("or", even, machine.compare("ge", rows, ops.word(MANY_ROWS)))

    def _in_pairs(self, low: Lowering, has_pairs: Register) -> None:
        """Lower for pairs, and for single workgroups; sums of chunks have two spans."""
        machine, ring = low.machine, cast(_Ring, self.ring)

        def lower(span: int, sharing: int) -> None:
            ring.narrow(span)
            self.span, self.sharing = span, sharing
            self._tiles(low)
            self.span, self.sharing = ring.widest, 1

        widest = ring.widest
        if widest != CHUNKED_SPAN:
            machine.branch(has_pairs, lambda: lower(widest, self.pair), lambda: lower(widest, 1))
            return

        def pairs() -> None:
            machine.branch(
                self._prefers_wide(low),
                lambda: lower(widest, self.pair),
                lambda: lower(NARROW_SPAN, self.pair),
            )

        machine.branch(has_pairs, pairs, lambda: lower(NARROW_SPAN, 1))

    def _prefers_wide(self, low: Lowering) -> Register:
        """Return whether the wide span takes no more time: rounds of all pairs, times its columns."""
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        columns, rows = (ops.convert(low.size(size), u32) for size in low.kernel.grid)
        down = machine.binary("div", ops.add(rows, self.pair - 1), ops.word(self.pair))
        pairs = machine.binary("div", machine.num_workgroups(0), ops.word(self.pair))

        def time(span: int) -> Register:
            across = machine.binary("div", ops.add(columns, span - 1), ops.word(span))
            waiting = machine.binary("sub", ops.add(ops.mul(across, down), pairs), ops.word(1))
            return ops.mul(machine.binary("div", waiting, pairs), span)

        return machine.compare("le", time(CHUNKED_SPAN), time(NARROW_SPAN))

    def _is_shared(self, low: Lowering) -> Register:
        """Return whether two workgroups share each tile: there is one of them for every tile."""
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        columns, rows = (ops.convert(low.size(size), u32) for size in low.kernel.grid)
        total = ops.mul(ops.mul(columns, rows), self.ranks)
        fits = machine.compare("le", total, machine.num_workgroups(0))
        (pipeline,) = (op for op in low.kernel.body.operations if op.opcode == "pipeline")
        depth = ops.convert(low.index(pipeline.operands[1]), u32)
        many = machine.compare("gt", depth, ops.word(CHUNK))
        few = machine.compare("le", depth, ops.word(SPLIT_CHUNKS * CHUNK))
        return machine.binary("and", fits, machine.binary("and", many, few))

    def _together(self, low: Lowering, lower: Callable[[], None]) -> None:
        """Lower for tiles that the cluster's workgroups share."""
        ring = cast(_Ring, self.ring)
        self.rank, ring.is_tight = cast(PtxMachine, low.machine).cluster_rank(), True
        lower()
        self.rank, ring.is_tight = None, False

    def _tiles(self, low: Lowering) -> None:
        """Loop over spans of tiles, a few rows of them at a time, and the cluster's two at once."""
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        columns, rows = (ops.convert(low.size(size), u32) for size in low.kernel.grid)
        pairs_rows = self.pairs_rows(low)
        rank = machine.cluster_rank()
        down, across = rows, columns
        if self.span > 1:
            across = machine.binary("div", ops.add(columns, self.span - 1), ops.word(self.span))
        if pairs_rows:
            down = self._shared_out(low, rows)
        else:
            across = self._shared_out(low, across)
        total = ops.mul(across, down)
        shift = (self.sharing if self.rank is None else self.ranks).bit_length() - 1
        counter = machine.variable(ops.integer("shr", machine.workgroup(0), shift))
        step = ops.integer("shr", machine.num_workgroups(0), shift)

        def paired(place: Register) -> Register:
            if self.sharing == 1:
                return place
            return ops.add(ops.mul(place, self.sharing), rank)

        def turn() -> None:
            tile = machine.read(counter)
            per = ops.mul(across, TILE_ROWS)
            group, rest = machine.binary("div", tile, per), machine.binary("rem", tile, per)
            top = ops.mul(group, TILE_ROWS)
            here = machine.binary("min", machine.binary("sub", down, top), ops.word(TILE_ROWS))
            y = ops.add(top, machine.binary("rem", rest, here))
            x = machine.binary("div", rest, here)
            x, y = (x, paired(y)) if pairs_rows else (paired(x), y)
            self._span_of_tiles(low, ops.mul(x, self.span), y, columns, rows)
            machine.assign(counter, ops.add(tile, step))

        machine.loop(lambda: machine.compare("lt", machine.read(counter), total), turn)
        low.place = None

    def _shared_out(self, low: Lowering, count: Register) -> Register:
        """Return how many places a cluster has where one workgroup has ``count``."""
        ops = low.arithmetic
        places = ops.add(count, self.sharing - 1)
        return ops.integer("shr", places, self.sharing.bit_length() - 1)

    def _span_of_tiles(
        self, low: Lowering, x: Register, y: Register, columns: Register, rows: Register
    ) -> None:
        """Lower the kernel for tiles side by side: one pipeline, then each one's results.

        Some of them may lie outside of the grid.
        """
        machine = low.machine
        operations = low.kernel.body.operations
        place = next(i for i, op in enumerate(operations) if op.opcode == "pipeline")

        def begin(column: Register) -> None:
            low.place = (column, y)
            for op in operations[:place]:
                if not self.is_loading or op.opcode != "tile_full":
                    low.operation(op)

        begin(x)
        low.operation(operations[place])
        if self.is_loading:
            return
        sums = cast(FragmentTile, low.get(operations[place].results[0]))
        layout = low.layouts[operations[place].results[0]]
        each = len(sums.values) // self.span
        for number in range(self.span):
            column = low.arithmetic.add(x, number)
            inside = machine.binary(
                "and", machine.compare("lt", y, rows), machine.compare("lt", column, columns)
            )
            if self.rank is not None:
                is_last = machine.compare("ne", self.rank, low.arithmetic.word(0))
                inside = machine.binary("and", inside, is_last)

            def rest(number: int = number, column: Register = column) -> None:
                begin(column)
                part = sums.values[number * each : (number + 1) * each]
                low.set(operations[place].results[0], FragmentTile(layout, f32, part))
                for op in operations[place + 1 :]:
                    low.operation(op)

            def either(column: Register = column, rest: Callable[[], None] = rest) -> None:
                machine.branch(
                    self._is_whole(low, column, y), lambda: self._as_whole(low, rest), rest
                )

            machine.branch(inside, either)

    def _is_whole(self, low: Lowering, x: Register, y: Register) -> Register:
        """Return whether no mask is needed: the tile ends inside, and rows are multiples of 4."""
        machine, ops = low.machine, low.arithmetic
        found: Register | None = None
        for place, size in zip((x, y), low.kernel.grid, strict=True):
            if size.kind != "ceildiv":
                continue
            extent, by = size.arguments
            end = ops.mul(ops.convert(ops.add(place, 1), low.index_dtype), low.size(by))
            inside = machine.compare("le", end, low.size(extent))
            found = inside if found is None else machine.binary("and", found, inside)
        for name in self._strides(low):
            rest = ops.integer("and", low.sizes[name], 3)
            even = machine.compare("eq", rest, machine.constant(0, rest.dtype))
            found = even if found is None else machine.binary("and", found, even)
        return found or machine.constant(1, boolean)

    def _strides(self, low: Lowering) -> list[str]:
        """Return the parameters that rows of the results and of what they are made of are apart."""
        names: dict[str, None] = {}
        for value in low.kernel.parameters:
            memory = value.type
            if isinstance(memory, ArrayType) and memory.rank == 2 and memory.dtype.bits <= 32:
                for size in low.stride_sizes(memory)[:1]:
                    if size.kind == "parameter":
                        names[size.name] = None
        return list(names)

    def _as_whole(self, low: Lowering, emit: Callable[[], None]) -> None:
        """Emit without masks."""
        before = low.promises.multiples
        known = {name: max(4, before.get(name, 1)) for name in self._strides(low)}
        low.promises.multiples = {**before, **known}
        low.is_whole = True
        emit()
        low.is_whole, low.promises.multiples = False, before

    def pipeline(self, low: Lowering, op: Op) -> bool:
        """Lower the pipeline for the present role."""
        if self.is_loading:
            self._issue(low, op)
        else:
            self._consume(low, op)
        return True

    def _steps(self, low: Lowering, op: Op) -> tuple[str, Register, Register]:
        """Return a counter at the first k, the end of k and the step; a rank's own of a shared tile."""
        machine, ops = low.machine, low.arithmetic
        lower, upper, step = (low.index(v) for v in op.operands[:3])
        if self.rank is not None:
            chunks = ops.integer("shr", ops.add(upper, CHUNK - 1), CHUNK.bit_length() - 1)
            half = ops.mul(ops.integer("shr", ops.add(chunks, 1), 1), CHUNK)
            is_first = machine.compare("eq", self.rank, ops.word(0))
            lower = machine.select(is_first, _held(low, lower), half)
            upper = machine.select(is_first, half, upper)
        return machine.variable(lower), upper, step

    def _issue(self, low: Lowering, op: Op) -> None:
        ring, machine = cast(_Ring, self.ring), cast(PtxMachine, low.machine)
        counter, upper, step = self._steps(low, op)
        rank = machine.cluster_rank()

        def turn() -> None:
            index, slot = machine.read(counter), machine.read(ring.slot)
            ring.wait_empty(slot)
            ring.expect(slot, ring.slot_bytes)
            part = rank if self.sharing > 1 else None
            low.stage = _Issue(ring, slot, self.maps, cast(Op, self.shared), self.pair, part)
            low.region(op.regions[0], [index])
            low.stage = None
            ring.advance()
            machine.assign(counter, low.arithmetic.add(index, step))

        machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), turn)

    def _consume(self, low: Lowering, op: Op) -> None:
        """Multiply slot by slot; a slot is handed back when the next one's products are on."""
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        (product,) = (o for o in op.regions[1].operations if o.opcode == "mma")
        layout = low.layouts[product.result]
        initial = cast(Tile, low.get(op.operands[3])).fragment(low, layout).elements(low)
        initial = initial * self.span
        held = [machine.fresh(f32) for _ in initial]
        counter, upper, _ = self._steps(low, op)
        if not is_chunked(op):
            self._set(machine, held, initial)
            self._turns(low, op, held, (counter, upper))
            low.set(op.results[0], FragmentTile(layout, f32, held))
            return
        totals = [machine.fresh(f32) for _ in initial]
        self._set(machine, totals, initial)
        zero = machine.constant(0, f32)
        if self.rank is not None:
            self._halves(low, op, (held, totals), (counter, upper))
            low.set(op.results[0], FragmentTile(layout, f32, totals))
            return

        def chunk() -> None:
            start = machine.read(counter)
            end = ops.integer("min", ops.add(start, CHUNK), upper)
            self._set(machine, held, [zero] * len(held))
            self._turns(low, op, held, (counter, end))
            self._add(machine, totals, held)

        machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), chunk)
        low.set(op.results[0], FragmentTile(layout, f32, totals))

    def _halves(
        self, low: Lowering, op: Op, sums: tuple[list[Register], list[Register]],
        range_: tuple[str, Register],
    ) -> None:  # fmt: skip
        """Add a rank's chunks of a shared tile; the second rank ends with all of them."""
        machine, ops, ring = cast(PtxMachine, low.machine), low.arithmetic, cast(_Ring, self.ring)
        (held, totals), (counter, upper) = sums, range_
        assert self.rank is not None
        is_first = machine.compare("eq", self.rank, ops.word(0))
        lane = ops.integer("and", low.thread(), GROUP - 1)
        # The first place is for what the first rank hands over, the others for sums of chunks.
        own = ops.add(ring.sums, ops.mul(lane, 16))
        place = machine.variable(ops.add(own, SUM_BYTES))
        zero = machine.constant(0, f32)

        def put(at: Register) -> None:
            for first in range(0, len(held), 4):
                machine.store("shared", at, GROUP * 4 * first, held[first : first + 4])
            machine.assign(place, ops.add(at, SUM_BYTES))

        def chunk() -> None:
            start = machine.read(counter)
            end = ops.integer("min", ops.add(start, CHUNK), upper)
            self._set(machine, held, [zero] * len(held))
            self._turns(low, op, held, (counter, end))
            goes_on = machine.compare("lt", end, upper)
            machine.branch(
                is_first,
                lambda: self._add(machine, totals, held),
                lambda: machine.branch(goes_on, lambda: put(machine.read(place))),
            )

        machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), chunk)

        def hand_over() -> None:
            to = machine.result("mapa.shared::cluster.u32", u32, own, 1)
            machine.is_remote = True
            for first in range(0, len(totals), 4):
                machine.store("shared", to, GROUP * 4 * first, totals[first : first + 4])
            machine.is_remote = False
            done = machine.result("mapa.shared::cluster.u32", u32, ring.received, 1)
            machine.line(f"mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{done.code}]")

        def take() -> None:
            label = machine.label()
            machine.place(label)
            done = machine.result(
                "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", boolean,
                f"[{ring.received.code}]", 0,
            )  # fmt: skip
            machine.line(f"@!{done.code} bra {label}")
            at = machine.variable(own)
            end = machine.read(place)

            def turn() -> None:
                here = machine.read(at)
                for first in range(0, len(totals), 4):
                    part = machine.load("shared", here, GROUP * 4 * first, f32, 4)
                    self._add(machine, totals[first : first + 4], part)
                machine.assign(at, ops.add(here, SUM_BYTES))

            machine.loop(lambda: machine.compare("lt", machine.read(at), end), turn)
            self._add(machine, totals, held)

        machine.branch(is_first, hand_over, take)

    def _add(self, machine: PtxMachine, totals: list[Register], parts: list[Register]) -> None:
        for total, part in zip(totals, parts, strict=True):
            machine.line(f"add.rn.f32 {total.code}, {total.code}, {part.code}")

    def _set(self, machine: PtxMachine, to: list[Register], values: list[Register]) -> None:
        for register, value in zip(to, values, strict=True):
            machine.line(f"mov.f32 {register.code}, {value.code}")

    def _turns(
        self, low: Lowering, op: Op, held: list[Register], range_: tuple[str, Register]
    ) -> None:
        """Multiply steps up to an end and wait."""
        ring, machine, ops = cast(_Ring, self.ring), cast(PtxMachine, low.machine), low.arithmetic
        (product,) = (o for o in op.regions[1].operations if o.opcode == "mma")
        columns = low.layouts[product.result].shape[1] * self.span
        counter, end = range_
        step = low.index(op.operands[2])
        before = machine.variable(ops.word(ring.stages))
        lane = ops.integer("and", low.thread(), GROUP - 1)
        leads = machine.compare("lt", lane, ops.word(self.sharing))

        def release() -> None:
            slot = machine.read(before)
            some = machine.compare("lt", slot, ops.word(ring.stages))
            at = ring.barrier_of(ring.empty, slot)
            mine = machine.binary("and", leads, some)
            if self.sharing == 1:
                machine.line(f"@{mine.code} mbarrier.arrive.shared::cta.b64 _, [{at.code}]")
                return
            to = machine.result("mapa.shared::cluster.u32", u32, at, lane)
            machine.line(f"@{mine.code} mbarrier.arrive.shared::cluster.b64 _, [{to.code}]")

        def turn() -> None:
            index, slot = machine.read(counter), machine.read(ring.slot)
            ring.wait(ring.full, slot, machine.read(ring.parity))
            low.stage = _Use(ring, slot)
            tiles = low.region(op.regions[0], [index])
            low.stage = None
            a, b = self._operands(low, op, product, tiles)
            machine.line("wgmma.fence.sync.aligned")
            self._products(low, held, a, b, columns)
            machine.line("wgmma.commit_group.sync.aligned")
            machine.line("wgmma.wait_group.sync.aligned 1")
            release()
            machine.assign(before, slot)
            ring.advance()
            machine.assign(counter, ops.add(index, step))

        machine.loop(lambda: machine.compare("lt", machine.read(counter), end), turn)
        machine.line("wgmma.wait_group.sync.aligned 0")
        release()

    def _operands(
        self, low: Lowering, op: Op, product: Op, tiles: list[object]
    ) -> tuple[MemoryTile, MemoryTile]:
        compute = op.regions[1]
        for value, tile in zip(compute.arguments[-len(tiles) :], tiles, strict=True):
            low.set(value, tile)
        for inner in compute.operations:
            if inner.opcode == "transpose":
                low.operation(inner)
        a, b = (cast(MemoryTile, low.get(v)) for v in product.operands[:2])
        return a, b

    def _products(
        self, low: Lowering, held: list[Register], a: MemoryTile, b: MemoryTile, columns: int
    ) -> None:
        machine, ops = cast(PtxMachine, low.machine), low.arithmetic
        group = ops.integer("shr", low.thread(), 7)
        left = self._descriptor(low, ops.add(a.base, ops.mul(group, ROWS * ROW_BYTES)))
        right = self._descriptor(low, b.base)
        names = ", ".join(x.code for x in held)
        kind = a.dtype.name
        for number in range(a.shape[1] // 16):
            x, y = ops.add(left, 2 * number), ops.add(right, 2 * number)
            machine.line(
                f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
                f"{{{names}}}, {x.code}, {y.code}, 1, 1, 1, 0, 0"
            )

    def _descriptor(self, low: Lowering, address: Register) -> Register:
        """Return a descriptor of rows of 128 swizzled bytes, eight rows in 1024 bytes."""
        ops, machine = low.arithmetic, cast(PtxMachine, low.machine)
        start = ops.integer("and", ops.integer("shr", address, 4), 0x3FFF)
        fixed = machine.constant(1 << 62 | 64 << 32 | 1 << 16, u64)
        return machine.binary("or", ops.convert(start, u64), fixed)
