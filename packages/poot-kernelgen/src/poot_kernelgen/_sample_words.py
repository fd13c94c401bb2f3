"""How one row is sampled, as the words that kernels take: see ``SAMPLE_FIELDS``."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from poot_kernelgen.requests import SAMPLE_FIELDS

__all__ = ["sample_words", "weight_scale"]

_WORD = 0xFFFFFFFF
_LOWEST_SCALE, _HIGHEST_SCALE = 1e-30, 1e30
"""Temperatures beyond are taken as these, so that no product leaves f32."""


def weight_scale(temperature: float) -> np.float32:
    """Return log2(e) / temperature in float32: how a distance between logits becomes halvings.

    Args:
        temperature: More than 0.
    """
    wanted = math.log2(math.e) / max(temperature, 1.0 / _HIGHEST_SCALE)
    return np.float32(min(max(wanted, _LOWEST_SCALE), _HIGHEST_SCALE))


def sample_words(
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    choice: int = 0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    counts_tokens: bool = False,
    logits_row: int = 0,
    slot: int = 0,
    position: int = 0,
) -> NDArray[np.uint32]:
    """Return the (fields,) u32 words of one row's parameters.

    Args:
        temperature: Divides the logits; 0 takes the largest.
        top_k: Keeps so many and ties with the last; 0 or less keeps all.
        top_p: Keeps the fewest that reach this share.
        min_p: Keeps what weighs at least this share of the largest weight.
        seed: Key, modulo 2**64.
        choice: First further part of the counter.
        repetition_penalty: Divides positive, multiplies negative logits of tokens that are counted.
        frequency_penalty: Taken off for each time that a token stands in the answer.
        presence_penalty: Taken off if it stands in the answer.
        counts_tokens: Whether penalties are taken and the token is counted.
        logits_row: Row of the logits.
        slot: Row of the tables that outlive a step.
        position: Position of the token that is drawn.

    >>> int(sample_words(temperature=1.0, top_p=0.5)[SAMPLE_FIELDS.index("top_p")]) == 2**31
    True
    """
    scale = weight_scale(temperature or 1.0)
    reach = np.float32(33.0 / float(scale))  # beyond 32 / scale, whatever rounding does
    values: dict[str, int | np.float32] = {
        "logits_row": logits_row,
        "slot": slot,
        "flags": (temperature > 0.0) + 2 * counts_tokens,
        "scale": scale,
        "reach": reach,
        "top_k": min(max(top_k, 0), _WORD),
        "top_p": min(max(int(top_p * 2.0**32), 1), _WORD) if top_p < 1.0 else 0,
        "min_weight": max(1, math.ceil(min_p * 2.0**31)),
        "seed_low": seed & _WORD,
        "seed_high": (seed >> 32) & _WORD,
        "choice": choice & _WORD,
        "position": position & _WORD,
        "repetition": np.float32(repetition_penalty),
        "inverse_repetition": np.float32(1.0 / repetition_penalty),
        "frequency": np.float32(frequency_penalty),
        "presence": np.float32(presence_penalty),
    }
    words = np.zeros(len(SAMPLE_FIELDS), np.uint32)
    for place, name in enumerate(SAMPLE_FIELDS):
        value = values[name]
        words[place] = value if isinstance(value, int) else value.view(np.uint32)
    return words
