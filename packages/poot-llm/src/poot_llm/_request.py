"""What goes into the driver and what comes out: tokens alone, so that text lives in another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from poot_llm._sampler import Logprobs
from poot_llm._sampling_params import SamplingParams

__all__ = ["FinishReason", "Request", "ScoredPrompt", "Timings", "TokenEvent"]

FinishReason = Literal["stop", "length", "scored", "deadline", "error"]
"""``stop``: an end token came (or, above the driver, a stop string). ``length``: ``max_tokens`` or the
context is used up. ``scored``: a request for prompt logits is done. ``deadline``: its time is up.
``error``: see the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to continue.

    Attributes:
        prompt_ids: Token ids as they go into the model; nothing is added.
        params: How to sample.
        choice: Which of several answers to one prompt this is; part of the random key.
        scores_prompt: Return the logits of every prompt position in place of an answer.
        cache_salt: Prefixes are shared only among requests with the same salt; part of the hash.
        priority: Requests of a lower number are admitted first, and put back last.
        deadline_s: Seconds from arrival after which the request ends; None has no such bound.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    choice: int = 0
    scores_prompt: bool = False
    cache_salt: str | None = None
    priority: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of one request went, in seconds.

    Attributes:
        queue_s: From arrival to its first step.
        prefill_s: From its first step to its first token.
        decode_s: From its first token to its last.
        prompt_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
        preemptions: How often it was put back for want of blocks.
        cached_tokens: Tokens of the prompt whose keys and values were there already.
    """

    queue_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens: int
    output_tokens: int
    preemptions: int = 0
    cached_tokens: int = 0

    @property
    def first_token_s(self) -> float:
        """From arrival to the first token."""
        return self.queue_s + self.prefill_s

    @property
    def prefill_tok_s(self) -> float | None:
        """Prompt tokens a second, or None where the clock saw no time."""
        return self.prompt_tokens / self.prefill_s if self.prefill_s > 0 else None

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens a second after the first, or None where there was one token."""
        return (self.output_tokens - 1) / self.decode_s if self.decode_s > 0 else None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return all figures, derived ones included, for printing."""
        return {
            "queue_s": self.queue_s,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "first_token_s": self.first_token_s,
            "prefill_tok_s": self.prefill_tok_s,
            "decode_tok_s": self.decode_tok_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "preemptions": self.preemptions,
            "cached_tokens": self.cached_tokens,
        }


@dataclass(slots=True)
class TokenEvent:
    """What one step did for one request.

    Attributes:
        request_id: What ``Driver.add`` returned.
        token_ids: New tokens; an end token is among them.
        logprobs: One entry a new token where the request asks for them.
        finish_reason: Why the request ended, or None while it goes on.
        error: What went wrong where the reason is ``error``.
        timings: Set with the finish reason.
        cached_tokens: Set with the first token: tokens of the prompt that were in the prefix cache.
        prompt_logprobs: Set with the first token (or the end, if there is none) where the request asks
            for them: one entry a token of the prompt, None for the first.
    """

    request_id: int
    token_ids: list[int]
    logprobs: list[Logprobs] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    timings: Timings | None = None
    cached_tokens: int | None = None
    prompt_logprobs: list[Logprobs | None] | None = None


@dataclass(slots=True)
class ScoredPrompt(TokenEvent):
    """The only event of a request for prompt logits, apart because an array goes no common wire.

    Attributes:
        prompt_logits: (prompt_tokens, vocab_size) float32, unless the reason is ``error``.
    """

    prompt_logits: NDArray[np.float32] | None = None
