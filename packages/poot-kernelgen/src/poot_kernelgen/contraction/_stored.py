"""Stored blocks as files have them: scales, offsets and codes of 16 rows as byte tiles.

The tile form of what ``poot_quant`` says in NumPy. Codes come out unsigned, as the layout keeps them:
value + zero, or an index into the codec's table.
"""

from __future__ import annotations

from collections.abc import Callable

from poot_core import f16, f32, u8, u16
from poot_kernel import IRBuilder, Value
from poot_kernelgen.contraction._codec import ROWS, Codec
from poot_kernelgen.contraction._shapes import width_of
from poot_quant import Role

__all__ = ["StoredBlock"]


class StoredBlock:
    """One block of 16 rows."""

    def __init__(
        self, b: IRBuilder, codec: Codec, source: Value, rows: Value, origin: Value
    ) -> None:
        """Point at a block that starts ``origin`` bytes into each of the given rows."""
        self.b = b
        self.codec = codec
        self._source = source
        self._rows = rows
        self._origin = origin

    # ---- bytes

    def field(self, name: str, start: Value | int = 0, count: int | None = None) -> Value:
        """Return bytes of a field, (16, count)."""
        found = self.codec.format.field(name)
        if count is None:
            assert isinstance(start, int)
            count = found.num_bytes - start
        at = self.b.add(self.b.add(self._origin, found.offset), start)
        return self.b.copy_rows(self._source, self._rows, at, (count,))

    def bits(self, tile: Value, start: int, width: int) -> Value:
        """Return bits start..start + width of every byte."""
        b, mask = self.b, (1 << width) - 1
        return b.map(lambda v: b.and_(b.shr(v, start) if start else v, mask), tile)

    def joined(self, *tiles: Value) -> Value:
        """Return tiles of one width side by side."""
        width = width_of(tiles[0])
        return self.b.interleave(*tiles, axis=1, block=width)

    def dealt(self, *tiles: Value) -> Value:
        """Return the columns of tiles in turn."""
        return self.b.interleave(*tiles, axis=1, block=1)

    def or_high(self, low: Value, high: Value, shift: int) -> Value:
        """Return low | high << shift."""
        b = self.b
        return b.map(lambda x, y: b.or_(x, b.shl(y, shift)), low, high)

    def part(self, tile: Value, start: int, count: int) -> Value:
        """Return columns of a tile."""
        return self.b.slice(tile, (0, start), (ROWS, count))

    # ---- scales

    def header(self, what: str) -> Value:
        """Return a superblock's f16 scale or offset as bytes, (16, 2)."""
        role = Role.SCALE if what == "scale" else Role.MIN
        name = next(f.name for f in self.codec.format.fields if f.role is role)
        return self.field(name)

    def scales(self, step: int) -> Value:
        """Return the bytes of a step's scales, as the layout keeps them."""
        name = self.codec.format.name
        if self.codec.kind == "super":
            count = self.codec.groups
            return self.part(_GROUPS[name](self)[0], count * step, count)
        if name == "NVFP4":
            return self._e4m3(step)
        return self.field("e" if name == "MXFP4" else "d")

    def mins(self, step: int) -> Value:
        """Return the bytes of a step's offsets."""
        if self.codec.kind == "super":
            count = self.codec.groups
            return self.part(_GROUPS[self.codec.format.name](self)[1], count * step, count)
        return self.field("m")

    def _e4m3(self, step: int) -> Value:
        """Half of an unsigned e4m3 number as f16 bytes, exactly; 0x7f reads as 0."""
        b = self.b

        def pattern(code: Value) -> Value:
            wide = b.convert(code, u16)
            mantissa, exponent = b.and_(wide, 7), b.and_(b.shr(wide, 3), 15)
            # 1.m * 2 ** (e - 8): the exponent field of f16 is biased by 15.
            normal = b.or_(b.shl(b.add(exponent, 7), 10), b.shl(mantissa, 7))
            # m * 2 ** -10 through f32, which is exact.
            small = b.convert(b.mul(b.convert(mantissa, f32), 2.0**-10), f16)
            value = b.select(b.compare("eq", exponent, 0), b.bitcast(small, u16), normal)
            return b.select(b.compare("eq", wide, 0x7F), b.like(0, wide)[0], value)

        pair = b.map(pattern, self.field("d", 2 * step, 2))
        low = b.map(lambda v: b.convert(b.and_(v, 255), u8), pair)
        high = b.map(lambda v: b.convert(b.shr(v, 8), u8), pair)
        return self.dealt(low, high)

    # ---- codes

    def codes(self, step: int) -> Value:
        """Return a step's codes, (16, 32) u8."""
        return _CODES[self.codec.format.name](self, step)


Groups = tuple[Value, Value]


def _q2_k_groups(s: StoredBlock) -> Groups:
    scales = s.field("scales")
    return s.bits(scales, 0, 4), s.bits(scales, 4, 4)


def _q3_k_groups(s: StoredBlock) -> Groups:
    low, high = s.field("scales", 0, 8), s.field("scales", 8, 4)
    nibbles = s.joined(s.bits(low, 0, 4), s.bits(low, 4, 4))
    pairs = s.joined(*(s.bits(high, 2 * p, 2) for p in range(4)))
    six = s.or_high(nibbles, pairs, 4)
    centred = s.b.map(lambda v: s.b.sub(v, 32), six)
    return centred, centred


