"""Re-laying stored rows into rows of planes: an invocation a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from poot_core import u8, u16, u32
from poot_kernel import IRBuilder, KernelFunction, Value
from poot_kernelgen.contraction._codec import ROWS, STEP, Codec, is_dense
from poot_kernelgen.contraction._grids import GRIDS, grid_header, table_words
from poot_kernelgen.contraction._stored import StoredBlock
from poot_kernelgen.contraction.gpu._layout import Planes, RowLayout
from poot_kernelgen.contraction.gpu._scalars import ScalarTiles
from poot_kernelgen.requests import PackRequest

__all__ = ["build_pack"]


def build_pack(request: PackRequest, name: str, threads: int) -> KernelFunction:
    """Return the packing kernel of a layout; a workgroup packs a group of 16 rows."""
    source = request.layout.source
    b = IRBuilder(name, level="lane", grid=[f"ceildiv(N, {ROWS})"], workgroup_size=threads)
    if is_dense(source):
        _build_dense(b, source)
    else:
        _Packer(b, RowLayout(source)).build()
    return b.finish()


def _target_row(b: IRBuilder, first: Value, step: Value, row: Value) -> Value:
    """Return the row of the target that a group's row goes to."""
    group = b.add(first, b.mul(b.workgroup_id(), step))
    return b.add(b.mul(group, ROWS), row)


def _source_row(b: IRBuilder, n: Value, row: Value) -> Value:
    """Return the stored row; those beyond N repeat the last one."""
    return b.minimum(b.add(b.mul(b.workgroup_id(), ROWS), row), b.sub(n, 1))


def _build_dense(b: IRBuilder, source: str) -> None:
    layout = RowLayout(source)
    dtype = u32 if source == "f32" else u16
    stored = b.array("source", dtype, ["N", "K"])
    target = b.raw("target", access="w")
    n, k = b.scalar("N"), b.scalar("K")
    first, step = b.scalar("first_group"), b.scalar("group_step")
    row_bytes = layout.dense_row_bytes(b, k)
    width = b.shr(row_bytes, dtype.itemsize.bit_length() - 1)
    with b.for_(0, ROWS) as rows:
        origin = _source_row(b, n, rows.index)
        base = b.mul(_target_row(b, first, step, rows.index), row_bytes)
        with b.foreach(0, width) as loop:
            found = b.load(stored, [origin, loop.index], mask=b.compare("lt", loop.index, k))
            b.store(target, b.add(base, b.mul(loop.index, dtype.itemsize)), found)


