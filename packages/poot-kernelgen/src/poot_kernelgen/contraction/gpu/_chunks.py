"""What a lane loads of a chunk of K and adds to its sums: the arithmetic signature.

Every regime adds chunks with these classes, so a result has the same bits whatever the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from poot_core import bf16, f16, f32, i32, u32
from poot_kernel import IRBuilder, Value
from poot_kernelgen.contraction._codec import STEP, is_dense
from poot_kernelgen.contraction.gpu._frame import Frame
from poot_kernelgen.contraction.gpu._layout import RowLayout
from poot_kernelgen.contraction.gpu._reader import Step, StepReader

__all__ = ["Chunks", "chunks_of"]

_ONES = 0x01010101
_TOP_BITS = 0x80808080

Loaded = list[Value]


class Chunks(Protocol):
    """How one kind of weight and activation is multiplied, chunk by chunk."""

    @property
    def length(self) -> int:
        """Elements of a chunk."""
        ...

    def row(self, number: Value) -> Value:
        """Return where a weight row starts."""
        ...

    def load_weight(self, base: Value, chunk: Value) -> Loaded:
        """Load a chunk of a weight row."""
        ...

    def load_activation(self, row: Value, chunk: Value, *, is_whole: bool) -> Loaded:
        """Load a chunk of an activation row; zeros beyond K unless it is whole and aligned."""
        ...

    def add(
        self, weights: Sequence[Loaded], activations: Sequence[Loaded], sums: list[list[Value]]
    ) -> list[list[Value]]:
        """Return sums[row][weight] plus the chunk's products."""
        ...


def chunks_of(frame: Frame) -> Chunks:
    """Return the chunks of a request."""
    if is_dense(frame.request.weight.source):
        return _DenseChunks(frame)
    return _ByteChunks(frame) if frame.in_bytes else _ValueChunks(frame)


def _vector(b: IRBuilder, loaded: Value, count: int) -> list[Value]:
    return [b.extract(loaded, i) for i in range(count)]


def _floats(frame: Frame, row: Value, start: Value, count: int, *, is_whole: bool) -> Loaded:
    """Load neighbouring f32 activations."""
    b, x = frame.b, frame.x[0]
    found: Loaded = []
    if is_whole:
        for first in range(0, count, 4):
            at = b.add(start, first) if first else start
            found += _vector(b, b.load(x, [row, at], count=4, alignment=16), 4)
        return found
    for number in range(count):
        at = b.add(start, number) if number else start
        found.append(b.load(x, [row, at], mask=b.compare("lt", at, frame.k)))
    return found


class _DenseChunks:
    """16 bytes of a dense row; one fused multiply-add an element, ascending."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        source = frame.request.weight.source
        self._dtype = {"f32": f32, "f16": f16, "bf16": bf16}[source]
        self._row_bytes = RowLayout(source).dense_row_bytes(frame.b, frame.k)

    @property
    def length(self) -> int:
        return 16 // self._dtype.itemsize

    def row(self, number: Value) -> Value:
        return self._frame.b.mul(number, self._row_bytes)

    def load_weight(self, base: Value, chunk: Value) -> Loaded:
        b, count = self._frame.b, self.length
        at = b.add(base, b.mul(chunk, 16))
        return [b.load(self._frame.weight, at, count=count, dtype=self._dtype, alignment=16)]

    def load_activation(self, row: Value, chunk: Value, *, is_whole: bool) -> Loaded:
        start = self._frame.b.mul(chunk, self.length)
        return _floats(self._frame, row, start, self.length, is_whole=is_whole)

    def add(
        self, weights: Sequence[Loaded], activations: Sequence[Loaded], sums: list[list[Value]]
    ) -> list[list[Value]]:
        b = self._frame.b
        result = [list(row) for row in sums]
        for number, (weight,) in enumerate(weights):
            elements = _vector(b, weight, self.length)
            wide = elements if self._dtype is f32 else [b.convert(w, f32) for w in elements]
            for k, w in enumerate(wide):
                for row, x in enumerate(activations):
                    result[row][number] = b.fma(x[k], w, result[row][number])
        return result


class _PackedChunks:
    """A step of 32 of a packed row."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        layout = RowLayout(frame.request.weight.source)
        self._reader = StepReader(frame.b, frame.weight, layout, frame.k)
        self._codec = layout.codec

    @property
    def length(self) -> int:
        return STEP

    def row(self, number: Value) -> Value:
        return self._reader.row(number)

    def load_weight(self, base: Value, chunk: Value) -> Loaded:
        return self._reader.fetch(base, chunk)


