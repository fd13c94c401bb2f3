"""Stored steps of the formats that index a table of vectors: IQ1, IQ2 and IQ3.

The tile form of ``poot_quant``'s unpackers for one step of 32 elements, whose number may be a run-time
value. Codes come out as indices into the format's ascending values: a vector's levels count away from
zero, its signs choose the half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poot_core import i32, u8, u16
from poot_kernel import IRBuilder, Value
from poot_kernelgen.contraction._codec import ROWS, STEP
from poot_kernelgen.contraction._shapes import dtype_of, width_of
from poot_kernelgen.contraction._stored import StoredBlock
from poot_quant import grid_words

__all__ = ["GRIDS", "GridFormat", "grid_header", "table_of", "table_words"]


@dataclass(frozen=True, slots=True)
class GridFormat:
    """How one format is read.

    Attributes:
        table: Name of its table.
        codes: Returns (16, 32) indices of a step.
        scales: Returns (16, groups) integer scales of a step.
    """

    table: str
    codes: Callable[[StoredBlock, Value, Value], Value]
    scales: Callable[[StoredBlock, Value], Value]


def _wide(s: StoredBlock, low: Value, high: Value) -> Value:
    """Return low | high << 8 of byte tiles as u16."""
    b = s.b
    return b.map(lambda x, y: b.or_(b.convert(x, u16), b.shl(b.convert(y, u16), 8)), low, high)


def _even(s: StoredBlock, tile: Value, parity: int) -> Value:
    """Return every second column."""
    width = width_of(tile) // 2
    pairs = s.b.reshape(tile, (ROWS, width, 2))
    return s.b.reshape(s.b.slice(pairs, (0, 0, parity), (ROWS, width, 1)), (ROWS, width))


def _spread(s: StoredBlock, tile: Value, count: int, bits: int) -> Value:
    """Return ``count`` fields of ``bits`` bits of every element, lowest first: (16, v) -> (16, v c)."""
    b = s.b
    width = width_of(tile)
    dtype = dtype_of(tile)
    deep = b.reshape(tile, (ROWS, width, 1))
    shifts = b.tile_iota((1, 1, count), 2, dtype)
    mask = (1 << bits) - 1
    found = b.map(lambda v, j: b.and_(b.shr(v, b.mul(j, bits)), mask), deep, shifts)
    return b.reshape(b.tile_convert(found, u8), (ROWS, width * count))


def _levels(s: StoredBlock, table: Value, index: Value, bits: int) -> Value:
    """Return the levels of the vectors with these numbers: (16, v) -> (16, v * 16 / bits)."""
    b = s.b
    width = width_of(index)
    rows = b.tile_convert(b.reshape(index, (ROWS * width,)), i32)
    words = b.reshape(b.copy_rows(table, rows, 0, (1,)), (ROWS, width))
    return _spread(s, words, 16 // bits, bits)


def _signed(s: StoredBlock, levels: Value, negative: Value, count: int) -> Value:
    """Return indices into ascending values: ``count`` levels on either side of zero."""
    b = s.b

    def body(level: Value, sign: Value) -> Value:
        above, below = b.add(level, count), b.sub(count - 1, level)
        return b.select(b.compare("ne", sign, 0), below, above)

    return b.map(body, levels, negative)


def _even_signs(s: StoredBlock, seven: Value) -> Value:
    """Return 8 sign bits of each 7-bit field; the eighth makes the number of ones even."""
    b = s.b

    def body(v: Value) -> Value:
        fold = b.xor(v, b.shr(v, 4))
        fold = b.xor(fold, b.shr(fold, 2))
        fold = b.and_(b.xor(fold, b.shr(fold, 1)), 1)
        return b.or_(b.and_(v, 127), b.shl(fold, 7))

    return _spread(s, b.map(body, b.map(lambda v: b.and_(v, 127), seven)), 8, 1)


def _four_sevens(s: StoredBlock, control: Value) -> Value:
    """Return the four 7-bit fields of 28 bits in four bytes: (16, 4) -> (16, 4)."""
    b = s.b
    parts = [s.part(control, i, 1) for i in range(4)]
    found = [b.map(lambda v: b.and_(v, 127), parts[0])]
    for i in range(1, 4):
        low, high = parts[i - 1], parts[i]
        found.append(
            b.map(lambda x, y, i=i: b.and_(b.or_(b.shr(x, 8 - i), b.shl(y, i)), 127), low, high)
        )
    return s.joined(*found)


def _odd(s: StoredBlock, tile: Value) -> Value:
    return s.b.map(lambda v: s.b.add(s.b.mul(v, 2), 1), tile)


def _nibble_pair(s: StoredBlock, tile: Value) -> Value:
    return s.dealt(s.bits(tile, 0, 4), s.bits(tile, 4, 4))


def _iq2_xxs(s: StoredBlock, table: Value, step: Value) -> Value:
    index = s.field("qs", s.b.mul(step, 8), 4)
    control = s.field("qs", s.b.add(s.b.mul(step, 8), 4), 4)
    return _signed(s, _levels(s, table, index, 2), _even_signs(s, _four_sevens(s, control)), 3)


def _iq2_xxs_scales(s: StoredBlock, step: Value) -> Value:
    return _odd(s, s.bits(s.field("qs", s.b.add(s.b.mul(step, 8), 7), 1), 4, 4))


def _iq2_xs(s: StoredBlock, table: Value, step: Value) -> Value:
    pairs = s.field("qs", s.b.mul(step, 8), 8)
    low, high = _even(s, pairs, 0), _even(s, pairs, 1)
    index = _wide(s, low, s.bits(high, 0, 1))
    signs = _even_signs(s, s.bits(high, 1, 7))
    return _signed(s, _levels(s, table, index, 2), signs, 3)


def _nibble_scales(s: StoredBlock, step: Value) -> Value:
    return _odd(s, _nibble_pair(s, s.field("scales", step, 1)))


def _iq2_s(s: StoredBlock, table: Value, step: Value) -> Value:
    high = _spread(s, s.field("qh", step, 1), 4, 2)
    index = _wide(s, s.field("qs", s.b.mul(step, 4), 4), high)
    signs = _spread(s, s.field("signs", s.b.mul(step, 4), 4), 8, 1)
    return _signed(s, _levels(s, table, index, 2), signs, 3)


def _iq3_xxs(s: StoredBlock, table: Value, step: Value) -> Value:
    index = s.field("qs", s.b.mul(step, 8), 8)
    control = s.field("control", s.b.mul(step, 4), 4)
    return _signed(s, _levels(s, table, index, 4), _even_signs(s, _four_sevens(s, control)), 8)


def _iq3_xxs_scales(s: StoredBlock, step: Value) -> Value:
    return _odd(s, s.bits(s.field("control", s.b.add(s.b.mul(step, 4), 3), 1), 4, 4))


def _iq3_s(s: StoredBlock, table: Value, step: Value) -> Value:
    high = _spread(s, s.field("qh", step, 1), 8, 1)
    index = _wide(s, s.field("qs", s.b.mul(step, 8), 8), high)
    signs = _spread(s, s.field("signs", s.b.mul(step, 4), 4), 8, 1)
    return _signed(s, _levels(s, table, index, 4), signs, 8)


def _iq3_s_scales(s: StoredBlock, step: Value) -> Value:
    b = s.b
    shift = b.convert(b.mul(b.and_(step, 1), 4), u8)
    both = s.field("scales", b.shr(step, 1), 1)
    return _odd(s, b.map(lambda v: b.and_(b.shr(v, shift), 15), both))


def _shifted(s: StoredBlock, levels: Value, negative: Value) -> Value:
    """Return indices of 8 * vector +- 1; ``negative`` (16, 4) holds for 8 elements each."""
    b = s.b
    deep = b.broadcast(b.reshape(negative, (ROWS, 4, 1)), (ROWS, 4, 8))
    wide = b.reshape(deep, (ROWS, STEP))
    return b.map(lambda v, n: b.sub(b.add(b.mul(v, 2), 1), n), levels, wide)


def _control16(s: StoredBlock, name: str, number: Value) -> Value:
    """Return a field's u16 element, (16, 1)."""
    at = s.b.mul(number, 2)
    return _wide(s, s.field(name, at, 1), s.field(name, s.b.add(at, 1), 1))


