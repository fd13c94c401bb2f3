"""Sizes of decode steps on a ladder, so that few recordings serve them all and most are made ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from poot_executor._attention_work import Work
from poot_executor._program import AttentionClass

__all__ = ["Recordings", "ladder", "rounded_work"]

_MOST_ROWS = 64
_FEW_ROWS = 8
_STEPS_OF_AN_OCTAVE = 4


class Recordings(NamedTuple):
    """What recording decode steps has cost an engine.

    Attributes:
        ahead: Recordings made while idle.
        in_steps: Recordings that a step waited for.
        ahead_s: Seconds of the former, all together.
        in_steps_s: Seconds of the latter.
        longest_s: Seconds of the longest that a step waited for.
    """

    ahead: int = 0
    in_steps: int = 0
    ahead_s: float = 0.0
    in_steps_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float, *, is_ahead: bool) -> Recordings:
        """Return these and one more."""
        if is_ahead:
            return self._replace(ahead=self.ahead + 1, ahead_s=self.ahead_s + seconds)
        return self._replace(
            in_steps=self.in_steps + 1,
            in_steps_s=self.in_steps_s + seconds,
            longest_s=max(self.longest_s, seconds),
        )


def rounded_work(work: Work, num_rows: int, capacity: int, max_splits: int) -> Work:
    """Return the sizes that a decode step is run with, at least its own.

    The items grow by the splits of single rows: without rounding a batch would meet new sizes every
    few steps. Items beyond those of the step have no keys. They are at most a quarter more, and the
    stride of partial results, of which only addresses depend, is a power of two.

    Args:
        work: Of the step.
        num_rows: Rows of the step; as many items are not rounded.
        capacity: Most items that the list holds.
        max_splits: Most splits of one token.

    >>> rounded_work(Work(77, 5), 64, 4096, 32)
    Work(num_items=128, max_splits=8)
    >>> rounded_work(Work(64, 1), 64, 4096, 32)
    Work(num_items=64, max_splits=1)
    >>> rounded_work(Work(9, 9), 1, 4096, 32)
    Work(num_items=10, max_splits=16)
    """
    octave = 1 << (work.num_items.bit_length() - 1)
    step = max(1, num_rows, octave // _STEPS_OF_AN_OCTAVE)
    items = -(-work.num_items // step) * step
    parts = 1 << (work.max_splits - 1).bit_length()
    return Work(min(items, capacity), min(parts, max_splits))


def ladder(
    attention: Sequence[AttentionClass], max_sequences: int, context_tokens: int
) -> Iterator[tuple[int, int]]:
    """Yield the decode steps that are worth recording ahead: rows, and the position of them all.

    Every number of rows up to 64 with contexts within one split, fewest rows first; then up to 8 rows
    with contexts of 2, 4, 8 splits and so on. That is at most 64 and 8 for each doubling.
    """
    split = min([a.split for a in attention], default=context_tokens)
    end = min(split, context_tokens)
    most = min(max_sequences, _MOST_ROWS)
    while True:
        for rows in range(1, most + 1):
            yield rows, end - 1
        if end >= context_tokens:
            return
        end, most = min(2 * end, context_tokens), min(max_sequences, _FEW_ROWS)
