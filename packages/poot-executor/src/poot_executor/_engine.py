"""The engine protocol: what a driver sees of a model that is ready to run, whatever runs it.

An engine owns one model's weights and states. It runs one ragged step at a time: any mix of prompt
chunks and single decode tokens of several sequences. The driver owns tokens, blocks and requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from poot_executor._sampling import Sampled

__all__ = [
    "AheadEngine",
    "Engine",
    "EngineInfo",
    "EngineOptions",
    "PendingResults",
    "StepInputs",
    "StepResults",
    "WeightSource",
]

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Uint32 = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What the caller asks of an engine.

    Attributes:
        backend: ``auto``, ``oracle`` or the name of an installed device (entry point group
            ``poot.devices``).
        device: Which of the backend's devices: its number or a part of its name; None for what the
            environment says (``POOT_DEVICE``) or the best.
        precision: ``f32`` (stored weights, f32 activations and sums) or ``auto`` (the fastest that
            the accuracy bar allows).
        threads: Threads of a host team, or None to derive it from affinity and quota.
        context_tokens: Longest sequence.
        max_sequences: Most sequences in one step (upper bound of R).
        max_step_tokens: Most tokens in one step (upper bound of T).
        block_size: Tokens of one KV block.
        num_blocks: KV blocks in the pool; block 0 is an ordinary block.
    """

    backend: str = "auto"
    device: str | None = None
    precision: str = "auto"
    threads: int | None = None
    context_tokens: int = 2048
    max_sequences: int = 32
    max_step_tokens: int = 512
    block_size: int = 32
    num_blocks: int = 64

    @property
    def max_blocks_per_row(self) -> int:
        """Width of a block table: blocks that hold ``context_tokens``."""
        return -(-self.context_tokens // self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Facts of an open engine.

    Attributes:
        backend: Name of the device that runs it.
        device: What the device calls itself, and why it was chosen.
        vocab_size: Width of a row of logits; of an encoder, of a row that it makes.
        options: The options in force.
        weight_bytes: Bytes of the weights as laid out on the device.
        state_bytes: Bytes of KV pools and other state.
        workspace_bytes: Bytes of intermediates and of a step's inputs.
        sampler_bytes: Bytes of what sampling keeps and works in, the counts of penalties among them.
            They are taken when the first row is sampled, and when the first one counts its tokens.
        runs_ahead: Whether steps are queued, so that the next one may be run before the results of the
            last are read: the engine is an ``AheadEngine`` then.
    """

    backend: str
    device: str
    vocab_size: int
    options: EngineOptions
    weight_bytes: int
    state_bytes: int
    workspace_bytes: int
    sampler_bytes: int = 0
    runs_ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One ragged step; every array is int32 and C-contiguous.

    Attributes:
        token_ids: (T,) tokens of all rows, those of one row together and ascending in position.
        positions: (T,) position of each token in its sequence.
        rows: (T,) which row (0..R-1) each token belongs to; not decreasing.
        sequence_lengths: (R,) tokens of each row once this step has run.
        block_tables: (R, max_blocks_per_row) KV blocks of each row; unused entries are 0.
        slot_mapping: (T,) block * block_size + offset where each token's key and value go.
        logit_positions: (L,) indices into the T tokens whose logits are wanted. An encoder takes one
            token of each row that is wanted: the one whose state it pools, any one for a mean.
        token_types: (T,) segment of each token, for encoders that have them; all 0 if None.
        feeds: (F, 2) pairs (place, slot): the token at this place of ``token_ids`` is not known to
            the caller; it is the last one that was sampled for the slot.
    """

    token_ids: Int32
    positions: Int32
    rows: Int32
    sequence_lengths: Int32
    block_tables: Int32
    slot_mapping: Int32
    logit_positions: Int32
    token_types: Int32 | None = None
    feeds: Int32 | None = None


class WeightSource(Protocol):
    """Where an engine takes weights from: a checkpoint's ``WeightStore`` has this shape."""

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor as stored, a view."""
        ...

    def release(self, name: str) -> None:
        """Drop the pages of a tensor that has been laid out."""
        ...


class Engine(Protocol):
    """A model that is ready to run."""

    @property
    def info(self) -> EngineInfo:
        """Facts of this engine."""
        ...

    def forward(self, step: StepInputs) -> None:
        """Run one step; its logits stay readable until the next one.

        Raises:
            DeviceError: If the device fails; the states are then undefined.
        """
        ...

    def greedy(self) -> Int32:
        """Return (L,) ids of the largest logits of the last step (lowest id on a tie)."""
        ...

    def logits(self) -> Float32:
        """Return (L, vocab_size) logits of the last step; a view that the next step overwrites."""
        ...

    def sample(self, params: Uint32) -> None:
        """Start choosing the next token of some rows of the last step, once a step.

        May return before it is done; the next step may be run before ``sampled`` is asked. Logits of
        rows that count their tokens are changed. A row's token depends on its logits and its
        parameters alone, and is the same on every engine.

        Args:
            params: (S, fields) uint32, each row made by ``sample_words``; no two of one slot.

        Raises:
            ShapeError: If a row names a slot or a row of logits that does not exist.
            DeviceError: If the device fails.
        """
        ...

    def sampled(self) -> Sampled:
        """Return the tokens of the last ``sample``."""
        ...

    def set_counts(self, slot: int, entries: Uint32) -> None:
        """Set what penalties count of a slot, before its first row that counts.

        Args:
            slot: From 0 to max_sequences - 1.
            entries: (E, 2) pairs (id, count), no id twice: 1 for a token of prompt or answer, plus 2
                for each time that it stands in the answer. All others count 0.
        """
        ...

    def step_faults(self) -> Mapping[int, str]:
        """Return the rows of the last step whose data-dependent indices left their range."""
        ...

    def close(self) -> None:
        """Release memory and threads; closing twice is allowed."""
        ...


@dataclass(frozen=True, slots=True)
class StepResults:
    """What came of a step.

    Attributes:
        sampled: Tokens of its ``sample``, empty where there was none.
        faults: Its rows whose data-dependent indices left their range.
    """

    sampled: Sampled
    faults: Mapping[int, str]


class PendingResults(Protocol):
    """Results of a step that may still run."""

    def wait(self) -> StepResults:
        """Return them once the step is done; later steps may still run. Asked once.

        Raises:
            DeviceError: If the device failed.
        """
        ...


class AheadEngine(Engine, Protocol):
    """An engine that queues steps."""

    def start_results(self) -> PendingResults:
        """Mark the end of the step that was handed over last, with its ``sample``.

        Further steps may be handed over before its results are asked for. Results of two steps are
        kept at most. A step whose results are brought this way has its ``sampled`` and
        ``step_faults`` from nowhere else.
        """
        ...


TraceFunction = Callable[[], Any]
"""Returns the ``Graph`` of the model; not called when a cached program exists."""
