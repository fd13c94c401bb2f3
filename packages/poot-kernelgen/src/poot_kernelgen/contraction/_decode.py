"""Decoding a step of a weight layout into tiles: scales, offsets, codes, values."""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import DType, f16, f32, i8, i32, u8, u32
from poot_kernel import IRBuilder, Layout, Value
from poot_kernelgen.contraction._codec import ROWS, STEP, Codec
from poot_kernelgen.contraction._shapes import width_of

__all__ = ["Step", "StepReader", "group_values"]


@dataclass(frozen=True, slots=True)
class Step:
    """One decoded step.

    Attributes:
        scales: For each group a (1, n) f32 tile.
        mins: For each group a (1, n) f32 tile that is added; None without offsets.
        codes: (32, n) u8 tile of unsigned codes (value + zero).
    """

    scales: list[Value]
    mins: list[Value] | None
    codes: Value


class StepReader:
    """Reads steps of 16 rows, or of one row (``lane`` given), as tiles of n = 16 or 1 columns."""

    def __init__(
        self, b: IRBuilder, weight: Value, codec: Codec, lane: Value | None = None
    ) -> None:
        """Prepare reading.

        Args:
            b: Where to build.
            weight: The raw array.
            codec: Its layout.
            lane: Which of the 16 rows, for a single one.
        """
        self._b = b
        self._weight = weight
        self._codec = codec
        self._lane = lane
        self.columns = ROWS if lane is None else 1

    # ---- addresses

    def _copy(self, base: Value, parts: str, dtype: DType, lane_bytes: int) -> Value:
        """Copy a tile; ``parts`` has a placeholder ``N`` for the rows' part."""
        b = self._b
        rows = f"n{ROWS}@{lane_bytes}" if self._lane is None else ""
        if self._lane is not None:
            base = b.add(base, b.mul(self._lane, lane_bytes))
        layout = Layout.parse("kn: " + " ".join(parts.replace("N", rows).split()))
        return b.copy(self._weight, base, layout=layout, dtype=dtype)

    def step_address(self, base: Value, step: Value) -> tuple[Value, Value]:
        """Return the byte offsets of a step's header and of the step."""
        b, codec = self._b, self._codec
        if codec.kind != "super":
            at = b.add(base, b.mul(step, codec.step_bytes))
            return at, at
        header = b.add(base, b.mul(b.shr(step, 3), codec.block_bytes))
        inner = b.mul(b.and_(step, 7), codec.step_bytes)
        return header, b.add(b.add(header, codec.header_bytes), inner)

    # ---- fields

    def read(self, header: Value, at: Value) -> Step:
        """Return the step at a byte offset."""
        codec = self._codec
        scales = [self._scale(header, at, g) for g in range(codec.groups)]
        mins = None
        if codec.has_min:
            mins = [self._min(header, at, g) for g in range(codec.groups)]
        return Step(scales, mins, self.codes(self._b.add(at, codec.code_start)))

    def _half(self, at: Value) -> Value:
        b = self._b
        return b.tile_convert(self._copy(at, "N", f16, 2), f32)

    def _scale(self, header: Value, at: Value, group: int) -> Value:
        b, codec = self._b, self._codec
        if codec.kind == "f16":
            return self._half(b.add(at, 2 * ROWS * group))
        if codec.kind == "e8m0":
            return b.map(self._exponent, self._copy(at, "N", u8, 1))
        whole = self._half(header)
        if not codec.scale_bytes:
            return whole
        dtype = i8 if codec.is_signed else u8
        small = self._copy(b.add(at, ROWS * group), "N", dtype, 1)

        def product(d: Value, integer: Value) -> Value:
            scaled = b.mul(d, b.convert(integer, f32))
            return scaled if codec.factor == 1.0 else b.mul(scaled, codec.factor)

        return b.map(product, whole, small)

    def _exponent(self, code: Value) -> Value:
        """Half of 2 ** (e - 127), since the table holds twice the values; subnormal below 2."""
        b = self._b
        wide = b.convert(code, u32)
        normal = b.shl(b.sub(wide, 1), 23)
        subnormal = b.shl(b.constant(0x00200000, u32), b.minimum(wide, 1))
        return b.bitcast(b.select(b.compare("lt", wide, 2), subnormal, normal), f32)

    def _min(self, header: Value, at: Value, group: int) -> Value:
        b, codec = self._b, self._codec
        start = b.add(at, codec.scale_bytes)
        if codec.kind == "f16":
            return self._half(b.add(start, 2 * ROWS * group))
        whole = self._half(b.add(header, 2 * ROWS))
        small = self._copy(b.add(start, ROWS * group), "N", u8, 1)
        return b.map(lambda d, m: b.unary("neg", b.mul(d, b.convert(m, f32))), whole, small)

    # ---- codes

    def _bytes(self, at: Value, count: int) -> Value:
        """Return a (4 count, n) tile of bytes: count words of four k for each row."""
        return self._copy(at, f"k4@1 N k{count}@{4 * ROWS}", u8, 4)

    def codes(self, at: Value) -> Value:
        """Return the (32, n) u8 tile of unsigned codes that start at a byte offset."""
        b, codec = self._b, self._codec
        match codec.bits:
            case 8:
                return self._bytes(at, 8)
            case 2:
                low, high = self._bytes(at, 1), self._bytes(b.add(at, 4 * ROWS), 1)
                words = [self._field(x, 2 * j, 2, 0) for x in (low, high) for j in range(4)]
                return b.interleave(*words, axis=0, block=4)
            case 4 if codec.table is None:
                return b.interleave(*self._nibbles(at), axis=0, block=16)
            case 4:
                unsigned = tuple(v + codec.zero for v in codec.table or ())
                halves = [
                    b.map(lambda x: b.lut16(x, unsigned, u8), half) for half in self._nibbles(at)
                ]
                return b.interleave(*halves, axis=0, block=16)
            case _:
                return self._with_high_bits(at)

    def _nibbles(self, at: Value) -> list[Value]:
        b = self._b
        both = self._bytes(at, 4)
        return [b.map(lambda x: b.and_(x, 15), both), b.map(lambda x: b.shr(x, 4), both)]

    def _field(self, x: Value, start: int, width: int, to: int) -> Value:
        """Return bits start..start+width of every byte, moved to bit ``to``."""
        b = self._b
        mask = ((1 << width) - 1) << to

        def body(v: Value) -> Value:
            moved = (
                b.shr(v, start - to) if start > to else b.shl(v, to - start) if start < to else v
            )
            return b.and_(moved, mask)

        return b.map(body, x)

    def _with_high_bits(self, at: Value) -> Value:
        b, width = self._b, self._codec.bits - 4
        halves = self._nibbles(at)
        planes = [
            self._bytes(b.add(at, 256 + 4 * ROWS * p), 1) for p in range(width)
        ]  # each holds the high bits of 8 / width words
        words: list[Value] = []
        for j in range(8):
            low = b.slice(halves[j // 4], (4 * (j % 4), 0), (4, self.columns))
            per_plane = 8 // width
            high = self._field(planes[j // per_plane], width * (j % per_plane), width, 4)
            words.append(b.map(b.or_, low, high))
        return b.interleave(*words, axis=0, block=4)


def group_values(b: IRBuilder, codec: Codec, step: Step) -> Value:
    """Return the (32, n) f32 tile of a step's exact values: scale * code + min."""
    parts: list[Value] = []
    columns = width_of(step.codes)
    for g in range(codec.groups):
        codes = step.codes
        if codec.groups > 1:
            codes = b.slice(codes, (codec.group * g, 0), (codec.group, columns))

        def value(code: Value, scale: Value, *low: Value) -> Value:
            integer = (
                b.sub(b.convert(code, i32), codec.zero) if codec.zero else b.convert(code, i32)
            )
            product = b.mul(scale, b.convert(integer, f32))
            return b.add(product, low[0]) if low else product

        mins = [step.mins[g]] if step.mins is not None else []
        parts.append(b.map(value, codes, step.scales[g], *mins))
    assert codec.groups * codec.group == STEP
    return parts[0] if len(parts) == 1 else b.interleave(*parts, axis=0, block=codec.group)
