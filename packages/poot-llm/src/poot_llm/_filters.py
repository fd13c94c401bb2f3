"""Sampling filters: which tokens may be drawn, and with what probability. Pure NumPy functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["candidates", "draw"]

Ids = NDArray[np.int64]
Float64 = NDArray[np.float64]


def candidates(
    logits: NDArray[np.float32],
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
    if 0 < top_k < logits.size:
        least = np.partition(logits, logits.size - top_k)[logits.size - top_k]
        ids = np.flatnonzero(logits >= least)
        kept = logits[ids]
    else:
        ids = np.arange(logits.size)
        kept = logits
    most = float(kept.max())
    if not math.isfinite(most):
        raise FloatingPointError(f"the largest logit is {most}; the model's output is not finite")
    shifted = (kept.astype(np.float64) - most) / temperature
    weights = np.exp(shifted)
    weights /= weights.sum()
    if top_p < 1.0:
        ids, weights = _select(ids, weights, _nucleus(weights, top_p))
    if min_p > 0.0:
        ids, weights = _select(ids, weights, np.flatnonzero(weights >= min_p * weights.max()))
    if typical_p < 1.0:
        ids, weights = _select(ids, weights, _typical(weights, typical_p))
    return ids, weights


def draw(ids: Ids, probabilities: Float64, random: float) -> int:
    """Return the id at ``random`` (in [0, 1)) of the distribution, ids in ascending order."""
    cumulative = np.cumsum(probabilities)
    place = int(np.searchsorted(cumulative, random * float(cumulative[-1]), side="right"))
    return int(ids[min(place, ids.size - 1)])


def _select(ids: Ids, weights: Float64, chosen: Ids) -> tuple[Ids, Float64]:
    kept = weights[chosen]
    return ids[chosen], kept / kept.sum()


def _prefix(order: Ids, weights: Float64, mass: float) -> Ids:
    """Return, ascending, the shortest prefix of ``order`` whose weights sum to ``mass``."""
    cumulative = np.cumsum(weights[order])
    count = int(np.searchsorted(cumulative, mass, side="left")) + 1
    return np.sort(order[:count])


def _nucleus(weights: Float64, mass: float) -> Ids:
    # Tokens below this share sum to less than 1 - mass, so none of them is in the nucleus and the
    # sort sees a few hundred candidates of a vocabulary of 262144.
    likely: NDArray[Any] = np.flatnonzero(weights >= (1.0 - mass) / weights.size * 0.999)
    order = likely[np.argsort(-weights[likely], kind="stable")]
    return _prefix(order, weights, mass)


def _typical(weights: Float64, mass: float) -> Ids:
    positive = np.flatnonzero(weights > 0.0)
    surprise = -np.log(weights[positive])
    entropy = float((weights[positive] * surprise).sum())
    order = positive[np.argsort(np.abs(surprise - entropy), kind="stable")]
    return _prefix(order, weights, mass)