class _Packer:
    """Packs one packed format."""

    def __init__(self, b: IRBuilder, layout: RowLayout) -> None:
        self.b, self.layout = b, layout
        self.codec: Codec = layout.codec
        fmt = self.codec.format
        row_bytes = f"K // {fmt.block_elements} * {fmt.block_bytes}"
        self.source = b.array("source", u8, ["N", row_bytes])
        words = table_words(fmt.name)
        self.table = None if words is None else b.array("table", u16, [len(words), 1])
        self.target = b.raw("target", access="w")
        self.n, self.k = b.scalar("N"), b.scalar("K")
        self.first, self.group_step = b.scalar("first_group"), b.scalar("group_step")

    def build(self) -> None:
        b, fmt = self.b, self.codec.format
        planes = self.layout.planes(b, self.k)
        blocks = b.floordiv(self.k, fmt.block_elements)
        steps = fmt.block_elements // STEP
        with b.foreach(0, b.mul(blocks, ROWS)) as loop:
            row, number = b.and_(loop.index, ROWS - 1), b.shr(loop.index, 4)
            tiles = ScalarTiles(b)
            rows = tiles.row(_source_row(b, self.n, row))
            origin = b.mul(number, fmt.block_bytes)
            block = StoredBlock(
                cast(IRBuilder, tiles), self.codec, self.source, cast(Value, rows), origin
            )
            base = b.mul(_target_row(b, self.first, self.group_step, row), planes.row_bytes)
            first_step = b.mul(number, steps)
            if self.table is not None:
                self._grid_block(block, self.table, base, planes, first_step)
            else:
                self._block(block, base, planes, first_step)

    def _block(self, block: StoredBlock, base: Value, planes: Planes, first: Value) -> None:
        codec = self.codec
        if codec.kind == "super":
            heads = _values(block.header("scale"))
            if codec.has_min:
                heads += _values(block.header("min"))
            self._head(heads, base, planes, first)
        for step in range(codec.format.block_elements // STEP):
            number = self.b.add(first, step)
            if self.layout.scale_bytes:
                scales = _values(block.scales(step))
                if codec.has_min:
                    scales += _values(block.mins(step))
                self._scales(scales, base, planes, number)
            self._codes(_values(block.codes(step)), base, planes, number)

    def _grid_block(
        self, block: StoredBlock, table: Value, base: Value, planes: Planes, first: Value
    ) -> None:
        b, grid = self.b, GRIDS[self.codec.format.name]
        self._head(_values(grid_header(block)), base, planes, first)
        with b.for_(0, self.codec.steps) as loop:
            number = b.add(first, loop.index)
            self._scales(_values(grid.scales(block, loop.index)), base, planes, number)
            self._codes(_values(grid.codes(block, table, loop.index)), base, planes, number)

    # ---- planes

    def _head(self, heads: list[Value], base: Value, planes: Planes, first_step: Value) -> None:
        b = self.b
        at = b.mul(b.shr(first_step, 3), self.layout.head_bytes)
        self._bytes(heads, b.add(b.add(base, planes.heads), at))

    def _scales(self, scales: list[Value], base: Value, planes: Planes, step: Value) -> None:
        b = self.b
        at = b.mul(step, self.layout.scale_bytes)
        self._bytes(scales, b.add(b.add(base, planes.scales), at))

    def _codes(self, codes: list[Value], base: Value, planes: Planes, step: Value) -> None:
        b, bits = self.b, self.codec.bits
        at = b.add(base, b.mul(step, self.layout.code_bytes))
        words = [self._word(codes[4 * j : 4 * j + 4]) for j in range(8)]
        if bits == 8:
            self._words(words[:4], at)
            self._words(words[4:], b.add(at, 16))
            return
        if bits == 2:
            self._words([self._joined(words[4 * p : 4 * p + 4], 0, 3, 2) for p in range(2)], at)
            return
        low = [self._joined([words[j], words[j + 4]], 0, 15, 4) for j in range(4)]
        self._words(low, at)
        width = bits - 4
        if width:
            per_plane = 8 // width
            high = [
                self._joined(words[p * per_plane : (p + 1) * per_plane], 4, (1 << width) - 1, width)
                for p in range(width)
            ]
            place = b.add(b.add(base, planes.high), b.mul(step, self.layout.high_bytes))
            self._words(high, place)

    def _joined(self, words: Sequence[Value], start: int, mask: int, width: int) -> Value:
        """Return bits ``start``.. of every byte of some words, side by side in one word."""
        b = self.b
        result: Value | None = None
        for number, word in enumerate(words):
            field = b.and_(b.shr(word, start) if start else word, mask * 0x01010101)
            placed = b.shl(field, width * number) if number else field
            result = placed if result is None else b.or_(result, placed)
        assert result is not None
        return result

    def _word(self, codes: Sequence[Value]) -> Value:
        b = self.b
        result: Value | None = None
        for number, code in enumerate(codes):
            wide = b.convert(b.bitcast(code, u8), u32)
            placed = b.shl(wide, 8 * number) if number else wide
            result = placed if result is None else b.or_(result, placed)
        assert result is not None
        return result

    def _words(self, words: Sequence[Value], at: Value) -> None:
        b = self.b
        if len(words) == 1:
            b.store(self.target, at, words[0])
            return
        b.store(self.target, at, b.vector_build(*words), alignment=4 * len(words))

    def _bytes(self, values: Sequence[Value], at: Value) -> None:
        for number, value in enumerate(values):
            self.b.store(self.target, self.b.add(at, number), self.b.bitcast(value, u8))


def _values(tile: Value) -> list[Value]:
    return cast(Any, tile).values()
