"""One request under way: its tokens, its blocks and how far it has come."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from poot_llm._request import Request, Timings
from poot_llm._sampler import RowSampler

__all__ = ["Sequence"]


class Sequence:
    """State of one request; the scheduler and the driver change it.

    Attributes:
        tokens: (limit,) int32, prompt and answer; the first ``length`` are set.
        length: Tokens known.
        computed: Tokens whose keys and values stand in the pool.
        limit: Length at which the sequence ends.
        blocks: KV blocks, in order of position.
        blocks_version: Changes whenever ``blocks`` does.
        scheduled: Tokens that the current step computes.
        wanted: Rows of logits that the current step returns for it.
    """

    __slots__ = (
        "blocks", "blocks_version", "computed", "end_ids", "first_step_s", "first_token_s",
        "length", "limit", "logit_rows", "preemptions", "prompt_length", "request_id", "sampler",
        "scheduled", "scores_prompt", "start_s", "tokens", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        request_id: int,
        request: Request,
        prompt: NDArray[np.int32],
        *,
        limit: int,
        end_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        self.request_id = request_id
        self.prompt_length = prompt.size
        self.limit = limit
        self.tokens: NDArray[np.int32] = np.empty(max(limit, prompt.size), np.int32)
        self.tokens[: prompt.size] = prompt
        self.length = prompt.size
        self.computed = 0
        self.blocks: list[int] = []
        self.blocks_version = 0
        self.scheduled = 0
        self.wanted = 0
        self.end_ids = end_ids
        self.scores_prompt = request.scores_prompt
        self.logit_rows: list[NDArray[np.float32]] = []
        self.preemptions = 0
        self.sampler = RowSampler(
            request.params,
            end_ids=end_ids,
            prompt_ids=prompt.tolist(),
            vocab_size=vocab_size,
            limit=max(0, limit - prompt.size),
            choice=request.choice,
        )
        self.start_s = perf_counter()
        self.first_step_s = 0.0
        self.first_token_s = 0.0

    @property
    def pending(self) -> int:
        """Tokens that are known but not computed."""
        return self.length - self.computed

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return self.length - self.prompt_length

    def restart(self) -> None:
        """Forget what was computed, not what is known."""
        self.computed = 0
        self.logit_rows.clear()
        self.preemptions += 1

    def timings(self, now_s: float) -> Timings:
        """Return where the time went until ``now_s`` (``time.perf_counter``)."""
        first_step = self.first_step_s or now_s
        first_token = self.first_token_s or now_s
        return Timings(
            queue_s=first_step - self.start_s,
            prefill_s=first_token - first_step,
            decode_s=now_s - first_token,
            prompt_tokens=self.prompt_length,
            output_tokens=self.generated,
            preemptions=self.preemptions,
        )
