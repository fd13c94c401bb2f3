"""Sampling filters: which tokens may be drawn, and with what probability. Pure NumPy functions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["candidates", "draw", "exclude_top", "largest_ids", "log_total"]

Ids = NDArray[np.int64]
Float32 = NDArray[np.float32]
Uint64 = NDArray[np.uint64]

_DISTANCES = (2.0, 4.0, 8.0, 16.0)
"""How far below the largest logit to look before looking at all."""


def candidates(
    logits: Float32,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> tuple[Ids, Uint64]:
    """Return the ids that may be drawn, ascending, and what they weigh.

    Weights are whole numbers, 2**31 for the largest logit: the engine's own sampler computes the same
    (``poot_kernelgen.reference.sample``), so a seed gives one answer whichever side draws.

    Args:
        logits: (vocab_size,) float32, not changed.
        temperature: More than 0.
        top_k: Keep the k largest and ties with the last; 0 or less keeps all.
        top_p: Keep the fewest most likely tokens that reach this share.
        min_p: Keep tokens at least this many times as likely as the most likely one.
        typical_p: Keep the tokens nearest to the entropy that reach this share.

    Returns:
        ids (n,) and weights (n,), none of them 0.

    Raises:
        FloatingPointError: If the largest logit is no finite number.
    """
    from poot_kernelgen import SAMPLE_FIELDS, sample_words
    from poot_kernelgen.reference import sampled_weights

    most = np.float32(largest(logits))
    words = sample_words(temperature=temperature, top_p=top_p, min_p=min_p)
    scale, share, least = (
        words[SAMPLE_FIELDS.index(name)] for name in ("scale", "top_p", "min_weight")
    )
    # A vocabulary has up to 262144 tokens: leave out what weighs nothing before anything is counted.
    reach = float(words[SAMPLE_FIELDS.index("reach")].view(np.float32))
    if 0 < top_k < logits.size:
        # Order and ties are those of the distance in float32, which is what decides the weight.
        border = (most - logits[largest_ids(logits, top_k)]).max()
        ids = np.flatnonzero(most - logits <= border)
    else:
        ids = np.flatnonzero(logits >= float(most) - 2.0 * reach)
    weights = sampled_weights(logits[ids], scale.view(np.float32))
    ids, weights = _select(ids, weights, np.flatnonzero(weights))
    if share:
        ids, weights = _select(ids, weights, _nucleus(most - logits[ids], weights, int(share)))
    ids, weights = _select(ids, weights, np.flatnonzero(weights >= least))
    if typical_p < 1.0:
        ids, weights = _select(ids, weights, _typical(weights, typical_p))
    return ids, weights


def draw(ids: Ids, weights: Uint64, bits: int) -> int:
    """Return the id at ``bits / 2**64`` of the distribution, ids in ascending order."""
    so_far = np.cumsum(weights)
    goal = bits * int(so_far[-1]) >> 64
    return int(ids[np.searchsorted(so_far, np.uint64(goal), side="right")])


def exclude_top(ids: Ids, weights: Uint64, threshold: float) -> tuple[Ids, Uint64]:
    """Return the distribution without its likeliest tokens (XTC: "exclude top choices").

    All tokens at least as likely as the threshold but the least likely of them are excluded, so that a
    token that is good enough stays; of equally likely ones the highest id stays.

    >>> exclude_top(np.array([3, 5, 8]), np.array([4, 1, 3], np.uint64), 0.2)[0].tolist()
    [5, 8]
    """
    probabilities = weights / weights.sum()
    above = np.flatnonzero(probabilities >= threshold)
    if above.size < 2:
        return ids, weights
    stays = above[above.size - 1 - int(probabilities[above][::-1].argmin())]
    kept = np.ones(ids.size, np.bool_)
    kept[above] = False
    kept[stays] = True
    return _select(ids, weights, np.flatnonzero(kept))


def log_total(logits: Float32) -> float:
    """Return the logarithm of the sum of the exponentials."""
    most = largest(logits)
    weights = logits - np.float32(most)
    return most + math.log(float(np.exp(weights, out=weights).sum(dtype=np.float64)))


def largest(logits: Float32) -> float:
    """Return the largest logit.

    Raises:
        FloatingPointError: If it is no finite number.
    """
    most = float(logits.max())
    if not math.isfinite(most):
        raise FloatingPointError(f"the largest logit is {most}; the model's output is not finite")
    return most


def largest_ids(logits: Float32, count: int) -> Ids:
    """Return, ascending, the ids of the ``count`` largest logits and of ties with the last."""
    ids = _near(logits, largest(logits), count)
    near = logits[ids]
    return ids[near >= np.partition(near, near.size - count)[near.size - count]]


def _near(logits: Float32, most: float, count: int) -> Ids:
    """Return the ids of the logits nearest to the largest, at least ``count`` of them, or all."""
    for distance in _DISTANCES:
        ids = np.flatnonzero(logits >= most - distance)
        if ids.size >= count:
            return ids
    return np.arange(logits.size)


def _select(ids: Ids, weights: Uint64, chosen: Ids) -> tuple[Ids, Uint64]:
    return ids[chosen], weights[chosen]


def _nucleus(distances: Float32, weights: Uint64, share: int) -> Ids:
    """Return, ascending, the fewest nearest that reach a share (of 2**32); lower ones on a tie."""
    order = np.argsort(distances, kind="stable")
    so_far = np.cumsum(weights[order])
    need = max(1, int(so_far[-1]) * share >> 32)
    return np.sort(order[: int(np.searchsorted(so_far, np.uint64(need))) + 1])


def _typical(weights: Uint64, mass: float) -> Ids:
    probabilities = weights / weights.sum()
    surprise = -np.log(probabilities)
    entropy = float((probabilities * surprise).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    count = int(np.searchsorted(np.cumsum(probabilities[order]), mass, side="left")) + 1
    return np.sort(order[:count])