def _iq1_s(s: StoredBlock, table: Value, step: Value) -> Value:
    b = s.b
    control = _control16(s, "qh", step)
    high = s.part(_spread(s, control, 5, 3), 0, 4)
    index = _wide(s, s.field("qs", b.mul(step, 4), 4), high)
    sign = b.tile_convert(b.map(lambda v: b.shr(v, 15), control), u8)
    return _shifted(s, _levels(s, table, index, 2), b.broadcast(sign, (ROWS, 4)))


def _iq1_s_scales(s: StoredBlock, step: Value) -> Value:
    b = s.b
    control = _control16(s, "qh", step)
    return _odd(s, b.tile_convert(b.map(lambda v: b.and_(b.shr(v, 12), 7), control), u8))


def _iq1_m(s: StoredBlock, table: Value, step: Value) -> Value:
    nibbles = _nibble_pair(s, s.field("qh", s.b.mul(step, 2), 2))
    index = _wide(s, s.field("qs", s.b.mul(step, 4), 4), s.bits(nibbles, 0, 3))
    return _shifted(s, _levels(s, table, index, 2), s.bits(nibbles, 3, 1))


def _iq1_m_scales(s: StoredBlock, step: Value) -> Value:
    b = s.b
    control = _control16(s, "scales", b.shr(step, 1))
    shift = b.convert(b.mul(b.and_(step, 1), 6), u16)
    moved = b.map(lambda v: b.shr(v, shift), control)
    return _odd(s, s.part(_spread(s, moved, 2, 3), 0, 2))


