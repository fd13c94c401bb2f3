"""Chooses the next token of one sequence from its row of logits.

Rows are handled one by one with a random number keyed by (seed, choice, position), so what a request
gets does not depend on its neighbours in the step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from poot_llm._dry import dry_penalties
from poot_llm._filters import candidates, draw, exclude_top, largest_ids, log_total
from poot_llm._preparation import Preparation
from poot_llm._random import random_bits, uniform
from poot_llm._sampling_params import SamplingParams

__all__ = ["Logprobs", "RowSampler", "row_logprobs"]

Float32 = NDArray[np.float32]


class Logprobs(NamedTuple):
    """Log-probabilities of one position, of the raw logits, in nats.

    Attributes:
        token_id: The token that was chosen.
        logprob: Its log-probability.
        top: The most likely tokens with theirs, most likely first, lower id first on a tie.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class _Seen:
    """Tokens that penalties count: each id once, with how often the answer holds it."""

    ids: NDArray[np.int64]
    counts: NDArray[np.float32]
    size: int
    index: dict[int, int]

    @classmethod
    def of(cls, prompt_ids: Iterable[int], limit: int) -> _Seen:
        unique = sorted(set(prompt_ids))
        seen = cls(
            np.zeros(len(unique) + limit, np.int64),
            np.zeros(len(unique) + limit, np.float32),
            len(unique),
            {token_id: place for place, token_id in enumerate(unique)},
        )
        seen.ids[: len(unique)] = unique
        return seen

    def add(self, token_id: int) -> None:
        place = self.index.setdefault(token_id, self.size)
        if place == self.size:
            self.ids[place] = token_id
            self.size += 1
        self.counts[place] += 1.0


