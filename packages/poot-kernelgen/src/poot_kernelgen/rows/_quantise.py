"""Rounding a row to 8 bits on a GPU: neighbouring lanes share a block of 32."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from poot_core import i8
from poot_kernel import IRBuilder, Value
from poot_kernelgen.rows._elements import Elements, Scope
from poot_kernelgen.rows._position import Position, Variable

__all__ = ["QUAD", "QuantiseBlocks", "block_lanes"]

_BLOCK = 32
QUAD = 4
"""Neighbouring elements that a lane of a GPU reads and writes together."""
_FINER = 256.0
_MOST = 127.0
_HELD = 4
"""Turns of a row whose elements stay in registers between the two passes over it."""


def block_lanes(subgroup_size: int) -> int:
    """Return how many lanes share a block: a quad each, more in narrow subgroups."""
    return min(_BLOCK // QUAD, subgroup_size)


@dataclass(frozen=True, slots=True)
class _Item:
    """What a lane holds of a block in one turn.

    Attributes:
        number: Which piece of the row, in units of a lane's elements.
        quads: Its elements.
        is_inside: Whether the row reaches so far; None where it always does.
    """

    number: Value
    quads: list[Value]
    is_inside: Value | None


class QuantiseBlocks:
    """Blocks of one value. With residuals the row is read once more before, for its mean square."""

    def __init__(
        self, b: IRBuilder, elements: Elements, value: int, size: int, *, threads: int, lanes: int
    ) -> None:
        self._b, self._elements, self._value = b, elements, value
        self._size, self._threads, self._lanes = size, threads, lanes
        self._each = _BLOCK // lanes  # elements of a lane
        self._items = size // self._each
        self._turns = -(-self._items // threads)
        self._whole = Variable(size)
        self._held: list[_Item] = []

    def run(self, row: Value, arrays: list[Value], outlier: float) -> None:
        """Store codes, scales and scaled sums; with five arrays what rounding lost of outliers."""
        limit = self._limit(outlier) if len(arrays) > 3 else None
        if self._turns <= _HELD:
            for item in self._held or [self._read(turn) for turn in range(self._turns)]:
                self._round(item, row, arrays, limit)
            return
        with self._b.for_(0, self._turns) as loop:
            self._round(self._read(loop.index), row, arrays, limit)

    def _read(self, turn: Value | int) -> _Item:
        """Return a lane's piece in a turn; lanes beyond the row repeat its last piece."""
        b = self._b
        number = b.add(b.mul(b.index(turn), self._threads), b.query("local_id"))
        is_inside = None
        if self._items % self._threads:
            is_inside = b.compare("lt", number, self._items)
            number = b.minimum(number, self._items - 1)
        per = self._each // QUAD
        quads = [
            self._quad(b.add(b.mul(number, per), q) if per > 1 else number) for q in range(per)
        ]
        return _Item(number, quads, is_inside)

    def _quad(self, number: Value) -> Value:
        scope = Scope({self._whole: number}, self._whole, QUAD, is_aligned=True)
        found = self._elements.emit(self._value, Position.of(self._whole), scope)
        return self._elements.spread(found, QUAD)

    def _limit(self, outlier: float) -> Value:
        """Return the square beyond which a block's largest element is an outlier."""
        b = self._b
        total = b.splat(b.constant(0.0), QUAD)
        if self._turns <= _HELD:
            self._held = [self._read(turn) for turn in range(self._turns)]
            for item in self._held:
                total = self._squares(item, total)
        else:
            with b.for_(0, self._turns, 1, [total]) as loop:
                loop.yield_(self._squares(self._read(loop.index), loop.carried[0]))
            total = loop.result
        square = b.workgroup_reduce(b.vector_reduce(total, "add"), "add")
        return b.mul(square, outlier**2 / self._size)

    def _squares(self, item: _Item, total: Value) -> Value:
        b = self._b
        for quad in item.quads:
            if item.is_inside is not None:
                zero = b.splat(b.constant(0.0), QUAD)
                quad = b.select(b.splat(item.is_inside, QUAD), quad, zero)
            total = b.fma(quad, quad, total)
        return total

    def _shared(self, x: Value, kind: str) -> Value:
        """Combine what a block's lanes hold: each ends with the same bits."""
        b, mask = self._b, 1
        while mask < self._lanes:
            x = b.binary(kind, x, b.subgroup_shuffle_xor(x, mask))
            mask *= 2
        return x

    def _round(self, item: _Item, row: Value, arrays: list[Value], limit: Value | None) -> None:
        b = self._b
        codes, scales, sums, *rest = arrays
        largest = self._shared(self._largest(item.quads), "max")
        inverse, scale = self._scales(largest)
        wide = b.splat(inverse, QUAD)
        rounded = [b.unary("rint", b.mul(x, wide)) for x in item.quads]
        kept = [self._clamped(x) for x in rounded]
        total = b.mul(scale, self._total(kept))
        lost: list[Value] = []
        rest_scale = b.constant(0.0)
        if limit is not None:
            # In units of the rest's scale, a 256th of the block's: at most 128 of them.
            is_outlier = b.compare("gt", b.mul(largest, largest), limit)
            finer = b.splat(b.mul(inverse, _FINER), QUAD)
            zero = b.splat(b.constant(0.0), QUAD)
            for x, code in zip(item.quads, rounded, strict=True):
                difference = b.sub(x, b.mul(b.splat(scale, QUAD), code))
                difference = b.select(b.splat(is_outlier, QUAD), difference, zero)
                lost.append(self._clamped(b.unary("rint", b.mul(difference, finer))))
            rest_scale = b.select(is_outlier, b.mul(scale, 1 / _FINER), b.constant(0.0))
            total = b.add(total, b.mul(rest_scale, self._total(lost)))
        with self._inside(item.is_inside):
            self._store(codes, row, item, kept)
            if limit is not None:
                self._store(rest[0], row, item, lost)
            block = b.floordiv(item.number, self._lanes)
            is_first = b.compare("eq", b.mod(item.number, self._lanes), 0)
            with self._inside(is_first):
                b.store(scales, [row, block], scale)
                b.store(sums, [row, block], total)
                if limit is not None:
                    b.store(rest[1], [row, block], rest_scale)

    @contextmanager
    def _inside(self, condition: Value | None) -> Generator[None]:
        if condition is None:
            yield
            return
        with self._b.if_(condition) as branch, branch.then():
            yield

    def _largest(self, quads: list[Value]) -> Value:
        b = self._b
        largest = b.unary("abs", quads[0])
        for quad in quads[1:]:
            largest = b.maximum(largest, b.unary("abs", quad))
        return b.vector_reduce(largest, "max")

    def _total(self, quads: list[Value]) -> Value:
        """Return the sum of a block's codes, which is exact in any order."""
        b = self._b
        total = quads[0]
        for quad in quads[1:]:
            total = b.add(total, quad)
        return self._shared(b.vector_reduce(total, "add"), "add")

    def _scales(self, largest: Value) -> tuple[Value, Value]:
        """Return what codes are multiplied by, and their scale."""
        b = self._b
        is_zero = b.compare("eq", largest, 0.0)
        divisor = b.select(is_zero, b.constant(1.0), largest)
        inverse = b.select(is_zero, b.constant(0.0), b.div(127.0, divisor))
        return inverse, b.mul(largest, 1 / 127)

    def _clamped(self, x: Value) -> Value:
        b = self._b
        low, high = (b.splat(b.constant(edge), QUAD) for edge in (-_MOST, _MOST))
        return b.minimum(b.maximum(x, low), high)

    def _store(self, codes: Value, row: Value, item: _Item, quads: list[Value]) -> None:
        b = self._b
        start = b.mul(item.number, self._each)
        for number, quad in enumerate(quads):
            at = b.add(start, number * QUAD) if number else start
            b.store(codes, [row, at], b.convert(quad, i8), alignment=QUAD)
