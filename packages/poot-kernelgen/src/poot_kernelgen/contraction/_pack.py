"""Re-laying stored rows into a weight layout, 16 rows a workgroup."""

from __future__ import annotations

from poot_core import bf16, f16, f32, i64, u8
from poot_kernel import IRBuilder, KernelFunction, Layout, Value
from poot_kernelgen.contraction._codec import ROWS, STEP, Codec, codec_of, dense_bytes, is_dense
from poot_kernelgen.contraction._grids import GRIDS, grid_header, table_of
from poot_kernelgen.contraction._shapes import width_of
from poot_kernelgen.contraction._stored import StoredBlock
from poot_kernelgen.requests import PackRequest

__all__ = ["build_pack"]


def build_pack(request: PackRequest, name: str) -> KernelFunction:
    """Return the packing kernel of a layout."""
    source = request.layout.source
    if is_dense(source):
        return _build_dense(source, name)
    codec = codec_of(source)
    fmt = codec.format
    b = IRBuilder(name, level="tile", grid=["ceildiv(N, 16)"])
    row_bytes = f"K // {fmt.block_elements} * {fmt.block_bytes}"
    source_rows = b.array("source", u8, ["N", row_bytes])
    target = b.raw("target", access="w")
    n, k = b.scalar("N"), b.scalar("K")
    first, step = b.scalar("first_group"), b.scalar("group_step")
    rows = _rows(b, n)
    table = table_of(b, fmt.name) if fmt.name in GRIDS else None
    steps = fmt.block_elements // STEP
    bytes_per_block = codec.header_bytes + steps * codec.step_bytes
    blocks = b.floordiv(k, fmt.block_elements)
    group = b.add(first, b.mul(b.workgroup_id(), step))
    base = b.mul(group, b.mul(blocks, bytes_per_block))
    with b.for_(0, blocks) as loop:
        origin = b.mul(loop.index, fmt.block_bytes)
        block = StoredBlock(b, codec, source_rows, rows, origin)
        to = b.add(base, b.mul(loop.index, bytes_per_block))
        if table is None:
            _write_block(b, codec, block, target, to)
        else:
            _write_grid_block(b, codec, block, table, (target, to))
    return b.finish()


def _rows(b: IRBuilder, n: Value) -> Value:
    """Return the numbers of the workgroup's rows; those beyond N repeat the last one."""
    start, last = b.mul(b.workgroup_id(), ROWS), b.sub(n, 1)
    return b.map(lambda i: b.minimum(b.add(i, start), last), b.tile_iota((ROWS,), 0, i64))


def _write_block(b: IRBuilder, codec: Codec, block: StoredBlock, target: Value, to: Value) -> None:
    if codec.kind == "super":
        _write(b, target, block.header("scale"), to, 2)
        if codec.has_min:
            _write(b, target, block.header("min"), b.add(to, 2 * ROWS), 2)
    for step in range(codec.format.block_elements // STEP):
        at = b.add(to, codec.header_bytes + step * codec.step_bytes)
        if codec.scale_bytes:
            item = codec.scale_bytes // (ROWS * (1 if codec.kind == "e8m0" else codec.groups))
            _write(b, target, block.scales(step), at, item)
            if codec.has_min:
                _write(b, target, block.mins(step), b.add(at, codec.scale_bytes), item)
        _write_codes(b, codec, block.codes(step), target, b.add(at, codec.code_start))


def _write_grid_block(
    b: IRBuilder, codec: Codec, block: StoredBlock, table: Value, place: tuple[Value, Value]
) -> None:
    target, to = place
    grid = GRIDS[codec.format.name]
    _write(b, target, grid_header(block), to, 2)
    with b.for_(0, codec.steps) as loop:
        at = b.add(b.add(to, codec.header_bytes), b.mul(loop.index, codec.step_bytes))
        _write(b, target, grid.scales(block, loop.index), at, 1)
        codes = grid.codes(block, table, loop.index)
        _write_codes(b, codec, codes, target, b.add(at, codec.code_start))


def _write(b: IRBuilder, target: Value, values: Value, at: Value, item: int) -> None:
    """Store a (16, c) byte tile as items of ``item`` bytes: all rows of the first item, then on."""
    count = width_of(values) // item
    layout = Layout.parse(f"nk: k{item}@1 n{ROWS}@{item} k{count}@{ROWS * item}")
    b.store_tile(target, values, at, layout=layout)


def _write_codes(b: IRBuilder, codec: Codec, codes: Value, target: Value, at: Value) -> None:
    """Store (16, 32) codes as the layout has them."""

    def part(start: int, count: int) -> Value:
        return b.slice(codes, (0, start), (ROWS, count))

    def field(tile: Value, start: int, width: int, to: int) -> Value:
        mask = (1 << width) - 1
        return b.map(lambda v: b.shl(b.and_(b.shr(v, start), mask), to), tile)

    def joined(tiles: list[Value]) -> Value:
        result = tiles[0]
        for tile in tiles[1:]:
            result = b.map(b.or_, result, tile)
        return result

    if codec.bits == 8:
        _write(b, target, codes, at, 4)
        return
    if codec.bits == 2:
        for plane in range(2):
            words = [field(part(16 * plane + 4 * j, 4), 0, 2, 2 * j) for j in range(4)]
            _write(b, target, joined(words), b.add(at, 4 * ROWS * plane), 4)
        return
    low = b.map(lambda x, y: b.or_(b.and_(x, 15), b.shl(y, 4)), part(0, 16), part(16, 16))
    _write(b, target, low, at, 4)
    width = codec.bits - 4
    for plane in range(width):
        per_plane = 8 // width
        words = [
            field(part(4 * (plane * per_plane + j), 4), 4, width, width * j)
            for j in range(per_plane)
        ]
        _write(b, target, joined(words), b.add(at, 256 + 4 * ROWS * plane), 4)


def _build_dense(source: str, name: str) -> KernelFunction:
    dtype, size = {"f32": f32, "f16": f16, "bf16": bf16}[source], dense_bytes(source)
    b = IRBuilder(name, level="tile", grid=["ceildiv(N, 16)"])
    rows_of = b.array("source", dtype, ["N", "K"])
    target = b.raw("target", access="w")
    n, k = b.scalar("N"), b.scalar("K")
    first, step = b.scalar("first_group"), b.scalar("group_step")
    rows = _rows(b, n)
    pairs = 2 if source == "bf16" else 1
    padded = b.and_(b.add(k, pairs - 1), -pairs)
    group = b.add(first, b.mul(b.workgroup_id(), step))
    base = b.mul(group, b.mul(padded, ROWS * size))

    def move(start: Value, count: int) -> None:
        tile = b.copy_rows(rows_of, rows, start, (count,))
        pair = f"k2@{size} n16@{2 * size} k{count // 2}@{ROWS * 2 * size}"
        text = pair if pairs == 2 else f"n16@{size} k{count}@{ROWS * size}"
        at = b.add(base, b.mul(start, ROWS * size))
        b.store_tile(target, tile, at, layout=Layout.parse(f"nk: {text}"))

    whole = b.and_(k, -8)
    with b.for_(0, whole, 8) as loop:
        move(loop.index, 8)
    with b.for_(whole, b.and_(k, -pairs), pairs) as loop:
        move(loop.index, pairs)
    return b.finish()