class RowSampler:
    """Sampling state of one sequence.

    Args:
        params: What the request asks.
        end_ids: Tokens that end the sequence; forbidden until ``min_tokens``.
        prompt: (n,) ids, for the repetition penalty.
        vocab_size: Width of a row; end tokens past it are left out.
        limit: Most tokens that will be added.
        choice: Which answer of the request this is.
        preparation: What the driver's ``prepare`` made of the parameters.

    Attributes:
        is_plain: Whether the engine's own greedy choice is the answer at every position.
        is_on_device: Whether the engine's sampler can choose every token; otherwise its logits come
            here.
        counts_tokens: Whether penalties count tokens.
        is_complete: Whether the constraint admits nothing more.
    """

    __slots__ = (
        "_bias_ids",
        "_bias_values",
        "_choice",
        "_dry_breakers",
        "_end_ids",
        "_matcher",
        "_params",
        "_seed",
        "_seen",
        "counts_tokens",
        "is_complete",
        "is_on_device",
        "is_plain",
    )  # fmt: skip

    def __init__(
        self,
        params: SamplingParams,
        *,
        end_ids: Iterable[int],
        prompt: NDArray[np.int32],
        vocab_size: int,
        limit: int,
        choice: int = 0,
        preparation: Preparation | None = None,
    ) -> None:
        self._params = params
        self._choice = choice
        self._seed = int.from_bytes(os.urandom(8), "little") if params.seed is None else params.seed
        self._end_ids = np.array([i for i in sorted(end_ids) if i < vocab_size], np.int64)
        bias = params.logit_bias
        self._bias_ids = np.array(list(bias), np.int64)
        self._bias_values = np.array(list(bias.values()), np.float32)
        self._seen = _Seen.of(prompt.tolist(), limit) if params.has_penalties else None
        preparation = preparation or Preparation()
        self._matcher = preparation.matcher
        self._dry_breakers = preparation.dry_breakers
        self.is_complete = False
        self.counts_tokens = self._seen is not None
        self.is_on_device = (
            params.logprobs is None
            and params.prompt_logprobs is None  # penalties would change the logits that it scores
            and not bias
            and self._matcher is None
            and params.dry_multiplier == 0.0
            and params.min_tokens == 0
            and (params.is_greedy or params.typical_p == 1.0)
            and (params.is_greedy or params.xtc_probability == 0.0)
        )
        self.is_plain = self.is_on_device and params.is_greedy and not self.counts_tokens

    def words(self, slot: int) -> NDArray[np.uint32]:
        """Return what the engine's sampler needs to know, but for row of logits and position."""
        from poot_kernelgen import sample_words

        params = self._params
        return sample_words(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=self._seed,
            choice=self._choice,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            counts_tokens=self.counts_tokens,
            slot=slot,
        )

    def counts(self) -> NDArray[np.uint32]:
        """Return (E, 2) pairs of a token that penalties know and its count, as engines count."""
        seen = self._seen
        if seen is None:
            return np.zeros((0, 2), np.uint32)
        counts = seen.counts[: seen.size].astype(np.uint32)
        return np.stack([seen.ids[: seen.size].astype(np.uint32), 2 * counts + 1], axis=1)

    def prepare_mask(self) -> None:
        """Find out which tokens the constraint admits next; ``choose`` does it where nobody did."""
        if self._matcher is not None:
            self._matcher.prepare_mask()

    def choose(
        self, row: Float32, *, tokens: NDArray[np.int32], generated: int
    ) -> tuple[int, Logprobs | None]:
        """Return the next token and, where the request asks for them, its log-probabilities.

        Args:
            row: (vocab_size,) raw logits, not changed.
            tokens: (n,) prompt and answer so far.
            generated: Tokens of the answer so far.

        Raises:
            FloatingPointError: If the largest logit is no finite number.
            RequestError: If the constraint ran into a limit of its own.
        """
        params = self._params
        edited = self._edit(row, tokens, generated)
        if params.is_greedy:
            token_id = int(edited.argmax())
            if not math.isfinite(edited[token_id]):
                raise FloatingPointError(
                    f"the largest logit is {edited[token_id]}; the model's output is not finite"
                )
        else:
            token_id = self._draw(edited, tokens.size)
        if params.logprobs is None:
            return token_id, None
        return token_id, row_logprobs(row, token_id, params.logprobs)

    def _draw(self, logits: Float32, position: int) -> int:
        params = self._params
        ids, weights = candidates(
            logits,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            typical_p=params.typical_p,
        )
        if params.xtc_probability > 0.0:
            acts = uniform(self._seed, self._choice, position, purpose=1) < params.xtc_probability
            if acts:
                ids, weights = exclude_top(ids, weights, params.xtc_threshold)
        return draw(ids, weights, random_bits(self._seed, self._choice, position))

    def observe(self, token_id: int) -> None:
        """Count a token of the answer."""
        if self._seen is not None:
            self._seen.add(token_id)
        if self._matcher is not None:
            self._matcher.consume(token_id)
            self.is_complete = self._matcher.is_complete

    def _edit(self, row: Float32, tokens: NDArray[np.int32], generated: int) -> Float32:
        """Return the row with all that changes logits; the row itself where nothing does."""
        params = self._params
        forbids_end = generated < params.min_tokens and self._end_ids.size > 0
        has_dry = params.dry_multiplier > 0.0
        if not (
            forbids_end
            or has_dry
            or self._bias_ids.size
            or self._seen is not None
            or self._matcher is not None
        ):
            return row
        edited = row.copy()
        if self._matcher is not None:
            allowed = self._matcher.mask(row.size)
            edited[~allowed] = -np.inf
            # Where the constraint leaves nothing but an end, it goes before the least length.
            forbids_end = forbids_end and allowed.sum() > allowed[self._end_ids].sum()
        if self._bias_ids.size:
            edited[self._bias_ids] += self._bias_values
        if forbids_end:
            edited[self._end_ids] = -np.inf
        if self._seen is not None:
            self._penalise(edited, self._seen)
        if has_dry:
            ids, penalties = dry_penalties(
                tokens,
                multiplier=params.dry_multiplier,
                base=params.dry_base,
                allowed_length=params.dry_allowed_length,
                search_range=params.dry_range,
                breakers=self._dry_breakers,
            )
            edited[ids] -= penalties
        return edited

    def _penalise(self, edited: Float32, seen: _Seen) -> None:
        params = self._params
        ids = seen.ids[: seen.size]
        counts = seen.counts[: seen.size]
        values = edited[ids]
        factor = np.float32(params.repetition_penalty)
        inverse = np.float32(
            1.0 / params.repetition_penalty
        )  # as devices do, whose division is not exact
        values = np.where(values > 0, values * inverse, values * factor)
        values -= counts * np.float32(params.frequency_penalty)
        values -= (counts > 0) * np.float32(params.presence_penalty)
        edited[ids] = values


def row_logprobs(row: Float32, token_id: int, num_top: int) -> Logprobs:
    """Return the log-probabilities of a row of raw logits.

    Args:
        row: (vocab_size,) float32.
        token_id: The token that was chosen.
        num_top: How many most likely tokens to name.
    """
    total = log_total(row)
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        count = min(num_top, row.size)
        ids = largest_ids(row, count)
        ids = ids[np.argsort(-row[ids], kind="stable")][:count]
        top = tuple((int(i), float(row[i]) - total) for i in ids)
    return Logprobs(token_id, float(row[token_id]) - total, top)
