"""Exactly rounded arithmetic for the narrow float types, by way of f64."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from poot_core import DType, f16, f32, f64

__all__ = ["fused_multiply_add", "narrow", "two_sum_to_odd"]

Array = np.ndarray[Any, Any]


def two_sum_to_odd(a: Array, b: Array) -> Array:
    """Return a + b in f64, rounded to odd.

    An inexact sum takes whichever neighbour has an odd last bit, so that rounding it once more to
    at most 51 bits gives what one rounding of the exact sum gives (Boldo and Melquiond, 2008).
    """
    total = np.asarray(a + b, np.float64)
    back = total - a
    error = (a - (total - back)) + (b - back)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + away, bits).view(np.float64)


def _to_odd_f32(x: Array) -> Array:
    """Return f64 values as f32, rounded to odd."""
    near = x.astype(np.float32)
    error = x - near.astype(np.float64)
    bits = near.view(np.int32)
    inexact = np.isfinite(near) & (error != 0) & (bits & 1 == 0)
    away = np.where((error > 0) == (x > 0), 1, -1).astype(np.int32)
    return np.where(inexact, bits + away, bits).astype(np.int32).view(np.float32)


@np.errstate(all="ignore")
def narrow(x: Array, dtype: DType) -> Array:
    """Return f64 values in a float dtype, rounded once to nearest even."""
    if dtype in {f64, f32, f16}:
        return np.asarray(x, np.float64).astype(dtype.numpy)
    # ml_dtypes rounds f64 twice, through f32; the first rounding to odd makes that harmless.
    return _to_odd_f32(np.asarray(x, np.float64)).astype(dtype.numpy)


@np.errstate(all="ignore")
def fused_multiply_add(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """Return a * b + c of one float dtype, rounded once."""
    if dtype is f64:
        exact = np.frompyfunc(_exact_f64, 3, 1)
        return np.asarray(exact(a, b, c)).astype(np.float64)
    wide = [np.asarray(x).astype(np.float64) for x in (a, b, c)]
    # The product of two 24-bit significands is exact in f64.
    return narrow(two_sum_to_odd(wide[0] * wide[1], wide[2]), dtype)


def _exact_f64(a: float, b: float, c: float) -> float:
    if not all(np.isfinite(x) for x in (a, b, c)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf
