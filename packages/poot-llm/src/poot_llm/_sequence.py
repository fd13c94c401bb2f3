"""One request under way: what it asks, how far it has come, and where its time went."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from poot_llm._prefix import extend_hashes, root_hash
from poot_llm._request import Request, Timings
from poot_llm._sampler import RowSampler
from poot_llm._scoring import PromptScores

__all__ = ["Sequence"]


class Sequence:
    """State of one request; the scheduler and the driver change it.

    While it runs, its tokens, lengths and blocks stand in a row of the table.

    Attributes:
        key: Order of admission: priority, then arrival.
        row: Its row while it runs, or None.
        tokens: Prompt and answer as they were when it last waited.
        limit: Length at which it ends.
        sampler: Chooses its tokens.
        stop_ids: Tokens that end it beside the model's own end tokens.
        obeys_eos: Whether the model's own end tokens end it.
        is_decoding: Whether it runs, all tokens but the last are computed, and there are more to come.
        is_spent: Whether it runs, but the step that makes its last token is under way.
        is_new: Whether it has had no token but its first.
        scores: What it collects of its prompt, or None where nothing is wanted (any more).
        hashes: Of its full blocks, in order.
        num_named: How many of its blocks the pool knows by their hashes.
        cached_tokens: Tokens of the prompt found in the prefix cache on its first admission.
        deadline_s: When it ends at the latest (``time.perf_counter``), or None.
    """

    __slots__ = (
        "cached_tokens", "deadline_s", "first_step_s", "first_token_s", "hashes", "is_decoding",
        "is_new", "is_spent", "key", "limit", "num_named", "obeys_eos", "preemptions", "prompt_length",
        "request_id", "root", "row", "sampler", "scores", "scores_prompt", "start_s", "stop_ids",
        "tokens",
    )  # fmt: skip

    def __init__(
        self,
        request_id: int,
        request: Request,
        prompt: NDArray[np.int32],
        *,
        limit: int,
        sampler: RowSampler,
    ) -> None:
        params = request.params
        self.request_id = request_id
        self.key = (request.priority, request_id)
        self.row: int | None = None
        self.prompt_length = prompt.size
        self.tokens = prompt
        self.limit = limit
        self.sampler = sampler
        self.stop_ids = frozenset(params.stop_token_ids)
        self.obeys_eos = not params.ignore_eos
        self.is_decoding = False
        self.is_new = True
        self.is_spent = False
        self.scores_prompt = request.scores_prompt
        self.scores: PromptScores | None = None
        if request.scores_prompt or params.prompt_logprobs is not None:
            num_top = None if request.scores_prompt else params.prompt_logprobs
            self.scores = PromptScores(prompt, num_top)
        self.root = root_hash(cache_salt=request.cache_salt)
        self.hashes: list[bytes] = []
        self.num_named = 0
        self.cached_tokens: int | None = None
        self.preemptions = 0
        self.start_s = perf_counter()
        self.deadline_s = None if request.deadline_s is None else self.start_s + request.deadline_s
        self.first_step_s = 0.0
        self.first_token_s = 0.0

    @property
    def answers(self) -> bool:
        """Whether it is to get any token."""
        return not self.scores_prompt and self.limit > self.prompt_length

    @property
    def needs_host(self) -> bool:
        """Whether each step of it must be read before the next one can be run."""
        return self.scores_prompt or not self.sampler.is_on_device

    def extend_hashes(self, tokens: NDArray[np.int32], block_size: int) -> None:
        """Hash the full blocks of ``tokens``, its tokens from the first on."""
        extend_hashes(self.hashes, self.root, tokens, block_size)

    def timings(self, length: int, now_s: float) -> Timings:
        """Return where the time went until ``now_s`` (``time.perf_counter``).

        Args:
            length: Tokens known.
            now_s: End of the time that counts.
        """
        first_step = self.first_step_s or now_s
        first_token = self.first_token_s or now_s
        return Timings(
            queue_s=first_step - self.start_s,
            prefill_s=first_token - first_step,
            decode_s=now_s - first_token,
            prompt_tokens=self.prompt_length,
            output_tokens=length - self.prompt_length,
            preemptions=self.preemptions,
            cached_tokens=self.cached_tokens or 0,
        )
