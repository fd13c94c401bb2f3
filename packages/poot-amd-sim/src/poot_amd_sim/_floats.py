"""Float operations that NumPy lacks: fused multiply-add, conversions, division's helpers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "bf16_bits",
    "bf16_values",
    "class_mask",
    "div_fixup",
    "div_fmas",
    "div_scale",
    "flushed",
    "fma",
    "to_integer",
]

Floats = NDArray[np.float32]
Any_ = NDArray[Any]
_TINY = np.float32(2.0**-126)


def fma(a: Any_, b: Any_, c: Any_, dtype: Any = np.float32) -> Any_:
    """Return a * b + c rounded once to ``dtype`` (f32 or f16).

    The product is exact in f64; the sum is rounded to odd there, so that the second rounding cannot
    go wrong (Boldo and Melquiond, 2008).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    inexact = (error != 0) & np.isfinite(total)
    if np.any(inexact):
        bits = total.view(np.int64) if total.ndim else np.asarray(total)[None].view(np.int64)[0]
        step = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.where(inexact & (bits & 1 == 0), bits + step, bits)
        total = np.asarray(odd).view(np.float64)
    return total.astype(dtype)


def flushed(x: Any_) -> Any_:
    """Return f32 with denormals as zeros of the same sign."""
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)


def bf16_values(bits: Any_) -> Any_:
    """Return f32 values of u16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_bits(x: Any_) -> Any_:
    """Return u32 with the bits of f32 rounded to the nearest bf16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), (bits >> np.uint32(16)) | np.uint32(0x40), rounded)


def to_integer(x: Any_, dtype: Any) -> Any_:
    """Return floats truncated and clamped to an integer type; NaN is 0."""
    limits = np.iinfo(dtype)
    wide = np.nan_to_num(
        np.trunc(np.asarray(x, np.float64)), nan=0.0, posinf=2.0**62, neginf=-(2.0**62)
    )
    return np.clip(wide, limits.min, limits.max).astype(np.int64).astype(dtype)


def class_mask(x: Any_, mask: Any_) -> Any_:
    """Return whether a float's class is among the mask's ten bits (v_cmp_class)."""
    is_negative, is_normal = np.signbit(x), np.abs(x) >= _TINY
    bits = np.asarray(x, np.float32).view(np.uint32)
    index = np.select(
        [np.isnan(x), np.isinf(x), x == 0, is_normal],
        [
            np.where(bits & np.uint32(0x400000), 1, 0),
            np.where(is_negative, 2, 9),
            np.where(is_negative, 5, 6),
            np.where(is_negative, 3, 8),
        ],
        np.where(is_negative, 4, 7),
    )
    return (mask >> index.astype(np.uint32)) & np.uint32(1) != 0


def _exponent(x: Any_) -> Any_:
    return (np.asarray(x, np.float32).view(np.uint32) >> np.uint32(23) & np.uint32(255)).astype(
        np.int32
    )


def _is_denormal(x: Any_) -> Any_:
    return (x != 0) & (np.abs(x) < _TINY)


def div_scale(s0: Any_, s1: Any_, s2: Any_) -> tuple[Any_, Any_]:
    """Return V_DIV_SCALE_F32's result and flag; s1 is the denominator, s2 the numerator."""
    s0, s1, s2 = np.broadcast_arrays(s0, s1, s2)
    up, down = np.ldexp(s0, 64), np.ldexp(s0, -64)
    inverse_small = np.abs(1.0 / s1.astype(np.float64)) < float(_TINY)
    quotient_small = _is_denormal(s2 / s1)
    of_denominator, of_numerator = s0 == s1, s0 == s2
    conditions = [
        (s1 == 0) | (s2 == 0),
        _exponent(s2) - _exponent(s1) >= 96,
        _is_denormal(s1),
        inverse_small & quotient_small,
        inverse_small,
        quotient_small,
        _exponent(s2) <= 23,
    ]
    values = [
        np.full_like(s0, np.nan),
        np.where(of_denominator, up, s0),
        up,
        np.where(of_denominator, up, s0),
        down,
        np.where(of_numerator, up, s0),
        up,
    ]
    flags = [np.full(s0.shape, flag) for flag in (False, True, False, True, False, True, False)]
    return np.select(conditions, values, s0), np.select(conditions, flags, False)


def div_fmas(a: Any_, b: Any_, c: Any_, flag: Any_) -> Any_:
    """Return V_DIV_FMAS_F32: a * b + c, scaled back where div_scale said so."""
    shift = np.where(flag, np.where(_exponent(c) > 127, 64, -64), 0)
    exact = fma(a, b, c).astype(np.float64)
    return np.ldexp(exact, shift).astype(np.float32)


def div_fixup(quotient: Any_, denominator: Any_, numerator: Any_) -> Any_:
    """Return V_DIV_FIXUP_F32: the quotient, or what special operands give."""
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), np.float32(-1), np.float32(1))
    nan = np.float32(np.nan)
    return np.select(
        [
            np.isnan(numerator),
            np.isnan(denominator),
            (numerator == 0) & (denominator == 0) | np.isinf(numerator) & np.isinf(denominator),
            (denominator == 0) | np.isinf(numerator),
            np.isinf(denominator) | (numerator == 0),
        ],
        [numerator, denominator, np.full_like(quotient, nan), sign * np.float32(np.inf), sign * 0],
        sign * np.abs(quotient),
    ).astype(np.float32)
