"""The engine over a planned program: fills the step's buffers and makes one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, ShapeError
from poot_executor._attention_work import Work, fill_work
from poot_executor._engine import EngineInfo, EngineOptions, StepInputs, StepResults
from poot_executor._ladder import Recordings, ladder, rounded_work
from poot_executor._program import Program
from poot_executor._runner import Runner, StepKey, regime_of
from poot_executor._sampling import Sampled
from poot_kernelgen import SAMPLE_FIELDS

__all__ = ["ProgramEngine"]

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
_ROW, _SLOT = SAMPLE_FIELDS.index("logits_row"), SAMPLE_FIELDS.index("slot")


class ProgramEngine:
    """Implements ``Engine`` over a runner, and ``AheadEngine`` where the runner queues steps.

    Args:
        program: What a step computes.
        runner: What runs it; closed with the engine.
        options: The options in force.
        backend: Name of the backend.
        device: What the device calls itself, and why it was chosen.
    """

    def __init__(
        self,
        program: Program,
        runner: Runner,
        options: EngineOptions,
        *,
        backend: str,
        device: str,
    ) -> None:
        self.program = program
        self.runner = runner
        self._attention = program.attention
        self._max = program.max_rows
        self._num_blocks = options.num_blocks
        self._sizes: dict[str, int] = {"T": 0, "R": 0, "L": 0}
        self._is_decode = False
        self._has_types = False
        self._closed = False
        self._ladder = ladder(program.attention, options.max_sequences, options.context_tokens)
        self._rows: Int32 = np.zeros(0, np.int32)
        self._num_sampled = 0
        self._info = EngineInfo(
            backend=backend,
            device=device,
            vocab_size=program.vocab_size,
            options=options,
            weight_bytes=runner.weight_bytes,
            state_bytes=runner.state_bytes,
            workspace_bytes=runner.workspace_bytes,
            sampler_bytes=runner.sampler_bytes,
            runs_ahead=runner.runs_ahead,
        )

    @property
    def info(self) -> EngineInfo:
        """Facts of this engine."""
        return self._info

    def forward(self, step: StepInputs) -> None:
        """Run one step; its logits stay readable until the next one.

        Raises:
            ShapeError: If the step is larger than what the engine was opened for, or empty.
            DeviceError: If the engine is closed or the device fails.
        """
        if self._closed:
            raise DeviceError("the engine is closed")
        key = self.prepare_step(step)
        self._num_sampled = 0
        self.runner.run(key, self._sizes, step.feeds)

    def prepare_step(self, step: StepInputs) -> StepKey:
        """Fill the step's buffers and return what chooses its launches."""
        num_tokens, num_logits = len(step.token_ids), len(step.logit_positions)
        num_rows = len(step.sequence_lengths)
        self._check(step, num_tokens, num_rows, num_logits)
        self.runner.begin()
        slots = self.runner.slots
        slots["token_ids"][:num_tokens] = step.token_ids
        slots["positions"][:num_tokens] = step.positions
        slots["rows"][:num_tokens] = step.rows
        slots["slot_mapping"][:num_tokens] = step.slot_mapping
        slots["sequence_lengths"][:num_rows] = step.sequence_lengths
        slots["block_tables"][:num_rows] = step.block_tables
        slots["logit_positions"][:num_logits] = step.logit_positions
        if step.token_types is not None:
            slots["token_types"][:num_tokens] = step.token_types
            self._has_types = True
        elif self._has_types:
            slots["token_types"][:] = 0
            self._has_types = False
        self._rows = slots["rows"][:num_tokens]
        sizes = self._sizes
        sizes["T"], sizes["R"], sizes["L"] = num_tokens, num_rows, num_logits
        is_decode = num_tokens == num_rows
        merges: list[bool] = []
        for number, attention in enumerate(self._attention):
            work = fill_work(
                attention,
                step.positions,
                step.rows,
                step.sequence_lengths,
                is_decode=is_decode,
                out=self.runner.work[number],
            )
            if is_decode and self.runner.may_capture:
                work = self._rounded(number, work, num_rows)
            sizes[f"W{number}"], sizes[f"P{number}"] = work
            merges.append(work.max_splits > 1)
        return StepKey(regime_of(num_tokens), regime_of(num_logits), is_decode, tuple(merges))

    def _rounded(self, number: int, work: Work, num_rows: int) -> Work:
        """Round the sizes of a work list up; further items have no keys and store nothing."""
        items = self.runner.work[number]
        found = rounded_work(work, num_rows, len(items), self._attention[number].max_splits)
        items[work.num_items : found.num_items] = (0, 1, 0, 0)
        return found

    def capture_ahead(self) -> bool:
        """Record the next decode step of the ladder; False once all are, or where it is of no use.

        Meant for idle time: it takes about as long as queueing two steps, and the slots of the step
        are not touched, so that it may come between any two. A device that cannot record runs steps
        launch by launch.
        """
        if self._closed or not self.runner.may_capture:
            return False
        rung = next(self._ladder, None)
        if rung is None:
            return False
        rows, position = rung
        sizes: dict[str, int] = {"T": rows, "R": rows, "L": rows}
        merges: list[bool] = []
        positions, lengths = (
            np.full(rows, position, np.int32),
            np.full(rows, position + 1, np.int32),
        )
        for number, attention in enumerate(self._attention):
            capacity = len(self.runner.work[number])
            work = fill_work(
                attention,
                positions,
                np.arange(rows, dtype=np.int32),
                lengths,
                is_decode=True,
                out=np.zeros((capacity, 4), np.int32),
            )
            work = rounded_work(work, rows, capacity, attention.max_splits)
            sizes[f"W{number}"], sizes[f"P{number}"] = work
            merges.append(work.max_splits > 1)
        regime = regime_of(rows)
        return self.runner.capture(StepKey(regime, regime, True, tuple(merges)), sizes)

    @property
    def recordings(self) -> Recordings:
        """What recording decode steps has cost so far."""
        return self.runner.recordings

    @property
    def sizes(self) -> Mapping[str, int]:
        """Symbol values of the last step."""
        return self._sizes

    def _check(self, step: StepInputs, tokens: int, rows: int, logits: int) -> None:
        options = self._info.options
        if (
            not 0 < tokens <= self._max["T"]
            or not 0 < rows <= options.max_sequences
            or logits > self._max["L"]
        ):
            raise ShapeError(
                f"a step of {tokens} tokens, {rows} sequences and {logits} logits does not fit an "
                f"engine of at most {self._max['T']}, {options.max_sequences} and {self._max['L']}"
            )
        # As unsigned numbers negative ones are too large as well.
        if step.block_tables.view(np.uint32).max() >= self._num_blocks:
            raise ShapeError(f"a block table names a block outside of 0..{self._num_blocks - 1}")
        if step.positions.view(np.uint32).max() >= options.context_tokens:
            raise ShapeError(f"a position lies outside of 0..{options.context_tokens - 1}")

    def greedy(self) -> Int32:
        """Return (L,) ids of the largest logits of the last step (lowest id on a tie)."""
        return self.runner.greedy(self._sizes["L"])

    def logits(self) -> Float32:
        """Return (L, vocab_size) logits of the last step; a view that the next step overwrites."""
        return self.runner.logits(self._sizes["L"])

    def sample(self, params: NDArray[np.uint32]) -> None:
        """Start choosing the next token of some rows of the last step.

        Raises:
            ShapeError: If a row names a slot or a row of logits that does not exist.
            DeviceError: If the device fails.
        """
        slots = self._info.options.max_sequences
        if len(params) > slots or (
            len(params)
            and (params[:, _SLOT].max() >= slots or params[:, _ROW].max() >= self._sizes["L"])
        ):
            raise ShapeError(
                f"{len(params)} rows to sample name slots up to {params[:, _SLOT].max()} and rows of "
                f"logits up to {params[:, _ROW].max()}; there are {slots} and {self._sizes['L']}"
            )
        self.runner.sampler.sample(params, self._sizes["L"])
        self._num_sampled = len(params)

    def sampled(self) -> Sampled:
        """Return the tokens of the last ``sample``."""
        return self.runner.sampler.sampled()

    def set_counts(self, slot: int, entries: NDArray[np.uint32]) -> None:
        """Set what penalties count of a slot, before its first row that counts."""
        self.runner.sampler.set_counts(slot, entries)

    def step_faults(self) -> Mapping[int, str]:
        """Return the rows of the last step whose data-dependent indices left their range."""
        flags = self.runner.take_faults("T", self._sizes["T"])
        return {} if flags is None else _faults(flags, self._rows)

    def start_results(self) -> PendingStep:
        """Mark the end of the last step, so that its results may be asked for while later ones run."""
        num_tokens = self._sizes["T"]
        # The next step writes its own rows where those of this one stand.
        rows = self._rows.copy()
        return PendingStep(self.runner.start_results(num_tokens, self._num_sampled), rows)

    def time_step(
        self, step: StepInputs, *, repeat: int = 5
    ) -> tuple[StepKey, NDArray[np.float64]]:
        """Run a step ``repeat`` times and return its key and (num_launches,) median seconds.

        Raises:
            DeviceError: If the engine runs on no device.
        """
        key = self.prepare_step(step)
        return key, self.runner.time(key, self._sizes, repeat=repeat)

    def read_bandwidth_gb_s(self, nbytes: int) -> float:
        """Return how fast the device's compiled code reads ``nbytes``, GB/s.

        Raises:
            DeviceError: If the engine runs on no device.
        """
        return self.runner.read_bandwidth_gb_s(nbytes)

    def close(self) -> None:
        """Release memory and threads; closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self.runner.close()


class PendingStep:
    """Implements ``PendingResults``.

    Args:
        wait: Returns the step's samples and the flags of its tokens.
        rows: (T,) which row each token belongs to.
    """

    __slots__ = ("_rows", "_wait")

    def __init__(self, wait: Callable[[], tuple[Sampled, Int32]], rows: Int32) -> None:
        self._wait, self._rows = wait, rows

    def wait(self) -> StepResults:
        """Return what the step sampled and which of its rows failed."""
        sampled, flags = self._wait()
        return StepResults(sampled, _faults(flags, self._rows) if flags.any() else {})


def _faults(flags: Int32, rows: Int32) -> dict[int, str]:
    found = np.unique(rows[np.flatnonzero(flags)])
    return {int(row): "a token id or a KV slot is out of range" for row in found}
