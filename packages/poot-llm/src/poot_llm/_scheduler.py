"""The scheduler: which tokens of which sequences go into the next step.

Continuous batching (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve, arXiv:2403.02310): every
sequence that decodes gets its token first, then prompts fill the rest of the step's token budget,
first come first served. When the pool runs out the youngest sequence is put back and its keys and
values are computed anew later; its tokens are kept, so nothing of its answer changes.
"""

from __future__ import annotations

from collections import deque

from poot_llm._blocks import BlockManager
from poot_llm._sequence import Sequence

__all__ = ["Scheduler"]


class Scheduler:
    """Plans steps.

    Args:
        blocks: The pool.
        block_size: Tokens of one block.
        max_sequences: Most rows of a step.
        max_step_tokens: Most tokens of a step; at least ``max_sequences``.
    """

    def __init__(
        self, blocks: BlockManager, *, block_size: int, max_sequences: int, max_step_tokens: int
    ) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens
        # Both in order of arrival: whoever runs came before whoever waits.
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._spare_logits = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that ended and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._release(sequence)

    def plan(self) -> list[Sequence]:
        """Return the rows of the next step with ``scheduled`` and ``wanted`` set, and their blocks.

        Rows that decode stand first. The list is empty when there is no work.
        """
        preemptions = self.preemptions
        rows = self._plan_decodes()
        if len(rows) < len(self.running) or self.waiting:
            # A step never wants more rows of logits than max_sequences. Each running sequence may
            # want one; prompts whose logits are all wanted share what is left.
            self._spare_logits = self._max_sequences - len(self.running)
            budget = self._plan_prefills(rows, self._max_step_tokens - len(rows))
            if self.preemptions == preemptions:
                self._admit(rows, budget)
        return rows

    def _plan_decodes(self) -> list[Sequence]:
        rows: list[Sequence] = []
        running = self.running
        block_size = self._block_size
        place = 0
        while place < len(running):
            sequence = running[place]
            place += 1
            computed = sequence.computed
            if sequence.length - computed != 1 or sequence.scores_prompt:
                continue
            if computed >= len(sequence.blocks) * block_size and not self._grow(sequence):
                break
            sequence.scheduled = sequence.wanted = 1
            rows.append(sequence)
        return rows

    def _plan_prefills(self, rows: list[Sequence], budget: int) -> int:
        for sequence in self.running:
            if budget and (sequence.pending > 1 or sequence.scores_prompt):
                budget -= self._plan_chunk(sequence, budget)
                rows.append(sequence)
        return budget

    def _admit(self, rows: list[Sequence], budget: int) -> None:
        while self.waiting and budget > 0 and self._spare_logits > 0:
            sequence = self.waiting[0]
            count = -(-sequence.length // self._block_size)
            # Whoever runs may want a block soon; to admit now and put back next step is waste.
            if self._blocks.num_free < count + len(self.running):
                return
            blocks = self._blocks.allocate(count)
            assert blocks is not None, "free blocks were counted"
            self.waiting.popleft()
            self.running.append(sequence)
            self._spare_logits -= 1
            sequence.blocks = blocks
            sequence.blocks_version += 1
            budget -= self._plan_chunk(sequence, budget)
            rows.append(sequence)

    def _plan_chunk(self, sequence: Sequence, budget: int) -> int:
        count = min(sequence.pending, budget)
        if sequence.scores_prompt:
            count = min(count, 1 + self._spare_logits)
            self._spare_logits -= count - 1
            sequence.wanted = count
        else:
            sequence.wanted = int(count == sequence.pending)
        sequence.scheduled = count
        return count

    def _grow(self, sequence: Sequence) -> bool:
        """Give a sequence one more block; return False where it was itself put back."""
        while (blocks := self._blocks.allocate(1)) is None:
            victim = self.running.pop()
            self._release(victim)
            victim.restart()
            self.waiting.appendleft(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        sequence.blocks += blocks
        sequence.blocks_version += 1
        return True

    def _release(self, sequence: Sequence) -> None:
        self._blocks.free(reversed(sequence.blocks))
        sequence.blocks = []
        sequence.blocks_version += 1