class _ValueChunks(_PackedChunks):
    """Exactly decoded values and f32 activations: one fused multiply-add an element, ascending."""

    def load_activation(self, row: Value, chunk: Value, *, is_whole: bool) -> Loaded:
        _ = is_whole  # rows are whole blocks
        start = self._frame.b.mul(chunk, STEP)
        return _floats(self._frame, row, start, STEP, is_whole=True)

    def add(
        self, weights: Sequence[Loaded], activations: Sequence[Loaded], sums: list[list[Value]]
    ) -> list[list[Value]]:
        b = self._frame.b
        result = [list(row) for row in sums]
        for number, loaded in enumerate(weights):
            for k, w in enumerate(self._reader.values(self._reader.decode(loaded))):
                for row, x in enumerate(activations):
                    result[row][number] = b.fma(x[k], w, result[row][number])
        return result


class _ByteChunks(_PackedChunks):
    """8-bit activations: exact integer products of a step, scaled once each.

    An activation is loaded as 8 words of codes, scale, scaled sum; with residuals 8 words of their
    codes and their scale follow.
    """

    def load_activation(self, row: Value, chunk: Value, *, is_whole: bool) -> Loaded:
        _ = is_whole
        b, x = self._frame.b, self._frame.x
        found = self._codes(x[0], row, chunk)
        found += [b.load(x[1], [row, chunk]), b.load(x[2], [row, chunk])]
        if len(x) > 3:
            found += [*self._codes(x[3], row, chunk), b.load(x[4], [row, chunk])]
        return found

    def _codes(self, array: Value, row: Value, chunk: Value) -> Loaded:
        b = self._frame.b
        start = b.add(b.mul(row, self._frame.k), b.mul(chunk, STEP))
        found: Loaded = []
        for first in (0, 16):
            at = b.add(start, first) if first else start
            found += _vector(b, b.load(array, at, count=4, dtype=u32, alignment=16), 4)
        return found

    def add(
        self, weights: Sequence[Loaded], activations: Sequence[Loaded], sums: list[list[Value]]
    ) -> list[list[Value]]:
        result = [list(row) for row in sums]
        for number, loaded in enumerate(weights):
            step = self._reader.decode(loaded)
            words = self._signed(step.words) if self._codec.groups > 1 else step.words
            for row, x in enumerate(activations):
                result[row][number] = self._add_step(step, words, x, result[row][number])
        return result

    def _signed(self, words: list[Value]) -> list[Value]:
        """Take the codes' zero off every byte; no byte borrows from the next."""
        b, zero = self._frame.b, self._codec.zero
        if not zero:
            return words
        lifted = (b.sub(b.or_(word, _TOP_BITS), zero * _ONES) for word in words)
        return [b.xor(word, _TOP_BITS) for word in lifted]

    def _add_step(self, step: Step, words: list[Value], x: Loaded, total: Value) -> Value:
        planes = [(x[:8], x[8])]
        if len(x) > 10:
            planes.append((x[10:18], x[18]))
        for codes, scale in planes:
            total = self._add_plane(step, words, codes, scale, total)
        return self._add_mins(step, planes, x[9], total)

    def _add_plane(
        self, step: Step, words: list[Value], codes: Loaded, scale: Value, total: Value
    ) -> Value:
        b = self._frame.b
        if self._codec.groups == 1:
            dot = self._dot(codes, words, is_signed=False)
            return b.fma(b.convert(dot, f32), b.mul(step.scales[0], scale), total)
        dots = [
            self._dot(codes[4 * g : 4 * g + 4], words[4 * g : 4 * g + 4], is_signed=True)
            for g in range(2)
        ]
        return self._add_groups(dots, step.scales, scale, total)

    def _add_groups(
        self, dots: list[Value], factors: list[Value], scale: Value, total: Value
    ) -> Value:
        """Return total + scale * (f0 * d0 + f1 * d1)."""
        b = self._frame.b
        second = b.mul(b.convert(dots[1], f32), factors[1])
        return b.fma(b.fma(b.convert(dots[0], f32), factors[0], second), scale, total)

    def _add_mins(
        self, step: Step, planes: list[tuple[Loaded, Value]], x_sum: Value, total: Value
    ) -> Value:
        b, codec = self._frame.b, self._codec
        if codec.groups == 1:
            if codec.zero:
                low = b.mul(step.scales[0], float(-codec.zero))
                return b.fma(low, x_sum, total)
            return total if step.mins is None else b.fma(step.mins[0], x_sum, total)
        if step.mins is None:
            return total
        ones = [b.constant(_ONES, u32)] * 4
        for codes, scale in planes:
            sums = [self._dot(codes[4 * g : 4 * g + 4], ones, is_signed=True) for g in range(2)]
            total = self._add_groups(sums, step.mins, scale, total)
        return total

    def _dot(self, codes: Loaded, words: Sequence[Value], *, is_signed: bool) -> Value:
        b = self._frame.b
        total = b.constant(0, i32)
        for x, w in zip(codes, words, strict=True):
            total = b.dot4(x, w, total, a_signed=True, b_signed=is_signed)
        return total
