"""The driver: requests of token ids in, events of token ids out, one ragged step at a time.

It knows no text. Tokenizing, detokenizing, stop strings and chat templates stand above it (``LLM``) or
in another process (a server).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, PootError, RequestError, SettingsError
from poot_executor import Engine
from poot_llm._batch import StepBuilder
from poot_llm._blocks import BlockManager
from poot_llm._errors import ContextLengthError
from poot_llm._request import FinishReason, Request, ScoredPrompt, Timings, TokenEvent
from poot_llm._sampler import Logprobs
from poot_llm._scheduler import Scheduler
from poot_llm._sequence import Sequence

__all__ = ["Driver", "DriverStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStats:
    """What the driver holds at this moment.

    Attributes:
        num_running: Sequences with blocks.
        num_waiting: Sequences in the queue.
        num_free_blocks: Blocks that nobody holds.
        num_blocks: Blocks of the pool.
        preemptions: Sequences put back for want of blocks since the start.
        steps: Steps since the start.
    """

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    preemptions: int
    steps: int


class Driver:
    """Runs requests over one engine; not thread-safe.

    Args:
        engine: Any implementation of the engine protocol. The caller closes it.
        eos_token_ids: Tokens that end an answer unless ``ignore_eos`` is set.

    Raises:
        SettingsError: If the engine's pool cannot hold one full sequence, or a step not one token of
            every sequence.
    """

    def __init__(self, engine: Engine, *, eos_token_ids: Iterable[int] = ()) -> None:
        info = engine.info
        options = info.options
        if options.num_blocks < options.max_blocks_per_row:
            raise SettingsError(
                f"the pool has {options.num_blocks} blocks of {options.block_size} tokens and one "
                f"sequence of {options.context_tokens} tokens needs {options.max_blocks_per_row}; "
                "raise num_blocks or lower the context"
            )
        if options.max_step_tokens < options.max_sequences:
            raise SettingsError(
                f"max_step_tokens is {options.max_step_tokens}; it must be at least max_sequences, "
                f"{options.max_sequences}, so that each sequence gets its token"
            )
        self._engine = engine
        self._vocab_size = info.vocab_size
        self._context_tokens = options.context_tokens
        self._eos_token_ids = frozenset(eos_token_ids)
        self._blocks = BlockManager(options.num_blocks)
        self._scheduler = Scheduler(
            self._blocks,
            block_size=options.block_size,
            max_sequences=options.max_sequences,
            max_step_tokens=options.max_step_tokens,
        )
        self._builder = StepBuilder(options)
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0
        self._steps = 0
        self._failure: str | None = None

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do."""
        return self._scheduler.has_work

    @property
    def context_tokens(self) -> int:
        """Most tokens of one sequence."""
        return self._context_tokens

    @property
    def stats(self) -> DriverStats:
        """What the driver holds at this moment."""
        return DriverStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_free_blocks=self._blocks.num_free,
            num_blocks=self._blocks.num_blocks,
            preemptions=self._scheduler.preemptions,
            steps=self._steps,
        )

    def check(self, request: Request) -> NDArray[np.int32]:
        """Return the prompt as it goes into the model.

        Raises:
            RequestError: If the prompt is empty, or it or the bias holds an id outside the vocabulary.
            ContextLengthError: If the prompt does not fit.
        """
        prompt = check_prompt(request.prompt_ids, self._vocab_size)
        answer_tokens = 0 if request.scores_prompt else 1
        if prompt.size + answer_tokens > self._context_tokens:
            raise ContextLengthError.of(prompt.size, self._context_tokens)
        for token_id in request.params.logit_bias:
            if token_id >= self._vocab_size:
                raise RequestError(
                    f"logit_bias names token {token_id}; the vocabulary holds ids 0 to "
                    f"{self._vocab_size - 1}",
                    field="logit_bias",
                )
        return prompt

    def add(self, request: Request) -> int:
        """Queue a request and return its id, which is never used again.

        Raises:
            RequestError: If the prompt is empty, or it or the bias holds an id outside the vocabulary.
            ContextLengthError: If the prompt does not fit.
            DeviceError: If an earlier step failed.
        """
        self._require_working()
        prompt = self.check(request)
        params = request.params
        room = 0 if request.scores_prompt else self._context_tokens - prompt.size
        if params.max_tokens is not None:
            room = min(room, params.max_tokens)
        request_id = self._next_id
        self._next_id += 1
        ends = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            ends |= self._eos_token_ids
        sequence = Sequence(
            request_id,
            request,
            prompt,
            limit=prompt.size + room,
            end_ids=ends,
            vocab_size=self._vocab_size,
        )
        self._sequences[request_id] = sequence
        self._scheduler.add(sequence)
        return request_id

    def cancel(self, request_id: int) -> Timings | None:
        """Forget a request, between steps; no event follows.

        Returns:
            Where its time went, or None where it was not under way.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        self._drop(sequence)
        return sequence.timings(perf_counter())

    def step(self) -> list[TokenEvent]:
        """Run one step and return what it did for each request that got a token or ended.

        Raises:
            DeviceError: If the device failed; every request is lost then, and so is the engine.
        """
        self._require_working()
        rows = self._scheduler.plan()
        if not rows:
            return []
        now = perf_counter()
        for sequence in rows:
            if sequence.first_step_s == 0.0:
                sequence.first_step_s = now
        try:
            self._engine.forward(self._builder.build(rows))
            faults = self._engine.step_faults()
        except PootError as error:
            self._failure = str(error)
            raise
        self._steps += 1
        return self._commit(rows, faults)

    def _require_working(self) -> None:
        if self._failure is not None:
            raise DeviceError(f"the engine failed earlier and must be opened anew: {self._failure}")

    def _commit(self, rows: list[Sequence], faults: Mapping[int, str]) -> list[TokenEvent]:
        events: list[TokenEvent] = []
        greedy: list[int] = []
        next_row = 0
        now = perf_counter()
        for place, sequence in enumerate(rows):
            row = next_row
            next_row += sequence.wanted
            sequence.computed += sequence.scheduled
            if faults and place in faults:
                events.append(self._finish(sequence, "error", now, error=faults[place]))
            elif sequence.wanted == 0:
                continue
            elif sequence.scores_prompt:
                rows_of_it = self._engine.logits()[row : row + sequence.wanted]
                sequence.logit_rows.append(rows_of_it.copy())
                if sequence.pending == 0:
                    events.append(self._finish(sequence, "scored", now))
            elif sequence.sampler.is_plain:
                if not greedy:
                    greedy = self._engine.greedy().tolist()
                events.append(self._accept(sequence, greedy[row], None, now))
            else:
                events.append(self._sample(sequence, self._engine.logits()[row], now))
        return events

    def _sample(self, sequence: Sequence, logits: NDArray[np.float32], now_s: float) -> TokenEvent:
        try:
            token_id, logprobs = sequence.sampler.choose(
                logits, position=sequence.length, generated=sequence.generated
            )
        except FloatingPointError as error:
            return self._finish(sequence, "error", now_s, error=str(error))
        return self._accept(sequence, token_id, logprobs, now_s)

    def _accept(
        self, sequence: Sequence, token_id: int, logprobs: Logprobs | None, now_s: float
    ) -> TokenEvent:
        length = sequence.length
        sequence.tokens[length] = token_id
        length += 1
        sequence.length = length
        sequence.sampler.observe(token_id)
        if sequence.first_token_s == 0.0:
            sequence.first_token_s = now_s
        if token_id in sequence.end_ids:
            event = self._finish(sequence, "stop", now_s)
        elif length >= sequence.limit:
            event = self._finish(sequence, "length", now_s)
        else:
            event = TokenEvent(sequence.request_id, [token_id])
        event.token_ids = [token_id]
        if logprobs is not None:
            event.logprobs = [logprobs]
        return event

    def _finish(
        self, sequence: Sequence, reason: FinishReason, now_s: float, *, error: str | None = None
    ) -> TokenEvent:
        self._drop(sequence)
        event = (ScoredPrompt if sequence.scores_prompt else TokenEvent)(
            sequence.request_id,
            [],
            finish_reason=reason,
            error=error,
            timings=sequence.timings(now_s),
        )
        if isinstance(event, ScoredPrompt) and reason == "scored":
            event.prompt_logits = np.concatenate(sequence.logit_rows)
        return event

    def _drop(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request_id]
        self._scheduler.remove(sequence)
        if not self._sequences:
            self._builder.forget()


def check_prompt(prompt_ids: Iterable[int], vocab_size: int) -> NDArray[np.int32]:
    """Return the ids of a prompt as int32.

    Raises:
        RequestError: If there is none, or one is no id of the vocabulary.
    """
    try:
        ids = [operator.index(token_id) for token_id in prompt_ids]
    except TypeError as error:
        raise RequestError(
            f"prompt_ids must be whole numbers: {error}", field="prompt_ids"
        ) from error
    if not ids:
        raise RequestError("the prompt is empty; give at least one token", field="prompt_ids")
    least, most = min(ids), max(ids)
    if least < 0 or most >= vocab_size:
        bad = least if least < 0 else most
        raise RequestError(
            f"prompt_ids[{ids.index(bad)}] is {bad}; the vocabulary holds ids 0 to {vocab_size - 1}",
            field="prompt_ids",
        )
    return np.array(ids, np.int32)
