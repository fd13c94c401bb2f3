"""Which rows have a residual at which steps, so that many rows spend nothing on those without."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from poot_core import i32, i64
from poot_kernel import Value
from poot_kernelgen.contraction._codec import STEP
from poot_kernelgen.contraction._kernel import Frame
from poot_kernelgen.contraction._sums import ByteResidual

__all__ = ["MARKED_ROWS", "MarkedStep", "Marks"]

MARKED_ROWS = 32
"""Rows that share a word of marks."""

_AT_ONCE = 8  # steps marked together


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """A row with a residual at a step.

    Attributes:
        row: Its number within the workgroup's rows.
        number: The step's number within the chunk.
        residual: Codes (1, 32) and scale (1, 1).
    """

    row: Value
    number: Value
    residual: ByteResidual


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of a chunk of steps.

    Attributes:
        frame: The kernel.
        memory: (rows / 32, steps of a chunk) i32 scratch: bit r of a word stands for row r of its 32.
        first: First row of the workgroup.
        end: One past its last row; rows from here on are never marked.
    """

    frame: Frame
    memory: Value
    first: Value
    end: Value

    def note(self, steps: tuple[Value, Value]) -> None:
        """Write the marks of these steps for all rows of the workgroup."""
        b = self.frame.b
        whole = b.add(steps[0], b.and_(b.sub(steps[1], steps[0]), -_AT_ONCE))
        with b.for_(self.first, self.end, MARKED_ROWS) as loop:
            rows = self.frame.rows(loop.index, MARKED_ROWS)
            bits = self._row_bits(loop.index)
            word = b.shr(b.sub(loop.index, self.first), 5)
            for start, stop, width in ((steps[0], whole, _AT_ONCE), (whole, steps[1], 1)):
                with b.for_(start, stop, width) as step:
                    scales = self.frame.activation(4, rows, step.index, width)
                    found = b.map(
                        lambda s, bit: b.select(b.compare("ne", s, 0.0), bit, 0), scales, bits
                    )
                    marks = b.reshape(b.reduce(found, 0, "or"), (width,))
                    b.store_tile(self.memory, marks, [word, b.sub(step.index, steps[0])])

    def _row_bits(self, start: Value) -> Value:
        """Return (32, 1) i32: the bit of each row, 0 for those that only repeat the last one."""
        b = self.frame.b
        count = b.minimum(b.sub(self.end, start), MARKED_ROWS)
        inside = b.convert(count, i32)
        number = b.tile_iota((MARKED_ROWS, 1), 0, i32)
        return b.map(
            lambda r: b.select(b.compare("lt", r, inside), b.shl(b.constant(1, i32), r), 0), number
        )

    @contextmanager
    def each(self, steps: tuple[Value, Value]) -> Generator[MarkedStep]:
        """Emit a body for each mark, a row's steps ascending."""
        b = self.frame.b
        with b.for_(self.first, self.end, MARKED_ROWS) as block:
            word = b.shr(b.sub(block.index, self.first), 5)
            with b.for_(steps[0], steps[1]) as step:
                number = b.sub(step.index, steps[0])
                bits = b.load(self.memory, [word, number])
                turns = b.convert(b.unary("count_ones", bits), i64)
                with b.for_(0, turns, 1, [bits]) as turn:
                    left = turn.carried[0]
                    lowest = b.and_(left, b.unary("neg", left))
                    place = b.unary("count_ones", b.sub(lowest, 1))
                    row = b.add(block.index, b.convert(place, i64))
                    rows = self.frame.rows(row, 1)
                    codes, scales = self.frame.step_residuals(
                        rows, step.index, b.mul(step.index, STEP)
                    )
                    yield MarkedStep(b.sub(row, self.first), number, ByteResidual(codes, scales))
                    turn.yield_(b.and_(left, b.sub(left, 1)))
