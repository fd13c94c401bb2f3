"""Sampling by sorting and whole numbers: what the kernels of the sampler mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_kernelgen._power import POWER_COEFFICIENTS
from poot_kernelgen.requests import SAMPLE_FIELDS

__all__ = ["sample", "sampled_weights"]

Float32 = NDArray[np.float32]
Uint64 = NDArray[np.uint64]


def sampled_weights(logits: Float32, scale: np.float32) -> Uint64:
    """Return what each logit weighs: ``2**31 * 2**-((largest - logit) * scale)``, a whole number.

    Args:
        logits: (N,) float32 without NaN; the largest is finite.
        scale: log2(e) / temperature.
    """
    with np.errstate(over="ignore"):
        reach = (logits.max() - logits) * scale
    near = reach < np.float32(32.0)
    fixed = (np.where(near, reach, np.float32(0)) * np.float32(2**26)).astype(np.uint64)
    x = (fixed << np.uint64(6)) & np.uint64(2**32 - 1)
    *others, polynomial = (np.uint64(c) for c in POWER_COEFFICIENTS)
    for coefficient in reversed(others):
        polynomial = coefficient - ((x * polynomial) >> np.uint64(32))
    power = np.uint64(2**31) - ((x * polynomial) >> np.uint64(33))
    halvings = fixed >> np.uint64(26)
    half = (np.uint64(1) << halvings) >> np.uint64(1)
    return np.where(near, (power + half) >> halvings, np.uint64(0))


def _take_penalties(
    logits: Float32, counts: NDArray[np.uint32], words: dict[str, np.uint32]
) -> Float32:
    """Return (N,) logits after repetition, frequency and presence penalty."""
    repetition, inverse, frequency, presence = (
        words[name].view(np.float32)
        for name in ("repetition", "inverse_repetition", "frequency", "presence")
    )
    times = (counts >> 1).astype(np.float32)
    found = logits * np.where(logits > 0, inverse, repetition)
    found = found - times * frequency
    found = found - np.where(times > 0, presence, np.float32(0))
    return np.where(counts > 0, found, logits)


def _random_bits(words: dict[str, np.uint32]) -> int:
    """Return the 64 random bits that draw a row's token (Philox 4x32-10)."""
    mask = 0xFFFFFFFF
    a, b, c, d = int(words["position"]), int(words["choice"]), 0, 0
    k, m = int(words["seed_low"]), int(words["seed_high"])
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b = (right >> 32) ^ b ^ k, right & mask
        c, d = (left >> 32) ^ d ^ m, left & mask
        k, m = (k + 0x9E3779B9) & mask, (m + 0xBB67AE85) & mask
    return a << 32 | b


def sample(
    logits: Float32, params: NDArray[np.uint32], counts: NDArray[np.uint32] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the next token of each row and whether it is at fault.

    Rows that count their tokens change ``logits`` (by penalties) and ``counts`` (by the token).

    Args:
        logits: (L, N) float32.
        params: (S, fields) uint32, see ``SAMPLE_FIELDS``.
        counts: (slots, N) uint32: 1 for a token of prompt or answer, 2 more each time in the answer.

    Returns:
        ids (S,) and faults (S,), 1 where the largest logit is no finite number or a logit is a NaN.
    """
    ids, faults = np.zeros((2, len(params)), np.int32)
    for place, row in enumerate(params):
        words = dict(zip(SAMPLE_FIELDS, row, strict=True))
        flags, slot = int(words["flags"]), int(words["slot"])
        of_row = logits[words["logits_row"]]
        if flags & 2:
            assert counts is not None
            of_row[:] = _take_penalties(of_row, counts[slot], words)
        if np.isnan(of_row).any() or not np.isfinite(of_row.max()):
            faults[place] = 1
            ids[place] = np.where(np.isnan(of_row), np.inf, of_row).argmax()
        else:
            ids[place] = _draw(of_row, words) if flags & 1 else of_row.argmax()
        if flags & 2:
            assert counts is not None
            counts[slot, ids[place]] = (counts[slot, ids[place]] | 1) + 2
    return ids, faults


def _draw(logits: Float32, words: dict[str, np.uint32]) -> int:
    weights = sampled_weights(logits, words["scale"].view(np.float32))
    distances = logits.max() - logits
    # Most likely first, of equal ones the lowest id first.
    order = np.argsort(distances, kind="stable")
    top_k = int(words["top_k"])
    if 0 < top_k < order.size:
        order = order[distances[order] <= distances[order[top_k - 1]]]
    if words["top_p"]:
        so_far = np.cumsum(weights[order])
        need = max(1, int(so_far[-1]) * int(words["top_p"]) >> 32)
        order = order[: int(np.searchsorted(so_far, np.uint64(need))) + 1]
    kept = np.sort(order[weights[order] >= words["min_weight"]])
    so_far = np.cumsum(weights[kept])
    goal = _random_bits(words) * int(so_far[-1]) >> 64
    return int(kept[np.searchsorted(so_far, np.uint64(goal), side="right")])
