"""At which steps a few rows have a residual, so that many rows spend little on those without."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from poot_core import i32, i64
from poot_kernel import Value
from poot_kernelgen.contraction._codec import STEP
from poot_kernelgen.contraction._kernel import Frame
from poot_kernelgen.contraction._sums import ByteResidual

__all__ = ["MARKED_ROWS", "MarkedStep", "Marks", "open_marks"]

MARKED_ROWS = 2
"""Rows whose residuals are looked for, and added, together: more of them have one at more steps."""

_HALVES, _LANES = 2, 16
_MOST_STEPS = _HALVES * _LANES  # of a chunk: a bit each


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """A step at which one of some rows has a residual.

    Attributes:
        row: The first row's number within the workgroup.
        number: The step's number within the chunk.
        residual: Codes (2, 32) and scales (2, 1).
    """

    row: Value
    number: Value
    residual: ByteResidual


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of a workgroup's rows in a chunk of at most 32 steps.

    Attributes:
        frame: The kernel.
        memory: (rows / MARKED_ROWS, 16) i32 scratch: bit s of one of the 16 words says whether one of
            the rows has a residual at step s.
        first: First row.
        end: One past the last.
    """

    frame: Frame
    memory: Value
    first: Value
    end: Value

    def note(self, steps: tuple[Value, Value]) -> None:
        """Write the marks of a chunk."""
        b = self.frame.b
        count = b.convert(b.sub(steps[1], steps[0]), i32)
        one = b.constant(1, i32)
        bits = b.reshape(b.tile_iota((_MOST_STEPS,), 0, i32), (_HALVES, _LANES))

        def mark(word: Value, step: Value) -> Value:
            has_some = b.and_(b.compare("ne", word, 0), b.compare("lt", step, count))
            return b.select(has_some, b.shl(one, step), 0)

        with b.for_(self.first, self.end, MARKED_ROWS) as loop:
            found = b.map(mark, self._words(loop.index, steps[0]), bits)
            marks = b.reshape(b.reduce(found, 0, "or"), (_LANES,))
            b.store_tile(self.memory, marks, [self._tile(loop.index), 0])

    def _tile(self, row: Value) -> Value:
        return self.frame.b.floordiv(self.frame.b.sub(row, self.first), MARKED_ROWS)

    def _words(self, start: Value, step: Value) -> Value:
        """Return (2, 16) i32: not 0 where one of the rows from ``start`` on has a residual."""
        b = self.frame.b
        last = b.sub(self.frame.m, 1)
        words: Value | None = None
        for number in range(MARKED_ROWS):
            row = b.minimum(b.add(start, number), last)
            scales = b.copy(self.frame.x[4], [row, step], (1, _MOST_STEPS), bounds="masked")
            found = b.map(lambda v: b.bitcast(v, i32), b.reshape(scales, (_HALVES, _LANES)))
            words = found if words is None else b.map(lambda x, y: b.or_(x, y), words, found)
        assert words is not None
        return words

    @contextmanager
    def each(self, steps: tuple[Value, Value]) -> Generator[MarkedStep]:
        """Emit a body for all rows and each step at which one of some has a residual, ascending."""
        b = self.frame.b
        with b.for_(self.first, self.end, MARKED_ROWS) as loop:
            rows = self.frame.rows(loop.index, MARKED_ROWS)
            tile = self._tile(loop.index)
            bits = b.load(self.memory, [tile, 0])
            for lane in range(1, _LANES):
                bits = b.or_(bits, b.load(self.memory, [tile, lane]))
            # A word of bits, not a test for each step: the processor guesses wrong once, at the end.
            turns = b.convert(b.unary("count_ones", bits), i64)
            with b.for_(0, turns, 1, [bits]) as turn:
                left = turn.carried[0]
                below = b.sub(b.and_(left, b.unary("neg", left)), 1)
                number = b.convert(b.unary("count_ones", below), i64)
                step = b.add(steps[0], number)
                codes, scales = self.frame.step_residuals(rows, step, b.mul(step, STEP))
                row = b.sub(loop.index, self.first)
                yield MarkedStep(row, number, ByteResidual(codes, scales))
                turn.yield_(b.and_(left, b.sub(left, 1)))


def open_marks(frame: Frame, shape: tuple[int, int], first: Value, end: Value) -> Marks:
    """Allocate the marks of a workgroup of at most so many rows, and steps of a chunk."""
    rows, steps = shape
    assert rows % MARKED_ROWS == 0, shape
    assert steps <= _MOST_STEPS, shape
    memory = frame.b.shared_alloc(i32, [rows // MARKED_ROWS, _LANES])
    return Marks(frame, memory, first, end)
