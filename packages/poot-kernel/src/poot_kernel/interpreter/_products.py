"""The combine orders that ``mma`` signatures name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poot_core import f32
from poot_kernel.interpreter._machine import Array
from poot_kernel.interpreter._rounding import fused_multiply_add, narrow
from poot_kernel.ir.opcodes_tile import MMA_SIGNATURES

__all__ = ["PRODUCTS"]

Product = Callable[[Array, Array, Array], Array]


def _exact(a: Array, b: Array, acc: Array) -> Array:
    """Integer sums modulo 2**32."""
    wide = a.astype(np.int64) @ b.astype(np.int64) + acc.astype(np.int64)
    return wide.astype(acc.dtype)


def _native(a: Array, b: Array, acc: Array) -> Array:
    """The sum with one rounding at the end: what any target's own order is near to."""
    if acc.dtype.kind == "i":
        return _exact(a, b, acc)
    return narrow(a.astype(np.float64) @ b.astype(np.float64) + acc.astype(np.float64), f32)


def _fma_chain(a: Array, b: Array, acc: Array) -> Array:
    """Ascending k, one fused multiply-add each."""
    return _chain(a, b, acc, range(a.shape[1]))


def _pair_chain(a: Array, b: Array, acc: Array) -> Array:
    """By pairs of k: the odd one first, then the even one."""
    order = [k ^ 1 for k in range(a.shape[1]) if k ^ 1 < a.shape[1]]
    return _chain(a, b, acc, order + ([a.shape[1] - 1] if a.shape[1] % 2 else []))


def _chain(a: Array, b: Array, acc: Array, order: Any) -> Array:
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    for k in order:
        acc = fused_multiply_add(wide_a[:, k, None], wide_b[None, k, :], acc, f32)
    return acc


def _k16(a: Array, b: Array, acc: Array) -> Array:
    """Ascending groups of 16 k, each added with one rounding (hardware truncates a little more)."""
    for start in range(0, a.shape[1], 16):
        acc = _native(a[:, start : start + 16], b[start : start + 16], acc)
    return acc


def _k16_chunk1024(a: Array, b: Array, acc: Array) -> Array:
    """``k16`` over chunks of 1024 k, chunk sums added in order."""
    for start in range(0, a.shape[1], 1024):
        stop = start + 1024
        chunk = _k16(a[:, start:stop], b[start:stop], np.zeros_like(acc))
        acc = acc + chunk
    return acc


PRODUCTS: dict[str, Product] = {
    "native": _native,
    "exact": _exact,
    "fma_chain": _fma_chain,
    "pair_chain": _pair_chain,
    "k16": _k16,
    "k16_chunk1024": _k16_chunk1024,
}
"""Signature -> product; complete over ``MMA_SIGNATURES``."""

assert set(PRODUCTS) == set(MMA_SIGNATURES)
