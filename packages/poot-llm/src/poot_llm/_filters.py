"""Sampling filters: which tokens may be drawn, and with what probability. Pure NumPy functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["candidates", "draw", "draw_any", "exclude_top", "largest_ids", "log_total"]

Ids = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_DISTANCES = (2.0, 4.0, 8.0, 16.0)
"""How far below the largest logit (in units of the temperature) to look before looking at all."""
_BLOCK = 1024


def candidates(
    logits: Float32,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> tuple[Ids, Float64]:
    """Return the ids that may be drawn, ascending, and their probabilities.

    Args:
        logits: (vocab_size,) float32, not changed.
        temperature: More than 0.
        top_k: Keep the k largest and ties with the last; 0 or less keeps all.
        top_p: Keep the fewest most likely tokens that reach this mass.
        min_p: Keep tokens at least this many times as likely as the most likely one.
        typical_p: Keep the tokens nearest to the entropy that reach this mass.

    Returns:
        ids (n,) and probabilities (n,) that sum to 1.

    Raises:
        FloatingPointError: If the largest logit is no finite number.
    """
    most = largest(logits)
    total = None
    # A vocabulary has up to 262144 tokens: narrow it down cheaply before anything exact is done.
    if 0 < top_k < logits.size:
        ids = largest_ids(logits, top_k)
    elif top_p < 1.0:
        ids, total = _likely(logits, most, temperature, top_p)
    elif min_p > 0.0 and typical_p == 1.0:
        ids = np.flatnonzero(logits >= most + temperature * (math.log(min_p) - 0.01))
    else:
        ids = np.arange(logits.size)
    weights = np.exp((logits[ids].astype(np.float64) - most) / temperature)
    weights /= weights.sum() if total is None else total
    if top_p < 1.0:
        ids, weights = _select(ids, weights, _nucleus(weights, top_p))
    if min_p > 0.0:
        ids, weights = _select(ids, weights, np.flatnonzero(weights >= min_p * weights.max()))
    if typical_p < 1.0:
        ids, weights = _select(ids, weights, _typical(weights, typical_p))
    return ids, weights


def draw(ids: Ids, probabilities: Float64, random: float) -> int:
    """Return the id at ``random`` (in [0, 1)) of the distribution, ids in ascending order."""
    return int(ids[_place(probabilities, random)])


def exclude_top(ids: Ids, probabilities: Float64, threshold: float) -> tuple[Ids, Float64]:
    """Return the distribution without its likeliest tokens (XTC: "exclude top choices").

    All tokens at least as likely as the threshold but the least likely of them are excluded, so that a
    token that is good enough stays; of equally likely ones the highest id stays.

    >>> exclude_top(np.array([3, 5, 8]), np.array([0.5, 0.125, 0.375]), 0.2)[0].tolist()
    [5, 8]
    """
    above = np.flatnonzero(probabilities >= threshold)
    if above.size < 2:
        return ids, probabilities
    stays = above[above.size - 1 - int(probabilities[above][::-1].argmin())]
    kept = np.ones(ids.size, np.bool_)
    kept[above] = False
    kept[stays] = True
    return _select(ids, probabilities, np.flatnonzero(kept))


def draw_any(logits: Float32, temperature: float, random: float) -> int:
    """Return the id at ``random`` of the whole distribution; as ``draw`` of all candidates."""
    weights = _weights(logits, largest(logits), temperature)
    sums = np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK), dtype=np.float64)
    block = _place(sums, random)
    before = float(sums[:block].sum())
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK].astype(np.float64)
    share = (random * float(sums.sum()) - before) / float(sums[block])
    return block * _BLOCK + _place(inside, min(max(share, 0.0), 1.0))


def log_total(logits: Float32) -> float:
    """Return the logarithm of the sum of the exponentials."""
    most = largest(logits)
    return most + math.log(float(_weights(logits, most, 1.0).sum(dtype=np.float64)))


def largest(logits: Float32) -> float:
    """Return the largest logit.

    Raises:
        FloatingPointError: If it is no finite number.
    """
    most = float(logits.max())
    if not math.isfinite(most):
        raise FloatingPointError(f"the largest logit is {most}; the model's output is not finite")
    return most


def _weights(logits: Float32, most: float, temperature: float) -> Float32:
    """Return exp((logits - most) / temperature) in float32, in one array."""
    weights = logits - np.float32(most)
    weights *= np.float32(1.0 / temperature)
    return np.exp(weights, out=weights)


def _place(weights: NDArray[Any], random: float) -> int:
    """Return the index at ``random`` of a distribution that need not sum to 1."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    # Past the end only by rounding: then the last one that can be drawn at all.
    place = int(np.searchsorted(cumulative, random * float(cumulative[-1]), side="right"))
    return place if place < weights.size else int(np.flatnonzero(weights)[-1])


def largest_ids(logits: Float32, count: int) -> Ids:
    """Return, ascending, the ids of the ``count`` largest logits and of ties with the last."""
    ids = _near(logits, largest(logits), 1.0, lambda ids: ids.size >= count)
    near = logits[ids]
    return ids[near >= np.partition(near, near.size - count)[near.size - count]]


def _likely(logits: Float32, most: float, temperature: float, mass: float) -> tuple[Ids, float]:
    """Return ids that hold the nucleus, ascending, and the sum of all weights."""
    weights = _weights(logits, most, temperature)
    total = float(weights.sum(dtype=np.float64))
    wanted = mass * total * (1 + 1e-6)  # rounding must not lose a token at the border
    ids = _near(
        logits, most, temperature, lambda ids: float(weights[ids].sum(dtype=np.float64)) >= wanted
    )
    return ids, total


def _near(logits: Float32, most: float, unit: float, is_enough: Callable[[Ids], bool]) -> Ids:
    """Return the ids of the logits nearest to the largest, enough of them, or all."""
    for distance in _DISTANCES:
        ids = np.flatnonzero(logits >= most - distance * unit)
        if is_enough(ids):
            return ids
    return np.arange(logits.size)


def _select(ids: Ids, weights: Float64, chosen: Ids) -> tuple[Ids, Float64]:
    kept = weights[chosen]
    return ids[chosen], kept / kept.sum()


def _nucleus(weights: Float64, mass: float) -> Ids:
    """Return, ascending, the fewest largest weights that sum to ``mass``; lower ones on a tie."""
    falling = np.sort(weights)[::-1]
    count = int(np.searchsorted(np.cumsum(falling), mass, side="left")) + 1
    least = falling[min(count, weights.size) - 1]
    above = np.flatnonzero(weights > least)
    ties = np.flatnonzero(weights == least)[: max(0, count - above.size)]
    return np.sort(np.concatenate([above, ties]))


def _typical(weights: Float64, mass: float) -> Ids:
    positive = np.flatnonzero(weights > 0.0)
    surprise = -np.log(weights[positive])
    entropy = float((weights[positive] * surprise).sum())
    order = positive[np.argsort(np.abs(surprise - entropy), kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order]), mass, side="left")) + 1
    return np.sort(order[:count])
