"""Reading a step of 32 k of a packed row: words of codes, scales and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_core import DType, f16, f32, i8, i32, u8, u32
from poot_kernel import IRBuilder, Value
from poot_kernelgen.contraction.gpu._layout import Planes, RowLayout

__all__ = ["Step", "StepReader"]

_LOW = 0x0F0F0F0F


@dataclass(frozen=True, slots=True)
class Step:
    """A decoded step.

    Attributes:
        words: 8 u32, each four unsigned codes (k = 4 j + c), a codec's zero not taken off.
        scales: f32 of each group.
        mins: f32 of each group, or None.
    """

    words: list[Value]
    scales: list[Value]
    mins: list[Value] | None


class StepReader:
    """Reads steps of rows of one matrix."""

    def __init__(self, b: IRBuilder, weight: Value, layout: RowLayout, k: Value) -> None:
        self._b, self._weight, self._layout = b, weight, layout
        self.codec = layout.codec
        self.planes: Planes = layout.planes(b, k)

    def row(self, number: Value) -> Value:
        """Return where a row starts."""
        return self._b.mul(number, self.planes.row_bytes)

    def fetch(self, base: Value, step: Value) -> list[Value]:
        """Load what a step of the row at ``base`` needs; ``decode`` makes sense of it."""
        b, layout, codec = self._b, self._layout, self.codec
        found = self._words(b.add(base, b.mul(step, layout.code_bytes)), layout.code_bytes)
        if layout.high_bytes:
            at = b.add(b.add(base, self.planes.high), b.mul(step, layout.high_bytes))
            found += self._words(at, layout.high_bytes)
        if layout.scale_bytes:
            at = b.add(b.add(base, self.planes.scales), b.mul(step, layout.scale_bytes))
            dtype = self._scale_dtype()
            for number in range(layout.scale_bytes // layout.scale_item):
                is_min = number >= codec.groups
                kind = u8 if dtype is i8 and is_min else dtype
                found.append(self._item(b.add(at, number * layout.scale_item), kind))
        if layout.head_bytes:
            at = b.add(b.add(base, self.planes.heads), b.mul(b.shr(step, 3), layout.head_bytes))
            found += [self._item(b.add(at, start), f16) for start in range(0, layout.head_bytes, 2)]
        return found

    def _scale_dtype(self) -> DType:
        if self.codec.kind == "super":
            return i8 if self.codec.is_signed else u8
        return f16 if self.codec.kind == "f16" else u8

    def _item(self, at: Value, dtype: DType) -> Value:
        return self._b.load(self._weight, at, dtype=dtype, alignment=dtype.itemsize)

    def _words(self, at: Value, nbytes: int) -> list[Value]:
        b = self._b
        words: list[Value] = []
        for start in range(0, nbytes, 16):
            count = min(16, nbytes - start) // 4
            place = b.add(at, start) if start else at
            loaded = b.load(self._weight, place, count=count, dtype=u32, alignment=4 * count)
            words += [loaded] if count == 1 else [b.extract(loaded, i) for i in range(count)]
        return words

    def decode(self, loaded: Sequence[Value]) -> Step:
        """Return the step that ``fetch`` loaded."""
        layout, codec = self._layout, self.codec
        num_codes, num_high = layout.code_bytes // 4, layout.high_bytes // 4
        codes, high = loaded[:num_codes], loaded[num_codes : num_codes + num_high]
        rest = list(loaded[num_codes + num_high :])
        num_scales = layout.scale_bytes // layout.scale_item if layout.scale_item else 0
        small, heads = rest[:num_scales], rest[num_scales:]
        scales = [self._scale(small[g] if small else None, heads) for g in range(codec.groups)]
        mins = None
        if codec.has_min:
            mins = [self._min(small[codec.groups + g], heads) for g in range(codec.groups)]
        return Step(self._code_words(codes, high), scales, mins)

    # ---- scales

    def _scale(self, small: Value | None, heads: Sequence[Value]) -> Value:
        b, codec = self._b, self.codec
        if codec.kind == "f16":
            assert small is not None
            return b.convert(small, f32)
        if codec.kind == "e8m0":
            assert small is not None
            return self._exponent(small)
        whole = b.convert(heads[0], f32)
        if small is None:
            return whole
        scaled = b.mul(whole, b.convert(small, f32))
        return scaled if codec.factor == 1.0 else b.mul(scaled, codec.factor)

    def _exponent(self, code: Value) -> Value:
        """Half of 2 ** (e - 127), since the table holds twice the values; subnormal below 2."""
        b = self._b
        wide = b.convert(code, u32)
        normal = b.shl(b.sub(wide, 1), 23)
        subnormal = b.shl(b.constant(0x00200000, u32), b.minimum(wide, 1))
        return b.bitcast(b.select(b.compare("lt", wide, 2), subnormal, normal), f32)

    def _min(self, small: Value, heads: Sequence[Value]) -> Value:
        b = self._b
        if self.codec.kind == "f16":
            return b.convert(small, f32)
        return b.unary("neg", b.mul(b.convert(heads[1], f32), b.convert(small, f32)))

    # ---- codes

    def _code_words(self, codes: Sequence[Value], high: Sequence[Value]) -> list[Value]:
        b, bits = self._b, self.codec.bits
        if bits == 8:
            return list(codes)
        if bits == 2:
            return [self._field(codes[j // 4], 2 * (j % 4), 0x03030303) for j in range(8)]
        words = [self._field(codes[j % 4], 4 * (j // 4), _LOW) for j in range(8)]
        if self.codec.table is not None:
            table = [v + self.codec.zero for v in self.codec.table]
            return [self._looked_up(word, table) for word in words]
        if bits == 4:
            return words
        width = bits - 4
        per_plane, mask = 8 // width, 0x01010101 * ((1 << width) - 1)
        return [
            b.or_(
                word,
                b.shl(self._field(high[j // per_plane], width * (j % per_plane), mask), 4),
            )
            for j, word in enumerate(words)
        ]

    def _field(self, word: Value, start: int, mask: int) -> Value:
        b = self._b
        return b.and_(b.shr(word, start) if start else word, mask)

    def _looked_up(self, word: Value, table: Sequence[int]) -> Value:
        """Replace four indices below 16 by bytes of a table, which stands in four words."""
        b = self._b
        quads = [
            b.constant(sum(table[4 * q + i] << 8 * i for i in range(4)), u32) for q in range(4)
        ]
        result: Value | None = None
        for byte in range(4):
            index = b.and_(b.shr(word, 8 * byte) if byte else word, 15)
            is_odd = b.compare("ne", b.and_(index, 4), 0)
            is_high = b.compare("ne", b.and_(index, 8), 0)
            pairs = [b.select(is_odd, quads[q + 1], quads[q]) for q in (0, 2)]
            quad = b.select(is_high, pairs[1], pairs[0])
            found = b.and_(b.shr(quad, b.shl(b.and_(index, 3), 3)), 255)
            placed = b.shl(found, 8 * byte) if byte else found
            result = placed if result is None else b.or_(result, placed)
        assert result is not None
        return result

    def values(self, step: Step) -> list[Value]:
        """Return the 32 exact f32 values: scale * code + min."""
        b, codec = self._b, self.codec
        found: list[Value] = []
        for k in range(32):
            word = step.words[k // 4]
            shift = 8 * (k % 4)
            byte = b.and_(b.shr(word, shift) if shift else word, 255)
            code = b.bitcast(byte, i32)
            code = b.sub(code, codec.zero) if codec.zero else code
            group = k // codec.group
            value = b.mul(step.scales[group], b.convert(code, f32))
            found.append(value if step.mins is None else b.add(value, step.mins[group]))
        return found