def _six_bit_groups(s: StoredBlock) -> Groups:
    first, second, third = (s.field("scales", 4 * i, 4) for i in range(3))
    scales_high = s.or_high(s.bits(third, 0, 4), s.bits(first, 6, 2), 4)
    mins_high = s.or_high(s.bits(third, 4, 4), s.bits(second, 6, 2), 4)
    return (
        s.joined(s.bits(first, 0, 6), scales_high),
        s.joined(s.bits(second, 0, 6), mins_high),
    )


def _q6_k_groups(s: StoredBlock) -> Groups:
    scales = s.field("scales")
    return scales, scales


def _iq4_xs_groups(s: StoredBlock) -> Groups:
    low_bytes, high_bytes = s.field("scales_l"), s.field("scales_h")
    low = s.dealt(s.bits(low_bytes, 0, 4), s.bits(low_bytes, 4, 4))
    high = s.dealt(*(s.bits(high_bytes, 2 * p, 2) for p in range(4)))
    centred = s.b.map(lambda v: s.b.sub(v, 32), s.or_high(low, high, 4))
    return centred, centred


_GROUPS: dict[str, Callable[[StoredBlock], Groups]] = {
    "Q2_K": _q2_k_groups,
    "Q3_K": _q3_k_groups,
    "Q4_K": _six_bit_groups,
    "Q5_K": _six_bit_groups,
    "Q6_K": _q6_k_groups,
    "IQ4_XS": _iq4_xs_groups,
}


def _plane_step(s: StoredBlock, name: str, width: int, step: int) -> Value:
    """Codes of a step in planes of 32 bytes: element i + 32 p of a run is plane p of byte i."""
    planes = 8 // width
    run, plane = divmod(step, planes)
    return s.bits(s.field(name, 32 * run, 32), width * plane, width)


def _nibbles(s: StoredBlock, _step: int) -> Value:
    qs = s.field("qs")
    return s.joined(s.bits(qs, 0, 4), s.bits(qs, 4, 4))


def _five_bits(s: StoredBlock, step: int) -> Value:
    b, high = s.b, s.field("qh")
    shifts = b.tile_iota((ROWS, 8), 1, u8)
    bits = [
        b.map(lambda v, by: b.and_(b.shr(v, by), 1), s.part(high, byte, 1), shifts)
        for byte in range(4)
    ]
    return s.or_high(_nibbles(s, step), s.joined(*bits), 4)


def _q8_0(s: StoredBlock, _step: int) -> Value:
    return s.b.map(lambda v: s.b.xor(v, 128), s.field("qs"))


def _two_bits(s: StoredBlock, step: int) -> Value:
    return _plane_step(s, "qs", 2, step)


def _q3_k(s: StoredBlock, step: int) -> Value:
    return s.or_high(_plane_step(s, "qs", 2, step), s.bits(s.field("hmask"), step, 1), 2)


def _q4_k(s: StoredBlock, step: int) -> Value:
    return _plane_step(s, "qs", 4, step)


def _q5_k(s: StoredBlock, step: int) -> Value:
    return s.or_high(_plane_step(s, "qs", 4, step), s.bits(s.field("qh"), step, 1), 4)


def _q6_k(s: StoredBlock, step: int) -> Value:
    half, quarter = divmod(step, 4)
    low = s.field("ql", 64 * half + 32 * (quarter % 2), 32)
    high = s.field("qh", 32 * half, 32)
    return s.or_high(s.bits(low, 4 * (quarter // 2), 4), s.bits(high, 2 * quarter, 2), 4)


def _iq4_xs(s: StoredBlock, step: int) -> Value:
    qs = s.field("qs", 16 * step, 16)
    return s.joined(s.bits(qs, 0, 4), s.bits(qs, 4, 4))


def _nvfp4(s: StoredBlock, step: int) -> Value:
    qs = s.field("qs", 16 * step, 16)
    low, high = s.bits(qs, 0, 4), s.bits(qs, 4, 4)
    return s.b.interleave(low, high, axis=1, block=8)


def _tq1_0(s: StoredBlock, step: int) -> Value:
    """Five base-3 digits a byte; a digit is the top of the byte times a power of three."""
    b = s.b

    def digit(tile: Value, number: int) -> Value:
        def body(v: Value) -> Value:
            moved = b.convert(b.mul(v, 3**number), u16)
            return b.convert(b.shr(b.mul(moved, 3), 8), u8)

        return b.map(body, tile)

    if step < 5:
        return digit(s.field("qs", 0, 32), step)
    tail = s.field("qs", 32, 16)
    if step < 7:
        return s.joined(*(digit(tail, 2 * (step - 5) + p) for p in range(2)))
    last = s.field("qh")
    return s.joined(digit(tail, 4), s.joined(*(digit(last, p) for p in range(4))))


_CODES: dict[str, Callable[[StoredBlock, int], Value]] = {
    "Q4_0": _nibbles,
    "Q4_1": _nibbles,
    "IQ4_NL": _nibbles,
    "MXFP4": _nibbles,
    "NVFP4": _nvfp4,
    "Q5_0": _five_bits,
    "Q5_1": _five_bits,
    "Q8_0": _q8_0,
    "Q2_K": _two_bits,
    "TQ2_0": _two_bits,
    "TQ1_0": _tq1_0,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
}