GRIDS: dict[str, GridFormat] = {
    "IQ2_XXS": GridFormat("iq2_xxs", _iq2_xxs, _iq2_xxs_scales),
    "IQ2_XS": GridFormat("iq2_xs", _iq2_xs, _nibble_scales),
    "IQ2_S": GridFormat("iq2_s", _iq2_s, _nibble_scales),
    "IQ3_XXS": GridFormat("iq3_xxs", _iq3_xxs, _iq3_xxs_scales),
    "IQ3_S": GridFormat("iq3_s", _iq3_s, _iq3_s_scales),
    "IQ1_S": GridFormat("iq1", _iq1_s, _iq1_s_scales),
    "IQ1_M": GridFormat("iq1", _iq1_m, _iq1_m_scales),
}
"""Format name -> how it is read."""


def table_of(b: IRBuilder, name: str) -> Value:
    """Return a format's table as (rows, 1) words."""
    words, _bits = grid_words(GRIDS[name].table)
    return b.constant_table(words, u16, (len(words), 1))


def table_words(name: str) -> tuple[int, ...] | None:
    """Return the u16 words of a format's table, or None if it has none."""
    return tuple(grid_words(GRIDS[name].table)[0]) if name in GRIDS else None


def grid_header(s: StoredBlock) -> Value:
    """Return the f16 scale of a superblock as bytes, (16, 2); IQ1_M keeps it in four nibbles."""
    if s.codec.format.name != "IQ1_M":
        return s.header("scale")
    b = s.b
    tops = [s.bits(s.field("scales", 2 * i + 1, 1), 4, 4) for i in range(4)]
    low = b.map(lambda x, y: b.or_(x, b.shl(y, 4)), tops[0], tops[1])
    high = b.map(lambda x, y: b.or_(x, b.shl(y, 4)), tops[2], tops[3])
    return s.joined(low, high)
