"""Builds the arrays of a step from its plan, in memory that is allocated once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_executor import EngineOptions, StepInputs
from poot_llm._rows import RowTable
from poot_llm._scheduler import DecodeGroup, StepPlan

__all__ = ["StepBuilder"]


class StepBuilder:
    """Fills the arrays of ``StepInputs``; what it returns is overwritten by the next step.

    Args:
        options: Bounds of a step.
        table: Rows of running sequences.
        max_logits: Most rows of logits of a step.
    """

    def __init__(self, options: EngineOptions, table: RowTable, max_logits: int) -> None:
        rows, tokens = options.max_sequences, options.max_step_tokens
        self._table = table
        self._block_size = options.block_size
        self._token_ids = np.zeros(tokens, np.int32)
        self._positions = np.zeros(tokens, np.int32)
        self._rows = np.zeros(tokens, np.int32)
        self._slots = np.zeros(tokens, np.int32)
        self._lengths = np.zeros(rows, np.int32)
        self._tables = np.zeros((rows, options.max_blocks_per_row), np.int32)
        self._wanted = np.zeros(max_logits, np.int32)
        self._feeds = np.zeros((rows, 2), np.int32)
        self._ascending = np.arange(max(rows, tokens, options.context_tokens), dtype=np.int32)
        # Whose arrays stand in front, and as of which version of the table.
        self._held: DecodeGroup | None = None
        self._held_version = -1
        self._decode_steps: dict[tuple[int, int], StepInputs] = {}

    def build(self, plan: StepPlan, *, is_ahead: bool = False) -> StepInputs:
        """Return the step that a plan describes.

        Args:
            plan: What to compute.
            is_ahead: Whether the step before it is still under way: rows whose last token is not known
                are fed by the engine. Any id stands in their places.
        """
        self._fill_decodes(plan.group)
        num_fed = self._fill_feeds(plan.rows) if is_ahead else 0
        if not plan.chunks:
            return self._decode_step(plan.rows.size, num_fed)
        return self._mixed_step(plan, num_fed)

    def _fill_feeds(self, rows: NDArray[np.intp]) -> int:
        table = self._table
        places = np.flatnonzero(table.computed[rows] >= table.length[rows])
        count = places.size
        self._feeds[:count, 0] = places
        self._feeds[:count, 1] = rows[places]  # the sampler's slots are rows of the table
        return count

    def _fill_decodes(self, group: DecodeGroup) -> None:
        rows = group.rows
        count = rows.size
        if not count:
            return
        table, size = self._table, self._block_size
        positions, slots = self._positions[:count], self._slots[:count]
        # The rows are in range; mode "clip" is what NumPy does without a copy.
        np.take(table.last, rows, out=self._token_ids[:count], mode="clip")
        if self._held is group and not group.is_at_border:
            positions += 1
            slots += 1
            self._lengths[:count] += 1
            return
        np.take(table.computed, rows, out=positions, mode="clip")
        np.add(positions, 1, out=self._lengths[:count])
        places, offsets = np.divmod(positions, size)
        np.multiply(table.tables[rows, places], size, out=slots)
        slots += offsets
        if self._held is not group or self._held_version != table.version:
            np.take(table.tables, rows, axis=0, out=self._tables[:count], mode="clip")
            self._held, self._held_version = group, table.version

    def _decode_step(self, count: int, num_fed: int) -> StepInputs:
        """One token a row and one row of logits a token: the arrays but for contents stay the same."""
        step = self._decode_steps.get((count, num_fed))
        if step is None:
            step = self._decode_steps[count, num_fed] = StepInputs(
                token_ids=self._token_ids[:count],
                positions=self._positions[:count],
                rows=self._ascending[:count],
                sequence_lengths=self._lengths[:count],
                block_tables=self._tables[:count],
                slot_mapping=self._slots[:count],
                logit_positions=self._ascending[:count],
                feeds=self._feeds[:num_fed] if num_fed else None,
            )
        return step

    def _mixed_step(self, plan: StepPlan, num_fed: int) -> StepInputs:
        table, size = self._table, self._block_size
        start = wanted = place = plan.rows.size
        self._rows[:start] = self._ascending[:start]
        self._wanted[:start] = self._ascending[:start]
        for chunk in plan.chunks:
            row = chunk.sequence.row
            assert row is not None, "it runs"
            end = start + chunk.count
            first, last = chunk.start, chunk.start + chunk.count
            positions = self._ascending[first:last]
            self._token_ids[start:end] = table.tokens[row, first:last]
            self._positions[start:end] = positions
            self._rows[start:end] = place
            self._slots[start:end] = table.tables[row, positions // size] * size
            self._slots[start:end] += positions % size
            self._lengths[place] = last
            self._tables[place] = table.tables[row]
            want = chunk.num_logits
            self._wanted[wanted : wanted + want] = self._ascending[end - want : end]
            start, wanted, place = end, wanted + want, place + 1
        return StepInputs(
            token_ids=self._token_ids[:start],
            positions=self._positions[:start],
            rows=self._rows[:start],
            sequence_lengths=self._lengths[:place],
            block_tables=self._tables[:place],
            slot_mapping=self._slots[:start],
            logit_positions=self._wanted[:wanted],
            feeds=self._feeds[:num_fed] if num_fed else None,
        )
