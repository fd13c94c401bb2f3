"""Runs encoders: whole sequences of any requests, packed into ragged steps in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from poot_core import RequestError
from poot_executor import Engine, StepInputs
from poot_llm._encoder_text import EncodedText

__all__ = ["EncoderDriver", "EncoderResult", "EncoderStats"]

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class EncoderResult:
    """What became of a request.

    Attributes:
        request_id: The request.
        rows: (n, width) one row a sequence, in order.
        error: What went wrong, or None.
    """

    request_id: int
    rows: Float32
    error: str | None = None


@dataclass(slots=True)
class EncoderStats:
    """Counters since the start, and what waits now.

    Attributes:
        steps: Steps so far.
        device_s: Seconds in the engine.
        tokens: Tokens that steps took.
        rows: Sequences of the last step.
        row_tokens: Tokens of the last step.
        waiting: Sequences that wait.
        waiting_tokens: Their tokens.
    """

    steps: int = 0
    device_s: float = 0.0
    tokens: int = 0
    rows: int = 0
    row_tokens: int = 0
    waiting: int = 0
    waiting_tokens: int = 0


@dataclass(slots=True)
class _Job:
    request_id: int
    rows: Float32
    left: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Item:
    job: _Job
    index: int
    text: EncodedText = field(repr=False)


class EncoderDriver:
    """Sequences in, rows out. A row depends on its sequence alone, bit for bit.

    Args:
        engine: An engine of an encoder; a step must hold its longest sequence.
        takes_last: Whether the wanted position of a sequence is its last, not its first.
    """

    def __init__(self, engine: Engine, *, takes_last: bool) -> None:
        options = engine.info.options
        assert options.max_step_tokens >= options.context_tokens, "a sequence is never cut in two"
        self._engine = engine
        self._options = options
        self._takes_last = takes_last
        self._queue: deque[_Item] = deque()
        self._next_id = 0
        self.stats = EncoderStats()

    @property
    def has_work(self) -> bool:
        """Whether something waits."""
        return bool(self._queue)

    def add(self, texts: Sequence[EncodedText]) -> int:
        """Queue the sequences of one request and return its id; there must be one at least.

        Raises:
            RequestError: If one is longer than the engine's context.
        """
        most = self._options.context_tokens
        for text in texts:
            if not 1 <= len(text.ids) <= most:
                raise RequestError(f"a text has {len(text.ids)} tokens; it may have 1 to {most}")
        self._next_id += 1
        width = self._engine.info.vocab_size
        job = _Job(self._next_id, np.zeros((len(texts), width), np.float32), len(texts))
        self._queue.extend(_Item(job, index, text) for index, text in enumerate(texts))
        self.stats.waiting += len(texts)
        self.stats.waiting_tokens += sum(len(text.ids) for text in texts)
        return self._next_id

    def cancel(self, request_id: int) -> None:
        """Forget what waits of a request."""
        kept = [item for item in self._queue if item.job.request_id != request_id]
        self._queue = deque(kept)
        self.stats.waiting = len(kept)
        self.stats.waiting_tokens = sum(len(item.text.ids) for item in kept)

    def step(self) -> list[EncoderResult]:
        """Run as many waiting sequences as a step holds; return the requests that are complete.

        Raises:
            DeviceError: If the device fails.
        """
        items = self._take()
        start_s = perf_counter()
        self._engine.forward(self._inputs([item.text for item in items]))
        rows = self._engine.logits()
        faults = self._engine.step_faults()
        self.stats.device_s += perf_counter() - start_s
        done: list[EncoderResult] = []
        for number, item in enumerate(items):
            job = item.job
            job.rows[item.index] = rows[number]
            job.error = job.error or faults.get(number)
            job.left -= 1
            if not job.left:
                done.append(EncoderResult(job.request_id, job.rows, job.error))
        return done

    def _take(self) -> list[_Item]:
        items: list[_Item] = []
        tokens = 0
        while self._queue and len(items) < self._options.max_sequences:
            count = len(self._queue[0].text.ids)
            if tokens + count > self._options.max_step_tokens:
                break
            items.append(self._queue.popleft())
            tokens += count
        stats = self.stats
        stats.steps += 1
        stats.tokens += tokens
        stats.rows, stats.row_tokens = len(items), tokens
        stats.waiting -= len(items)
        stats.waiting_tokens -= tokens
        return items

    def _inputs(self, texts: list[EncodedText]) -> StepInputs:
        """Return the step; each sequence gets the next free blocks of a pool that is empty before."""
        size = self._options.block_size
        lengths = np.array([len(text.ids) for text in texts], np.int32)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        blocks = -(-lengths // size)
        first_blocks = np.cumsum(blocks) - blocks
        columns = np.arange(self._options.max_blocks_per_row)
        used = columns < blocks[:, None]
        tables = np.where(used, first_blocks[:, None] + columns, 0).astype(np.int32)
        positions = np.arange(ends[-1]) - np.repeat(starts, lengths)
        return StepInputs(
            token_ids=np.concatenate([text.ids for text in texts]),
            positions=positions.astype(np.int32),
            rows=np.repeat(np.arange(len(texts)), lengths).astype(np.int32),
            sequence_lengths=lengths,
            block_tables=tables,
            slot_mapping=(np.repeat(first_blocks * size, lengths) + positions).astype(np.int32),
            logit_positions=((ends - 1) if self._takes_last else starts).astype(np.int32),
            token_types=np.concatenate([text.types for text in texts]),
        )
