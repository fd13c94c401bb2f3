"""Rounding a row to 8 bits on a GPU: an invocation a block of 32."""

from __future__ import annotations

from collections.abc import Callable

from poot_core import i8
from poot_kernel import IRBuilder, Value
from poot_kernelgen.rows._elements import Elements, Scope
from poot_kernelgen.rows._position import Position, Variable

__all__ = ["QuantiseBlocks"]

_BLOCK, _QUAD = 32, 4
_FINER = 256.0
_MOST = 127.0
_Read = Callable[[Value], list[Value]]


class QuantiseBlocks:
    """Blocks of one value; elements are computed again in each pass over a block."""

    def __init__(self, b: IRBuilder, elements: Elements, value: int, size: int) -> None:
        self._b, self._elements, self._value = b, elements, value
        self._size = size
        self._block, self._quad = Variable(size // _BLOCK), Variable(_BLOCK // _QUAD)

    @staticmethod
    def positions(size: int) -> list[Position]:
        """Return the positions that are computed, to be tried beforehand."""
        whole = Position.of(Variable(size // _BLOCK), _BLOCK)
        quad = Position.of(Variable(_BLOCK // _QUAD), _QUAD)
        return [Position.of(Variable(size)), *((whole + quad).shifted(i) for i in range(_QUAD))]

    def run(self, row: Value, arrays: list[Value], outlier: float) -> None:
        """Store codes, scales and scaled sums; with five arrays what rounding lost of outliers."""
        b = self._b
        codes, scales, sums, *rest = arrays
        limit = self._limit(outlier) if rest else None
        with b.foreach(0, self._block.extent) as loop:
            block = loop.index
            largest = self._largest(lambda quad: self._read(block, quad))
            inverse, scale = self._scales(largest)
            total = self._store(lambda quad: self._read(block, quad), inverse, (codes, row, block))
            b.store(scales, [row, block], scale)
            total = b.mul(scale, total)
            if limit is not None:
                is_outlier = b.compare("gt", b.mul(largest, largest), limit)
                total = b.add(total, self._rest(row, block, inverse, scale, is_outlier, rest))
            b.store(sums, [row, block], total)

    def _read(self, block: Value, quad: Value) -> list[Value]:
        scope = Scope({self._block: block, self._quad: quad})
        whole = Position.of(self._block, _BLOCK) + Position.of(self._quad, _QUAD)
        return [self._elements.emit(self._value, whole.shifted(i), scope) for i in range(_QUAD)]

    def _limit(self, outlier: float) -> Value:
        """Return the square beyond which a block's largest element is an outlier."""
        b, whole = self._b, Variable(self._size)
        with b.foreach(0, self._size, [b.constant(0.0)]) as loop:
            x = self._elements.emit(self._value, Position.of(whole), Scope({whole: loop.index}))
            loop.yield_(b.fma(x, x, loop.carried[0]))
        return b.mul(b.workgroup_reduce(loop.result, "add"), outlier**2 / self._size)

    def _largest(self, read: _Read) -> Value:
        b = self._b
        with b.for_(0, self._quad.extent, 1, [b.constant(0.0)]) as loop:
            largest = loop.carried[0]
            for x in read(loop.index):
                largest = b.maximum(largest, b.unary("abs", x))
            loop.yield_(largest)
        return loop.result

    def _scales(self, largest: Value) -> tuple[Value, Value]:
        """Return what codes are multiplied by, and their scale."""
        b = self._b
        is_zero = b.compare("eq", largest, 0.0)
        divisor = b.select(is_zero, b.constant(1.0), largest)
        inverse = b.select(is_zero, b.constant(0.0), b.div(127.0, divisor))
        return inverse, b.mul(largest, 1 / 127)

    def _store(self, read: _Read, inverse: Value, place: tuple[Value, Value, Value]) -> Value:
        """Store a block's codes and return their sum."""
        b, (codes, row, block) = self._b, place
        start = b.mul(block, _BLOCK)
        with b.for_(0, self._quad.extent, 1, [b.constant(0.0)]) as loop:
            rounded = (b.unary("rint", b.mul(x, inverse)) for x in read(loop.index))
            scaled = [b.minimum(b.maximum(x, -_MOST), _MOST) for x in rounded]
            total = loop.carried[0]
            for x in scaled:
                total = b.add(total, x)
            quad = b.vector_build(*(b.convert(x, i8) for x in scaled))
            b.store(codes, [row, b.add(start, b.mul(loop.index, _QUAD))], quad, alignment=4)
            loop.yield_(total)
        return loop.result

    def _rest(
        self, row: Value, block: Value, inverse: Value, scale: Value, is_outlier: Value,
        arrays: list[Value],
    ) -> Value:  # fmt: skip
        """Store what rounding lost of a block with outliers, in 256ths of its scale, or zeros.

        Returns the scaled sum of these codes.
        """
        b = self._b
        codes, scales = arrays
        finer = b.mul(inverse, _FINER)

        def lost(quad: Value) -> list[Value]:
            found: list[Value] = []
            for x in self._read(block, quad):
                code = b.unary("rint", b.mul(x, inverse))
                difference = b.sub(x, b.mul(scale, code))
                found.append(b.select(is_outlier, difference, b.constant(0.0)))
            return found

        rest_scale = b.select(is_outlier, b.mul(scale, 1 / _FINER), b.constant(0.0))
        total = self._store(lost, finer, (codes, row, block))
        b.store(scales, [row, block], rest_scale)
        return b.mul(rest_scale, total)
