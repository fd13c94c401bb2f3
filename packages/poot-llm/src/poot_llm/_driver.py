"""The driver: requests of token ids in, events of token ids out, one ragged step at a time.

It knows no text. Tokenizing, detokenizing, stop strings and chat templates stand above it (``LLM``) or
in another process (a server).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, PootError, RequestError, SettingsError
from poot_executor import AheadEngine, Engine, StepResults
from poot_kernelgen import SAMPLE_FIELDS
from poot_llm._batch import StepBuilder
from poot_llm._blocks import BlockManager
from poot_llm._errors import ContextLengthError
from poot_llm._pace import Pace
from poot_llm._preparation import Preparation
from poot_llm._request import FinishReason, Request, ScoredPrompt, Timings, TokenEvent
from poot_llm._rows import RowTable
from poot_llm._sampler import Logprobs, RowSampler
from poot_llm._scheduler import Chunk, DecodeGroup, Scheduler, StepPlan
from poot_llm._sequence import Sequence
from poot_llm._submitted import NOTHING_SAMPLED, SubmittedStep
from poot_llm._vocabulary import Vocabulary

__all__ = ["Driver", "DriverStats", "StepOutcome"]

_LOGITS_ROW, _POSITION = (SAMPLE_FIELDS.index(name) for name in ("logits_row", "position"))
_PROMPT_LOGITS = 128
"""Rows of logits that a step may return where few sequences share it: prompts that are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStats:
    """What the driver holds at this moment, and what it did since its start.

    Attributes:
        num_running: Sequences with blocks.
        num_waiting: Sequences in the queue.
        num_free_blocks: Blocks that nobody holds, those with content that may be used again included.
        num_cached_blocks: Blocks that nobody holds and whose content may be used again.
        num_blocks: Blocks of the pool.
        waiting_tokens: Tokens of prompts that are not computed yet.
        batch_rows: Rows of the last step.
        batch_tokens: Tokens of the last step.
        preemptions: Sequences put back for want of blocks.
        steps: Steps.
        device_s: Seconds in the engine's part of the steps.
        prompt_tokens: Prompt tokens of requests that were added.
        output_tokens: Tokens generated.
        prefix_query_tokens: Prompt tokens looked up in the prefix cache.
        prefix_hit_tokens: Prompt tokens found there.
        deadlines: Requests whose time was up.
        faults: Requests that a step failed.
        steps_ahead: Steps that were handed over while the one before was under way.
        surplus_rows: Rows that a step computed for requests which had ended meanwhile.
    """

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_cached_blocks: int
    num_blocks: int
    waiting_tokens: int
    batch_rows: int
    batch_tokens: int
    preemptions: int
    steps: int
    device_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    deadlines: int
    faults: int
    steps_ahead: int
    surplus_rows: int


@dataclass(slots=True)
class StepOutcome:
    """What one step did.

    Attributes:
        request_ids: Requests that got one token and nothing else.
        token_ids: Their tokens.
        events: Everything else, in order; no request stands here and in ``request_ids``.
    """

    request_ids: list[int]
    token_ids: list[int]
    events: list[TokenEvent]


