"""The scheduler: which tokens of which sequences go into the next step.

Continuous batching (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve, arXiv:2403.02310): every
sequence that decodes gets its token first, then prompts fill what the pace allows of the step's token
budget, in order of priority and arrival. Where all that decode have only just begun, prompts that wait
go first for a moment, so that a burst of requests begins and decodes together. When the pool runs out
the last in that order is put back and its keys and values are computed anew later; its tokens are kept,
so nothing of its answer changes.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from poot_llm._blocks import BlockManager
from poot_llm._pace import Pace
from poot_llm._rows import RowTable
from poot_llm._sequence import Sequence

__all__ = ["Chunk", "DecodeGroup", "Scheduler", "StepPlan"]

_MOST_PASSED_OVER = 64
"""Waiting sequences that are looked at in one step beyond those that are admitted."""


@dataclass(slots=True)
class Chunk:
    """A piece of a prompt in a step.

    Attributes:
        sequence: Whose prompt it is.
        start: First position.
        count: Tokens.
        num_logits: How many of the last positions' logits are wanted.
        is_last: Whether it completes the prompt.
    """

    sequence: Sequence
    start: int
    count: int
    num_logits: int
    is_last: bool


class DecodeGroup:
    """Rows that decode together, and what stays true of them from step to step.

    A new group is made whenever a row comes or goes, so that an ordinary step looks at little.

    Attributes:
        rows: (D,) rows of the table.
        request_ids: Whose they are.
        care: (D,) whether a row's tokens are chosen or looked at one by one.
        has_care: Whether any row's are.
        sampled: (n,) places of rows whose tokens the engine's sampler chooses.
        sampled_places: For each of these places the number of the row among them.
        is_new: Whether no row has had a token but its first.
        steps_to_border: Steps until a row has filled its last block.
        is_at_border: Whether one has in the step that is planned.
        steps_to_limit: Steps until a row is as long as it may be.
    """

    __slots__ = (
        "care", "has_care", "is_at_border", "is_new", "request_ids", "rows", "sampled",
        "sampled_places", "steps_to_border", "steps_to_limit",
    )  # fmt: skip

    def __init__(
        self, table: RowTable, rows: NDArray[np.intp], block_size: int, *, is_new: bool = False
    ) -> None:
        self.rows = rows
        self.request_ids: list[int] = table.request_ids[rows].tolist()
        self.care = table.needs_care[rows]
        self.has_care = bool(self.care.any())
        self.sampled = np.flatnonzero(table.is_sampled[rows])
        self.sampled_places = {place: n for n, place in enumerate(self.sampled.tolist())}
        self.is_at_border = False
        self.is_new = is_new
        self.steps_to_border = self.steps_to_limit = 0
        if rows.size:
            computed = table.computed[rows]
            self.steps_to_border = int((-computed % block_size).min())
            # By what is computed: the last token may not be known yet.
            self.steps_to_limit = int((table.limit[rows] - computed).min()) - 1


@dataclass(slots=True)
class StepPlan:
    """What a step computes: first one token of each row that decodes, then chunks of prompts.

    Attributes:
        group: Rows that decode.
        chunks: Pieces of prompts.
        reaches_limit: Whether a row that decodes gets its last token; set by ``Scheduler.advance``.
        filled: Sequences that may have filled a block, and how many are full after the step; likewise.
    """

    group: DecodeGroup
    chunks: list[Chunk]
    reaches_limit: bool = False
    filled: list[tuple[Sequence, int]] = field(default_factory=list[tuple[Sequence, int]])

    @property
    def rows(self) -> NDArray[np.intp]:
        """(D,) rows of the table that decode."""
        return self.group.rows

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(chunk.count for chunk in self.chunks)


class Scheduler:
    """Plans steps.

    Args:
        table: Rows of running sequences.
        blocks: The pool.
        block_size: Tokens of one block.
        max_step_tokens: Most tokens of a step; at least as many as the table has rows.
        max_logits: Most rows of logits of a step; at least as many as the table has rows.
        pace: Bounds prompt tokens in steps that decode.
        shares_prefixes: Whether blocks with equal content are shared and kept.
        samples_greedy: Whether the engine's sampler chooses greedy tokens as well.

    Attributes:
        waiting: In order of their keys.
        running: In order of admission.
        preemptions: Sequences put back so far.
        query_tokens: Prompt tokens looked up in the prefix cache so far.
        hit_tokens: Prompt tokens found there so far.
        num_host_bound: Running sequences that need the host between two steps.
    """

    def __init__(
        self,
        table: RowTable,
        blocks: BlockManager,
        *,
        block_size: int,
        max_step_tokens: int,
        max_logits: int,
        pace: Pace,
        shares_prefixes: bool,
        samples_greedy: bool = False,
    ) -> None:
        self._table = table
        self._blocks = blocks
        self._block_size = block_size
        self._max_step_tokens = max_step_tokens
        self._max_logits = max_logits
        self._pace = pace
        self._shares_prefixes = shares_prefixes
        self._samples_greedy = samples_greedy
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self.num_host_bound = 0
        self._queued_tokens = 0
        self._by_row: list[Sequence | None] = [None] * table.num_free
        self._nobody = DecodeGroup(table, np.zeros(0, np.intp), block_size)
        self._decoding: DecodeGroup | None = None  # None after any change
        self._prefilling: list[Sequence] = []
        # Who computes the block of a hash that is not there yet.
        self._computing: dict[bytes, Sequence] = {}
        self._spare_logits = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.running or self.waiting)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of waiting sequences and of prompts under way that are not computed yet."""
        if not self._prefilling:
            return self._queued_tokens
        rows = [sequence.row for sequence in self._prefilling if sequence.row is not None]
        table = self._table
        return self._queued_tokens + int((table.length[rows] - table.computed[rows]).sum())

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        if self._shares_prefixes:
            sequence.extend_hashes(sequence.tokens, self._block_size)
        self._wait(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that ended and free its blocks."""
        if sequence.row is None:
            self.waiting.remove(sequence)
            self._queued_tokens -= sequence.tokens.size
        else:
            self._leave(sequence)

    def sequence_at(self, row: int) -> Sequence:
        """Return whose row it is."""
        sequence = self._by_row[row]
        assert sequence is not None, f"row {row} belongs to nobody"
        return sequence

    def plan(self, now_s: float, *, may_put_back: bool = True) -> StepPlan | None:
        """Return the next step; its blocks are there. It is empty when there is no work.

        Args:
            now_s: On the clock of the sequences (``time.perf_counter``).
            may_put_back: Whether sequences may be put back for want of blocks, which is only right
                while no step is under way.

        Returns:
            The step, or None where a sequence would have to be put back and may not.
        """
        has_prompts = bool(self._prefilling or self.waiting)
        if has_prompts and (budget := self._opening_budget(now_s)):
            chunks = self._plan_prompts(budget, admits=True)
            if chunks:
                return StepPlan(self._nobody, chunks)
        preemptions = self.preemptions
        group = self._plan_decodes(may_put_back=may_put_back)
        if group is None:
            return None
        if not has_prompts:
            return StepPlan(group, [])
        num_decodes = group.rows.size
        budget = self._max_step_tokens - num_decodes
        if num_decodes:
            budget = min(budget, self._pace.allowance(num_decodes))
        return StepPlan(group, self._plan_prompts(budget, admits=self.preemptions == preemptions))

    def advance(self, plan: StepPlan) -> None:
        """Count what the step computes; once it is handed over, before its tokens are known."""
        table = self._table
        group = plan.group
        rows = group.rows
        if rows.size:
            table.computed[rows] += 1
            group.steps_to_border -= 1
            group.steps_to_limit -= 1
            if group.is_new:
                group.is_new = False
                for sequence in self.running:
                    if sequence.is_decoding:
                        sequence.is_new = False
            if group.steps_to_border == 0 and self._shares_prefixes:
                for row in rows[table.computed[rows] % self._block_size == 0]:
                    known = int(table.computed[row]) // self._block_size
                    plan.filled.append((self.sequence_at(row), known))
            if group.steps_to_limit <= 0:
                plan.reaches_limit = True
                for row in rows[table.computed[rows] + 1 >= table.limit[rows]]:
                    self._spend(self.sequence_at(row))
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert sequence.row is not None, "it runs"
            end = chunk.start + chunk.count
            table.computed[sequence.row] = end
            if self._shares_prefixes:
                plan.filled.append((sequence, end // self._block_size))
            if chunk.is_last:
                self._prefilling.remove(sequence)
                self._decoding = None
                if end + 1 < sequence.limit:
                    sequence.is_decoding = True
                else:
                    sequence.is_spent = True

    def _spend(self, sequence: Sequence) -> None:
        sequence.is_decoding, sequence.is_spent = False, True
        self._decoding = None

    def settle(self, plan: StepPlan) -> None:
        """Name the blocks that a step completed, once it has been read and what failed has ended."""
        for sequence, known in plan.filled:
            if sequence.row is not None:  # what has ended holds nothing
                self._name_blocks(sequence, known)

    def _plan_decodes(self, *, may_put_back: bool) -> DecodeGroup | None:
        group = self._decode_group()
        group.is_at_border = group.steps_to_border == 0 and group.rows.size > 0
        if not group.is_at_border:
            return group
        table, rows = self._table, group.rows
        for row in rows[table.computed[rows] >= table.num_blocks[rows] * self._block_size]:
            sequence = self._by_row[row]
            if sequence is not None and sequence.is_decoding:  # it may just have been put back
                if not may_put_back and not self._blocks.num_free:
                    return None
                self._grow(sequence)
        group = self._decode_group()
        if group.rows.size:
            left = self._block_size - table.computed[group.rows] % self._block_size
            group.steps_to_border = int(left.min())
            group.is_at_border = True
        return group

    def _decode_group(self) -> DecodeGroup:
        if self._decoding is None:
            listed = [sequence for sequence in self.running if sequence.is_decoding]
            rows = np.array([sequence.row for sequence in listed], np.intp)
            is_new = all(sequence.is_new for sequence in listed)
            if not is_new:  # beside the others they decode at once
                for sequence in listed:
                    sequence.is_new = False
            self._decoding = DecodeGroup(self._table, rows, self._block_size, is_new=is_new)
        return self._decoding

    def _opening_budget(self, now_s: float) -> int:
        """Return how many prompt tokens go before rows that have all just begun to decode."""
        group = self._decode_group()
        if not group.is_new or not group.rows.size:
            return 0
        begun = [sequence.first_token_s for sequence in self.running if sequence.is_decoding]
        since_s = min(first_s or now_s for first_s in begun)  # a first token may be under way
        return min(self._max_step_tokens, self._pace.opening(now_s - since_s))

    def _plan_prompts(self, budget: int, *, admits: bool) -> list[Chunk]:
        """Return chunks of at most so many tokens: prompts under way, then those that are admitted."""
        chunks: list[Chunk] = []
        # Each running sequence may want a row of logits; scored prompts share what is left.
        self._spare_logits = self._max_logits - len(self.running)
        for sequence in self._prefilling:
            if budget:
                budget -= self._plan_chunk(sequence, budget, chunks)
        if admits:
            self._admit(budget, chunks)
        return chunks

    def _plan_chunk(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        table = self._table
        row = sequence.row
        assert row is not None, "it runs"
        start = int(table.computed[row])
        pending = int(table.length[row]) - start
        count = min(pending, budget)
        wanted = int(count == pending)
        if sequence.scores is not None:
            wanted = count = min(count, 1 + self._spare_logits)
            self._spare_logits -= count - 1
        chunks.append(Chunk(sequence, start, count, wanted, count == pending))
        return count

    def _admit(self, budget: int, chunks: list[Chunk]) -> None:
        place = 0
        while budget > 0 and self._spare_logits > 0 and self._table.num_free:
            if place >= min(len(self.waiting), _MOST_PASSED_OVER):
                return
            sequence = self.waiting[place]
            shared = self._shared_blocks(sequence)
            if self._is_computed_by_another(sequence, len(shared)):
                place += 1
                continue
            needed = -(-sequence.tokens.size // self._block_size) - len(shared)
            left = self._blocks.num_free - self._blocks.num_idle_among(shared)
            # Whoever runs may want a block soon; to admit now and put back next step is waste.
            if left < needed + len(self.running):
                return
            del self.waiting[place]
            self._queued_tokens -= sequence.tokens.size
            self._start(sequence, shared, needed)
            budget -= self._plan_chunk(sequence, budget, chunks)

    def _shared_blocks(self, sequence: Sequence) -> list[int]:
        """Return blocks with the sequence's own content; one token at least is left to compute."""
        if not self._shares_prefixes or sequence.scores is not None:
            return []
        most = (sequence.tokens.size - 1) // self._block_size
        return self._blocks.match(sequence.hashes[:most])

    def _is_computed_by_another(self, sequence: Sequence, num_shared: int) -> bool:
        if not self._shares_prefixes or sequence.scores is not None:
            return False
        most = (sequence.tokens.size - 1) // self._block_size
        return num_shared < most and sequence.hashes[num_shared] in self._computing

    def _start(self, sequence: Sequence, shared: list[int], needed: int) -> None:
        """Give a sequence a row and its blocks."""
        table = self._table
        self._blocks.share(shared)
        blocks = self._blocks.allocate(needed)
        assert blocks is not None, "free blocks were counted"
        row = sequence.row = table.take()
        self._by_row[row] = sequence
        self.running.append(sequence)
        self._prefilling.append(sequence)
        self._spare_logits -= 1
        size = sequence.tokens.size
        found = len(shared) * self._block_size
        table.tokens[row, :size] = sequence.tokens
        table.length[row] = size
        table.last[row] = sequence.tokens[-1]
        table.computed[row] = found
        table.limit[row] = sequence.limit
        table.request_ids[row] = sequence.request_id
        table.obeys_eos[row] = sequence.obeys_eos
        sampler = sequence.sampler
        is_sampled = sampler.is_on_device and (self._samples_greedy or not sampler.is_plain)
        table.is_sampled[row] = is_sampled
        self.num_host_bound += sequence.needs_host
        if is_sampled:
            table.words[row] = sampler.words(row)
        is_looked_at = not sampler.is_on_device or sampler.counts_tokens
        table.needs_care[row] = is_looked_at or bool(sequence.stop_ids)
        table.append_blocks(row, [*shared, *blocks])
        if sequence.cached_tokens is None:
            sequence.cached_tokens = found
            if self._shares_prefixes:
                self.query_tokens += size
                self.hit_tokens += found
        if self._shares_prefixes:
            sequence.num_named = len(shared)
            for name in sequence.hashes[len(shared) :]:
                self._computing.setdefault(name, sequence)

    def _name_blocks(self, sequence: Sequence, known: int) -> None:
        """Tell the pool what the first ``known`` blocks of a sequence, all full, hold."""
        table = self._table
        row = sequence.row
        assert row is not None, "it runs"
        if known > len(sequence.hashes):
            tokens = table.tokens[row, : known * self._block_size]
            sequence.extend_hashes(tokens, self._block_size)
        for place in range(sequence.num_named, known):
            name = sequence.hashes[place]
            self._blocks.name(int(table.tables[row, place]), name)
            if self._computing.get(name) is sequence:
                del self._computing[name]
        sequence.num_named = known

    def _wait(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_key)
        self._queued_tokens += sequence.tokens.size

    def _grow(self, sequence: Sequence) -> None:
        """Give a sequence one more block, or put it back."""
        while (blocks := self._blocks.allocate(1)) is None:
            victim = max(self.running, key=_key)
            self._put_back(victim)
            if victim is sequence:
                return
        assert sequence.row is not None, "it runs"
        self._table.append_blocks(sequence.row, blocks)

    def _put_back(self, sequence: Sequence) -> None:
        row = sequence.row
        assert row is not None, "it runs"
        sequence.tokens = self._table.tokens[row, : self._table.length[row]].copy()
        self._leave(sequence)
        if sequence.scores is not None:
            sequence.scores.restart()
        sequence.preemptions += 1
        self.preemptions += 1
        self._wait(sequence)

    def _leave(self, sequence: Sequence) -> None:
        row = sequence.row
        assert row is not None, "it runs"
        if sequence.is_decoding:
            sequence.is_decoding = False
            self._decoding = None
        elif sequence.is_spent:
            sequence.is_spent = False
        else:
            self._prefilling.remove(sequence)
        if self._shares_prefixes:
            for name in sequence.hashes[sequence.num_named :]:
                if self._computing.get(name) is sequence:
                    del self._computing[name]
        self.num_host_bound -= sequence.needs_host
        # Later blocks are worth less than those before them: they go first.
        self._blocks.free(reversed(self._table.blocks(row)))
        self.running.remove(sequence)
        self._by_row[row] = None
        self._table.give_back(row)
        sequence.row = None


def _key(sequence: Sequence) -> tuple[int, int]:
    return sequence.key
