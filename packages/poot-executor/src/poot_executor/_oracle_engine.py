"""The engine over the NumPy oracle: slow, and what every device is checked against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, ShapeError
from poot_executor._engine import EngineInfo, EngineOptions, StepInputs, WeightSource
from poot_executor._sampling import NumpySampler, Sampled

if TYPE_CHECKING:
    from poot_graph_ir import Graph

__all__ = ["OracleEngine"]

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


class OracleEngine:
    """Implements ``Engine`` by evaluating the graph equation by equation.

    Args:
        graph: A traced model with one output, rows of L.
        weights: Source of its weights.
        vocab_size: Token ids are below it.
        options: Bounds of a step.
        reason: Why this backend was chosen.
    """

    def __init__(
        self,
        graph: Graph,
        weights: WeightSource,
        vocab_size: int,
        options: EngineOptions,
        *,
        reason: str = "asked for",
    ) -> None:
        from poot_eval import OracleProgram

        self._oracle: OracleProgram | None = OracleProgram(graph, weights.raw)
        self._options = options
        self._ids_limit = vocab_size
        ((self._output, value),) = graph.outputs
        width = value.shape[-1]
        assert isinstance(width, int)
        self._has_types = "token_types" in {value.name for value in graph.inputs}
        self._logits: Float32 = np.zeros((0, width), np.float32)
        self._faults: dict[int, str] = {}
        self._token_ids: Int32 = np.zeros(0, np.int32)
        self._sampler = NumpySampler(
            lambda: self._logits, lambda: self._token_ids, width, options.max_sequences
        )
        self._info = EngineInfo(
            backend="oracle",
            device=f"NumPy oracle ({reason})",
            vocab_size=width,
            options=options,
            weight_bytes=0,
            state_bytes=sum(array.nbytes for array in self._oracle.states.values()),
            workspace_bytes=0,
        )

    @property
    def info(self) -> EngineInfo:
        """Facts of this engine; weights are decoded on demand and count as 0 bytes."""
        return self._info

    def forward(self, step: StepInputs) -> None:
        """Run one step; its logits stay readable until the next one.

        Raises:
            ShapeError: If an array of the step does not fit.
            DeviceError: If the engine is closed.
        """
        if self._oracle is None:
            raise DeviceError("the engine is closed")
        if len(step.token_ids) == 0:
            raise ShapeError("a step has one token at least")
        token_ids = self._token_ids = step.token_ids.copy()
        if step.feeds is not None:
            self._sampler.feed(step.feeds, len(token_ids))
        outside = (token_ids < 0) | (token_ids >= self._ids_limit)
        outside |= step.slot_mapping >= self._options.num_blocks * self._options.block_size
        faulty: list[int] = np.unique(step.rows[outside]).tolist()
        self._faults = dict.fromkeys(faulty, "a token id or a KV slot is out of range")
        slots = {
            "token_ids": token_ids,
            "positions": step.positions,
            "rows": step.rows,
            "sequence_lengths": step.sequence_lengths,
            "block_tables": step.block_tables,
            "slot_mapping": step.slot_mapping,
            "logit_positions": step.logit_positions,
        }
        if self._has_types:
            types = step.token_types
            slots["token_types"] = np.zeros_like(step.token_ids) if types is None else types
        outputs = self._oracle.step(slots)
        self._logits = np.ascontiguousarray(outputs[self._output], np.float32)

    def greedy(self) -> Int32:
        """Return (L,) ids of the largest logits of the last step (lowest id on a tie)."""
        return self._logits.argmax(axis=-1).astype(np.int32)

    def logits(self) -> Float32:
        """Return (L, vocab_size) logits of the last step."""
        return self._logits

    def sample(self, params: NDArray[np.uint32]) -> None:
        """Choose the next token of some rows of the last step."""
        self._sampler.sample(params, len(self._logits))

    def sampled(self) -> Sampled:
        """Return the tokens of the last ``sample``."""
        return self._sampler.sampled()

    def set_counts(self, slot: int, entries: NDArray[np.uint32]) -> None:
        """Set what penalties count of a slot, before its first row that counts."""
        self._sampler.set_counts(slot, entries)

    def step_faults(self) -> Mapping[int, str]:
        """Return the rows of the last step whose data-dependent indices left their range."""
        return self._faults

    def close(self) -> None:
        """Release weights and states; closing twice is allowed."""
        self._oracle = None
