"""Builds the arrays of a step from its rows, in memory that is allocated once."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np

from poot_executor import EngineOptions, StepInputs
from poot_llm._sequence import Sequence

__all__ = ["StepBuilder"]


class StepBuilder:
    """Fills the arrays of ``StepInputs``; what it returns is overwritten by the next step.

    Args:
        options: Bounds of a step.
    """

    def __init__(self, options: EngineOptions) -> None:
        rows, tokens = options.max_sequences, options.max_step_tokens
        self._block_size = options.block_size
        self._token_ids = np.zeros(tokens, np.int32)
        self._positions = np.zeros(tokens, np.int32)
        self._rows = np.zeros(tokens, np.int32)
        self._slots = np.zeros(tokens, np.int32)
        self._lengths = np.zeros(rows, np.int32)
        self._tables = np.zeros((rows, options.max_blocks_per_row), np.int32)
        self._wanted = np.zeros(max(rows, tokens), np.int32)
        self._ascending = np.arange(max(rows, tokens, options.context_tokens), dtype=np.int32)
        # Which sequence, and which version of its blocks, each row of the tables holds.
        self._owners: list[Sequence | None] = [None] * rows
        self._versions = [0] * rows
        self._decode_steps: dict[int, StepInputs] = {}

    def build(self, rows: Rows[Sequence]) -> StepInputs:
        """Return the step that computes ``scheduled`` tokens of each row."""
        count = 0
        for place, sequence in enumerate(rows):
            count += sequence.scheduled
            if (
                self._owners[place] is not sequence
                or self._versions[place] != sequence.blocks_version
            ):
                self._fill_table(place, sequence)
        if count == len(rows) and not any(sequence.scores_prompt for sequence in rows):
            return self._decode_step(rows)
        return self._mixed_step(rows, count)

    def forget(self) -> None:
        """Drop references to sequences that ended."""
        self._owners = [None] * len(self._owners)

    def _fill_table(self, place: int, sequence: Sequence) -> None:
        table = self._tables[place]
        count = len(sequence.blocks)
        table[:count] = sequence.blocks
        table[count:] = 0
        self._owners[place] = sequence
        self._versions[place] = sequence.blocks_version

    def _decode_step(self, rows: Rows[Sequence]) -> StepInputs:
        """One token a row and one row of logits a token: the arrays but for contents stay the same."""
        count = len(rows)
        size = self._block_size
        positions = [sequence.computed for sequence in rows]
        self._positions[:count] = positions
        self._token_ids[:count] = [sequence.tokens[sequence.computed] for sequence in rows]
        self._slots[:count] = [
            sequence.blocks[position // size] * size + position % size
            for sequence, position in zip(rows, positions, strict=True)
        ]
        np.add(self._positions[:count], 1, out=self._lengths[:count])
        step = self._decode_steps.get(count)
        if step is None:
            step = self._decode_steps[count] = StepInputs(
                token_ids=self._token_ids[:count],
                positions=self._positions[:count],
                rows=self._ascending[:count],
                sequence_lengths=self._lengths[:count],
                block_tables=self._tables[:count],
                slot_mapping=self._slots[:count],
                logit_positions=self._ascending[:count],
            )
        return step

    def _mixed_step(self, rows: Rows[Sequence], count: int) -> StepInputs:
        size = self._block_size
        start = wanted = 0
        for place, sequence in enumerate(rows):
            end = start + sequence.scheduled
            first, last = sequence.computed, sequence.computed + sequence.scheduled
            positions = self._ascending[first:last]
            self._token_ids[start:end] = sequence.tokens[first:last]
            self._positions[start:end] = positions
            self._rows[start:end] = place
            self._slots[start:end] = self._tables[place, positions // size] * size
            self._slots[start:end] += positions % size
            self._lengths[place] = last
            want = sequence.wanted
            self._wanted[wanted : wanted + want] = self._ascending[end - want : end]
            start, wanted = end, wanted + want
        return StepInputs(
            token_ids=self._token_ids[:count],
            positions=self._positions[:count],
            rows=self._rows[:count],
            sequence_lengths=self._lengths[: len(rows)],
            block_tables=self._tables[: len(rows)],
            slot_mapping=self._slots[:count],
            logit_positions=self._wanted[:wanted],
        )
