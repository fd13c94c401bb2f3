"""Rotary frequencies: one function for each way of stretching a context.

Each returns the inverse frequencies (radians a position, one for each rotated pair) and the factor
that scales cosine and sine. They are computed in double precision and rounded once to f32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Frequencies",
    "default",
    "linear",
    "llama3",
    "longrope",
    "ntk_alpha",
    "proportional",
    "yarn",
]

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Frequencies:
    """What turns a position into angles.

    Attributes:
        inverse: Radians a position for each rotated pair, exact f32 values.
        scale: Factor on cosine and sine.
    """

    inverse: tuple[float, ...]
    scale: float = 1.0


def _base(dim: int, theta: float) -> Float64:
    """Return theta^(-2i/dim) for i in 0..dim/2 (RoFormer, arXiv:2104.09864, sec. 3.2.2)."""
    return theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)


def _frequencies(inverse: Float64, scale: float = 1.0) -> Frequencies:
    return Frequencies(tuple(inverse.astype(np.float32).tolist()), float(np.float32(scale)))


def default(dim: int, theta: float) -> Frequencies:
    """Return plain frequencies.

    >>> default(4, 100.0).inverse
    (1.0, 0.10000000149011612)
    """
    return _frequencies(_base(dim, theta))


def linear(dim: int, theta: float, *, factor: float) -> Frequencies:
    """Return frequencies divided by ``factor`` (position interpolation, arXiv:2306.15595)."""
    return _frequencies(_base(dim, theta) / factor)


def ntk_alpha(dim: int, theta: float, *, alpha: float) -> Frequencies:
    """Return frequencies of the base stretched by a fixed ``alpha`` (NTK-aware scaling)."""
    return _frequencies(_base(dim, theta * alpha ** (dim / (dim - 2))))


def proportional(dim: int, theta: float, *, rotated: float, factor: float = 1.0) -> Frequencies:
    """Return frequencies of which only the first ``rotated`` share of pairs turns."""
    inverse = _base(dim, theta) / factor
    inverse[int(rotated * dim // 2) :] = 0.0
    return _frequencies(inverse)


def llama3(
    dim: int,
    theta: float,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_context: int,
) -> Frequencies:
    """Return Llama 3.1 frequencies.

    Pairs that turn at least ``high_freq_factor`` times within the original context stay, those
    that turn at most ``low_freq_factor`` times are divided by ``factor``, the others are blended.
    """
    inverse = _base(dim, theta)
    turns = original_context * inverse / (2 * math.pi)
    kept = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return _frequencies(inverse * (kept + (1 - kept) / factor))


def yarn(
    dim: int,
    theta: float,
    *,
    factor: float,
    original_context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    mscale: float = 0.0,
    mscale_all_dim: float = 0.0,
    truncate: bool = True,
) -> Frequencies:
    """Return YaRN frequencies (arXiv:2309.00071, sec. 3.2 to 3.4).

    Args:
        dim: Rotated elements of a head.
        theta: Base.
        factor: How far the context is stretched.
        original_context: Context that the model was pretrained with, in tokens.
        beta_fast: Turns within the original context from which a pair is left alone.
        beta_slow: Turns up to which a pair is fully interpolated.
        attention_factor: Factor on cosine and sine; by default 0.1 ln(factor) + 1.
        mscale: With ``mscale_all_dim``, numerator of that factor (DeepSeek-V2); 0 for none.
        mscale_all_dim: Its denominator.
        truncate: Whether the ends of the blend are rounded to whole pairs.
    """

    def pair_of(turns: float) -> float:
        return dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # NOTE: the reference widens an empty blend by a thousandth of a pair.
    width = high - low if high != low else 0.001
    blend = np.clip((np.arange(dim // 2) - low) / width, 0.0, 1.0)
    inverse = _base(dim, theta)
    if attention_factor is None:
        attention_factor = _yarn_scale(factor, 1.0)
        if mscale and mscale_all_dim:
            attention_factor = _yarn_scale(factor, mscale) / _yarn_scale(factor, mscale_all_dim)
    return _frequencies(inverse * (1 - blend) + inverse / factor * blend, attention_factor)


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope(
    dim: int,
    theta: float,
    *,
    factors: tuple[float, ...],
    factor: float,
    original_context: int,
    attention_factor: float | None = None,
) -> Frequencies:
    """Return LongRoPE frequencies (arXiv:2402.13753): divided pair by pair by ``factors``."""
    if attention_factor is None:
        stretched = 1 + math.log(factor) / math.log(original_context) if factor > 1 else 1.0
        attention_factor = math.sqrt(stretched)
    return _frequencies(_base(dim, theta) / np.asarray(factors, np.float64), attention_factor)