class Driver:
    """Runs requests over one engine; not thread-safe.

    Args:
        engine: Any implementation of the engine protocol. The caller closes it.
        eos_token_ids: Tokens that end an answer unless ``ignore_eos`` is set.
        shares_prefixes: Whether equal prefixes of prompts and answers are computed once.
        max_prefill_tokens: Most tokens of prompts in a step that also decodes; None learns what keeps
            the gaps of running streams short.
        vocabulary: What tokens stand for, which constraints and DRY need; None refuses them.

    Raises:
        SettingsError: If the engine's pool cannot hold one full sequence, or a step not one token of
            every sequence.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        eos_token_ids: Iterable[int] = (),
        shares_prefixes: bool = True,
        max_prefill_tokens: int | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
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
        self._is_eos = np.zeros(info.vocab_size, np.bool_)
        self._is_eos[[i for i in self._eos_token_ids if 0 <= i < info.vocab_size]] = True
        self._vocabulary = vocabulary
        self._blocks = BlockManager(options.num_blocks)
        self._table = RowTable(options)
        self._pace = Pace(max_prefill_tokens)
        max_logits = max(options.max_sequences, min(options.max_step_tokens, _PROMPT_LOGITS))
        self._scheduler = Scheduler(
            self._table,
            self._blocks,
            block_size=options.block_size,
            max_step_tokens=options.max_step_tokens,
            max_logits=max_logits,
            pace=self._pace,
            shares_prefixes=shares_prefixes,
            samples_greedy=info.runs_ahead,
        )
        self._builder = StepBuilder(options, self._table, max_logits)
        self._sequences: dict[int, Sequence] = {}
        self._with_deadline: dict[int, Sequence] = {}
        self._next_id = 0
        self._steps = 0
        self._device_s = 0.0
        self._batch = (0, 0)
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._deadlines = 0
        self._faults = 0
        self._constrained: dict[int, Sequence] = {}
        # Of the step that is read: what the engine chose, and where it stands.
        self._greedy: NDArray[np.int32] | None = None  # once asked for
        self._sampled: dict[int, int] = {}  # row of logits, and place among what was sampled
        self._samples = NOTHING_SAMPLED
        self._ahead = cast("AheadEngine", engine) if info.runs_ahead else None
        self._under_way: SubmittedStep | None = None
        self._gone: set[int] = set()  # requests that ended while a step with rows of theirs ran
        self._read_s = 0.0  # when the last step was read
        self._steps_ahead = 0
        self._surplus_rows = 0
        self._failure: str | None = None

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do."""
        return self._scheduler.has_work or self._under_way is not None

    @property
    def context_tokens(self) -> int:
        """Most tokens of one sequence."""
        return self._context_tokens

    @property
    def stats(self) -> DriverStats:
        """What the driver holds at this moment, and what it did since its start."""
        scheduler, blocks = self._scheduler, self._blocks
        rows, tokens = self._batch
        return DriverStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_free_blocks=blocks.num_free,
            num_cached_blocks=blocks.num_cached,
            num_blocks=blocks.num_blocks,
            waiting_tokens=scheduler.waiting_tokens,
            batch_rows=rows,
            batch_tokens=tokens,
            preemptions=scheduler.preemptions,
            steps=self._steps,
            device_s=self._device_s,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            prefix_query_tokens=scheduler.query_tokens,
            prefix_hit_tokens=scheduler.hit_tokens,
            deadlines=self._deadlines,
            faults=self._faults,
            steps_ahead=self._steps_ahead,
            surplus_rows=self._surplus_rows,
        )

    def check(self, request: Request) -> NDArray[np.int32]:
        """Return the prompt as it goes into the model.

        Raises:
            RequestError: If the prompt is empty, or it or the bias holds an id outside the vocabulary.
            ContextLengthError: If the prompt does not fit.
        """
        prompt = check_prompt(request.prompt_ids, self._vocab_size)
        params = request.params
        answers = not (request.scores_prompt or params.max_tokens == 0)
        if prompt.size + answers > self._context_tokens:
            raise ContextLengthError.of(prompt.size, self._context_tokens)
        for token_id in params.logit_bias:
            if token_id >= self._vocab_size:
                raise RequestError(
                    f"logit_bias names token {token_id}; the vocabulary holds ids 0 to "
                    f"{self._vocab_size - 1}",
                    field="logit_bias",
                )
        return prompt

    def prepare(self, request: Request) -> Preparation:
        """Return what sampling needs beside the parameters; may take long, so any thread may do it.

        Raises:
            RequestError: If the constraint does not compile within its limits.
            UnsupportedError: If it needs the tokens' texts and this model has no tokenizer.
        """
        return Preparation.of(request.params, self._vocabulary)

    def warm(self) -> None:
        """Build what the first constraint would have to wait for; any thread may do it."""
        if self._vocabulary is not None:
            self._vocabulary.warm()

    def capture_ahead(self) -> bool:
        """Record a decode step that may come, while idle; False once there is none left to record.

        Only where an engine replays steps; the thread that steps must call it.
        """
        capture = getattr(self._engine, "capture_ahead", None)  # engines over a device have one
        return capture is not None and self._failure is None and bool(capture())

    def add(self, request: Request, preparation: Preparation | None = None) -> int:
        """Queue a request and return its id, which is never used again.

        Args:
            request: The request.
            preparation: What ``prepare`` returned for it; made here where it is None.

        Raises:
            RequestError: If the prompt is empty, or it or the bias holds an id outside the vocabulary.
            ContextLengthError: If the prompt does not fit.
            DeviceError: If an earlier step failed.
        """
        self._require_working()
        prompt = self.check(request)
        params = request.params
        if preparation is None:
            preparation = self.prepare(request)
        room = 0 if request.scores_prompt else self._context_tokens - prompt.size
        if params.max_tokens is not None:
            room = min(room, params.max_tokens)
        ends = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            ends |= self._eos_token_ids
        request_id = self._next_id
        self._next_id += 1
        sequence = self._sequences[request_id] = Sequence(
            request_id,
            request,
            prompt,
            limit=prompt.size + room,
            sampler=RowSampler(
                params,
                end_ids=ends,
                prompt=prompt,
                vocab_size=self._vocab_size,
                limit=room,
                choice=request.choice,
                preparation=preparation,
            ),
        )
        if sequence.deadline_s is not None:
            self._with_deadline[request_id] = sequence
        if preparation.matcher is not None:
            self._constrained[request_id] = sequence
        self._prompt_tokens += prompt.size
        self._scheduler.add(sequence)
        return request_id

    def cancel(self, request_id: int) -> Timings | None:
        """Forget a request, between steps; no event follows.

        Returns:
            Where its time went, or None where it was not under way.
        """
        sequence = self._sequences.get(request_id)
        return None if sequence is None else self._drop(sequence, perf_counter())

    def step(self) -> list[TokenEvent]:
        """Run one step and return what it did for each request that got a token or ended.

        Raises:
            DeviceError: If the device failed; every request is lost then, and so is the engine.
        """
        outcome = self.run_step()
        ordinary = zip(outcome.request_ids, outcome.token_ids, strict=True)
        return [
            *(TokenEvent(request_id, [token_id]) for request_id, token_id in ordinary),
            *outcome.events,
        ]

    def run_step(self) -> StepOutcome:
        """Run one step and return what it did, in as few objects as may be.

        Where the engine runs ahead, the step after it is under way on return.

        Raises:
            DeviceError: If the device failed; every request is lost then, and so is the engine.
        """
        self._require_working()
        outcome = StepOutcome([], [], [])
        start = perf_counter()
        if self._with_deadline:
            self._end_late(outcome, start)
        try:
            step = self._under_way or self._submit(start)
            if step is None:
                return outcome
            following = None
            if self._may_go_ahead(step):
                following = self._submit(perf_counter(), is_ahead=True)
            for sequence in self._constrained.values():
                if sequence.row is not None:
                    sequence.sampler.prepare_mask()  # while the device works
            results = step.wait(self._engine)
        except PootError as error:
            self._failure = str(error)
            self._under_way = None
            raise
        now_s = perf_counter()
        elapsed = now_s - max(step.begin_s, self._read_s)
        self._read_s = now_s
        self._under_way = following
        self._read(step, results, elapsed, outcome, now_s)
        return outcome

    def _may_go_ahead(self, step: SubmittedStep) -> bool:
        """Return whether the next step may be handed over before this one is read."""
        if self._ahead is None or self._scheduler.num_host_bound:
            return False  # where a row needs the host between two steps, all of them go one by one
        return not step.plan.chunks or self._pace.knows_prompts

    def _submit(self, now_s: float, *, is_ahead: bool = False) -> SubmittedStep | None:
        """Plan a step and hand it over; None where there is nothing to do, or not yet."""
        plan = self._scheduler.plan(now_s, may_put_back=not is_ahead)
        if plan is None or (not plan.rows.size and not plan.chunks):
            return None
        for chunk in plan.chunks:
            if chunk.sequence.first_step_s == 0.0:
                chunk.sequence.first_step_s = now_s
        inputs = self._builder.build(plan, is_ahead=is_ahead)
        begin = perf_counter()
        self._engine.forward(inputs)
        places = self._start_sampling(plan)
        pending = None if self._ahead is None else self._ahead.start_results()
        self._scheduler.advance(plan)
        self._steps_ahead += is_ahead
        num_rows, num_tokens = len(inputs.sequence_lengths), len(inputs.token_ids)
        return SubmittedStep(plan, places, pending, num_rows, num_tokens, begin)

    def _read(
        self,
        step: SubmittedStep,
        results: StepResults,
        elapsed: float,
        outcome: StepOutcome,
        now_s: float,
    ) -> None:
        """Take what a step did into account, and report it."""
        plan, faults = step.plan, results.faults
        self._pace.observe(plan.rows.size, plan.num_prompt_tokens, elapsed)
        self._steps += 1
        self._device_s += elapsed
        self._batch = (step.num_rows, step.num_tokens)
        self._greedy = None
        self._sampled, self._samples = step.places, results.sampled
        gone, self._gone = self._gone, set()
        if faults:
            self._end_faulty(plan, faults, gone, outcome, now_s)
        self._scheduler.settle(plan)
        self._commit(plan, faults, gone, outcome, now_s)

    def _start_sampling(self, plan: StepPlan) -> dict[int, int]:
        """Have the engine choose the tokens of all rows whose parameters it can follow.

        Returns:
            For each of their rows of logits its place among what is sampled.
        """
        table, group = self._table, plan.group
        rows, logits_rows = group.rows[group.sampled], group.sampled
        # Tokens known once the step before has been read: those computed, and its own.
        positions = table.computed[rows] + 1
        places = group.sampled_places
        begun = [] if not plan.chunks else self._begun(plan)
        if begun:
            more = np.array(begun, np.intp)
            rows, logits_rows, positions = (
                np.concatenate([known, found])
                for known, found in zip((rows, logits_rows, positions), more.T, strict=True)
            )
            places = {place: number for number, place in enumerate(logits_rows.tolist())}
        if rows.size:
            params = table.words[rows]
            params[:, _LOGITS_ROW] = logits_rows
            params[:, _POSITION] = positions
            self._engine.sample(params)
        return places

    def _begun(self, plan: StepPlan) -> list[tuple[int, int, int]]:
        """Return row, row of logits and position of each prompt that is complete and sampled."""
        found: list[tuple[int, int, int]] = []
        place = plan.rows.size
        for chunk in plan.chunks:
            place += chunk.num_logits
            sequence = chunk.sequence
            row = sequence.row
            assert row is not None, "it runs"
            if chunk.is_last and sequence.answers and self._table.is_sampled[row]:
                if sequence.sampler.counts_tokens:
                    self._engine.set_counts(row, sequence.sampler.counts())
                found.append((row, place - 1, chunk.start + chunk.count))
        return found

    def _require_working(self) -> None:
        if self._failure is not None:
            raise DeviceError(f"the engine failed earlier and must be opened anew: {self._failure}")

    def _end_late(self, outcome: StepOutcome, now_s: float) -> None:
        late = [
            sequence
            for sequence in self._with_deadline.values()
            if sequence.deadline_s is not None and sequence.deadline_s <= now_s
        ]
        for sequence in late:
            self._deadlines += 1
            outcome.events.append(self._finish(sequence, "deadline", now_s))

    def _commit(
        self,
        plan: StepPlan,
        faults: Mapping[int, str],
        gone: set[int],
        outcome: StepOutcome,
        now_s: float,
    ) -> None:
        count = plan.rows.size
        if count:
            self._commit_decodes(plan, {*faults, *self._surplus(plan, gone)}, outcome, now_s)
        logits_row = count
        for place, chunk in enumerate(plan.chunks, start=count):
            if chunk.sequence.request_id in gone:
                self._surplus_rows += 1
            elif place not in faults:
                self._commit_chunk(chunk, logits_row, outcome, now_s)
            logits_row += chunk.num_logits

    def _surplus(self, plan: StepPlan, gone: set[int]) -> list[int]:
        """Return the places of rows that were computed for requests which have ended, counted."""
        if not gone:
            return []
        found = [place for place, name in enumerate(plan.group.request_ids) if name in gone]
        self._surplus_rows += len(found)
        return found

    def _commit_decodes(
        self, plan: StepPlan, left_out: set[int], outcome: StepOutcome, now_s: float
    ) -> None:
        group, table = plan.group, self._table
        rows = group.rows
        if not (group.has_care or left_out or plan.reaches_limit or self._samples.faults.any()):
            chosen = self._chosen_ids(group)
            if not self._is_eos[chosen].any():
                lengths = table.length[rows]
                table.tokens[rows, lengths] = chosen
                table.last[rows] = chosen
                table.length[rows] = lengths + 1
                self._output_tokens += rows.size
                outcome.request_ids, outcome.token_ids = group.request_ids, chosen.tolist()
                return
        careful = group.care
        if left_out:
            careful = careful | np.isin(np.arange(rows.size), list(left_out))
        if self._sampled and self._samples.faults.any():
            careful = careful.copy()
            careful[group.sampled] |= self._samples.faults[: group.sampled.size] != 0
        if not careful.all():
            chosen = self._chosen_ids(group)
            lengths = table.length[rows] + 1
            careful = careful | (self._is_eos[chosen] & table.obeys_eos[rows])
            careful |= lengths >= table.limit[rows]
            plain = ~careful
            kept, tokens = rows[plain], chosen[plain]
            table.tokens[kept, lengths[plain] - 1] = tokens
            table.last[kept] = tokens
            table.length[kept] = lengths[plain]
            self._output_tokens += kept.size
            outcome.request_ids = table.request_ids[kept].tolist()
            outcome.token_ids = tokens.tolist()
        for place in np.flatnonzero(careful).tolist():
            if place not in left_out:
                sequence = self._scheduler.sequence_at(rows[place])
                self._choose(sequence, place, outcome, now_s)

    def _end_faulty(
        self,
        plan: StepPlan,
        faults: Mapping[int, str],
        gone: set[int],
        outcome: StepOutcome,
        now_s: float,
    ) -> None:
        for place, message in faults.items():
            if place < plan.rows.size:
                request_id = plan.group.request_ids[place]
            else:
                request_id = plan.chunks[place - plan.rows.size].sequence.request_id
            if request_id in gone:
                continue
            sequence = self._sequences[request_id]
            self._faults += 1
            outcome.events.append(self._finish(sequence, "error", now_s, error=message))

    def _commit_chunk(
        self, chunk: Chunk, logits_row: int, outcome: StepOutcome, now_s: float
    ) -> None:
        sequence = chunk.sequence
        scores = sequence.scores
        if scores is not None:
            try:
                scores.add(self._engine.logits()[logits_row : logits_row + chunk.num_logits])
            except FloatingPointError as error:
                self._faults += 1
                outcome.events.append(self._finish(sequence, "error", now_s, error=str(error)))
                return
        if not chunk.is_last:
            return
        if sequence.scores_prompt:
            outcome.events.append(self._finish(sequence, "scored", now_s))
        elif not sequence.answers:  # max_tokens is 0
            outcome.events.append(self._finish(sequence, "length", now_s))
        else:
            row = logits_row + chunk.num_logits - 1
            self._choose(sequence, row, outcome, now_s)

    def _chosen_ids(self, group: DecodeGroup) -> NDArray[np.int32]:
        """Return (D,) tokens that the engine chose; of rows that it does not choose for, any."""
        sampled = group.sampled
        if sampled.size == group.rows.size:
            return self._samples.token_ids[: sampled.size]
        if self._ahead is not None:  # its sampler chooses greedy tokens as well
            chosen = np.zeros(group.rows.size, np.int32)
        else:
            chosen = self._greedy_ids()[: group.rows.size]
        if sampled.size:
            chosen = chosen.copy()
            chosen[sampled] = self._samples.token_ids[: sampled.size]
        return chosen

    def _greedy_ids(self) -> NDArray[np.int32]:
        if self._greedy is None:
            self._greedy = self._engine.greedy()
        return self._greedy

    def _choose(
        self,
        sequence: Sequence,
        logits_row: int,
        outcome: StepOutcome,
        now_s: float,
    ) -> None:
        """Choose the next token of one sequence, and report it."""
        sampler = sequence.sampler
        logprobs = None
        row = sequence.row
        assert row is not None, "it runs"
        length = int(self._table.length[row])
        place = self._sampled.get(logits_row)
        if place is not None and self._samples.faults[place]:
            self._faults += 1
            message = (
                "a logit is no number or the largest is infinite; the model's output is not finite"
            )
            outcome.events.append(self._finish(sequence, "error", now_s, error=message))
            return
        if place is not None:
            token_id = int(self._samples.token_ids[place])
        elif sampler.is_plain:
            token_id = int(self._greedy_ids()[logits_row])
        else:
            try:
                token_id, logprobs = sampler.choose(
                    self._engine.logits()[logits_row],
                    tokens=self._table.tokens[row, :length],
                    generated=length - sequence.prompt_length,
                )
            except (FloatingPointError, RequestError) as error:
                self._faults += 1
                outcome.events.append(self._finish(sequence, "error", now_s, error=str(error)))
                return
        self._accept(sequence, row, token_id, logprobs, outcome, now_s)

    def _accept(
        self,
        sequence: Sequence,
        row: int,
        token_id: int,
        logprobs: Logprobs | None,
        outcome: StepOutcome,
        now_s: float,
    ) -> None:
        table = self._table
        length = int(table.length[row])
        table.tokens[row, length] = token_id
        table.last[row] = token_id
        table.length[row] = length + 1
        self._output_tokens += 1
        sampler = sequence.sampler
        sampler.observe(token_id)
        event = TokenEvent(
            sequence.request_id, [token_id], None if logprobs is None else [logprobs]
        )
        if sequence.first_token_s == 0.0:
            sequence.first_token_s = now_s
            event.cached_tokens = sequence.cached_tokens
            if sequence.scores is not None:
                event.prompt_logprobs = sequence.scores.logprobs()
                sequence.scores = None
        outcome.events.append(event)
        ends = token_id in sequence.stop_ids or (sequence.obeys_eos and self._is_eos[token_id])
        if ends or length + 1 >= sequence.limit:
            event.finish_reason = "stop" if ends else "length"
            event.timings = self._drop(sequence, now_s)
        elif sampler.is_complete:
            # The token is part of the answer, unlike an end token: the end is an event of its own.
            outcome.events.append(self._finish(sequence, "stop", now_s))

    def _finish(
        self, sequence: Sequence, reason: FinishReason, now_s: float, *, error: str | None = None
    ) -> TokenEvent:
        event = (ScoredPrompt if sequence.scores_prompt else TokenEvent)(
            sequence.request_id, [], finish_reason=reason, error=error
        )
        if isinstance(event, ScoredPrompt):
            if reason == "scored" and sequence.scores is not None:
                event.prompt_logits = sequence.scores.logits()
        elif reason == "length" and sequence.scores is not None:
            event.prompt_logprobs = sequence.scores.logprobs()
            event.cached_tokens = sequence.cached_tokens
        event.timings = self._drop(sequence, now_s)
        return event

    def _drop(self, sequence: Sequence, now_s: float) -> Timings:
        row = sequence.row
        length = sequence.tokens.size if row is None else int(self._table.length[row])
        del self._sequences[sequence.request_id]
        self._with_deadline.pop(sequence.request_id, None)
        self._constrained.pop(sequence.request_id, None)
        if self._under_way is not None:
            self._gone.add(sequence.request_id)
        self._scheduler.remove(sequence)
        return sequence.timings(length, now_s)


def check_prompt(prompt_ids: Iterable[int], vocab_size: int) -> NDArray[np.int32]:
    """Return the ids of a prompt as int32.

    Raises:
        RequestError: If there is none, or one is no id of the vocabulary.
    """
    if isinstance(prompt_ids, np.ndarray) and prompt_ids.dtype == np.int32:
        ids = prompt_ids
    else:
        try:
            ids = np.array([operator.index(token_id) for token_id in prompt_ids], np.int64)
        except (TypeError, OverflowError) as error:
            raise RequestError(
                f"prompt_ids must be whole numbers: {error}", field="prompt_ids"
            ) from error
    if not ids.size:
        raise RequestError("the prompt is empty; give at least one token", field="prompt_ids")
    bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if bad.size:
        place = int(bad[0])
        raise RequestError(
            f"prompt_ids[{place}] is {ids[place]}; the vocabulary holds ids 0 to {vocab_size - 1}",
            field="prompt_ids",
        )
    return ids.astype(np.int32)
