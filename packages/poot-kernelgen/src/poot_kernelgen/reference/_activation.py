"""Rounding of activations: blocks of 32 in 8 bits, and bf16."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "QuantisedActivation",
    "dequantise_activation",
    "quantise_activation",
    "round_to_bf16",
]

BLOCK = 32
"""Elements of a row that share one scale."""

Float32 = NDArray[np.float32]


class QuantisedActivation(NamedTuple):
    """Rows in 8 bits.

    Attributes:
        codes: (rows, K) int8, in -127..127.
        scales: (rows, K / 32) f32.
        sums: (rows, K / 32) f32: scale * sum of the block's codes, the residual's added.
        residual_codes: (rows, K) int8 of what rounding lost; zeros without outliers; None for ``i8``.
        residual_scales: (rows, K / 32) f32: a 256th of the block's scale; 0 without outliers; None
            for ``i8``.
    """

    codes: NDArray[np.int8]
    scales: Float32
    sums: Float32
    residual_codes: NDArray[np.int8] | None = None
    residual_scales: Float32 | None = None


def quantise_activation(x: Float32, *, outlier: float | None = None) -> QuantisedActivation:
    """Return rows rounded to 8 bits in blocks of 32.

    A block's scale is ``max|x| * f32(1/127)``, its codes are ``x * (127 / max|x|)`` rounded to
    nearest even (0 for a block of zeros), both in f32.

    Args:
        x: (rows, K) with K a multiple of 32.
        outlier: A block whose largest element is over this many times its row's root mean square
            keeps what rounding lost as well (``i8r``), in 256ths of its scale and kept within
            -127..127; None keeps nothing (``i8``).
    """
    rows, width = x.shape
    blocks = x.reshape(rows, width // BLOCK, BLOCK)
    codes, scales, inverse = _round(blocks)
    sums = scales * codes.sum(axis=-1, dtype=np.float32)
    if outlier is None:
        return QuantisedActivation(codes.astype(np.int8).reshape(rows, width), scales, sums)
    largest, square = np.abs(blocks).max(axis=-1), (x * x).sum(axis=-1, keepdims=True)
    has_outlier = largest * largest * np.float32(width) > np.float32(outlier**2) * square
    rest: Float32 = (blocks - scales[..., None] * codes).astype(np.float32)
    lost = np.clip(np.rint(rest * (inverse * np.float32(256))[..., None]), -127, 127)
    lost = np.where(has_outlier[..., None], lost, np.float32(0)).astype(np.float32)
    lost_scales = np.where(has_outlier, scales * np.float32(1 / 256), np.float32(0))
    return QuantisedActivation(
        codes.astype(np.int8).reshape(rows, width),
        scales,
        sums + lost_scales * lost.sum(axis=-1, dtype=np.float32),
        lost.astype(np.int8).reshape(rows, width),
        lost_scales,
    )


def _round(blocks: Float32) -> tuple[Float32, Float32, Float32]:
    """Return codes, still f32, scales, and their inverses, of (rows, K / 32, 32)."""
    largest = np.abs(blocks).max(axis=-1)  # (rows, K / 32)
    safe = np.where(largest > 0, largest, np.float32(1))
    inverse = np.where(largest > 0, np.float32(127) / safe, np.float32(0))
    scales: Float32 = largest * np.float32(1 / 127)
    return np.rint(blocks * inverse[..., None]), scales, inverse


def dequantise_activation(x: QuantisedActivation) -> Float32:
    """Return the f32 values that the codes stand for, (rows, K)."""
    values = np.repeat(x.scales, BLOCK, axis=-1) * x.codes.astype(np.float32)
    if x.residual_codes is None or x.residual_scales is None:
        return values
    lost = np.repeat(x.residual_scales, BLOCK, axis=-1) * x.residual_codes.astype(np.float32)
    return (values + lost).astype(np.float32)


def round_to_bf16(x: Float32) -> NDArray[np.uint16]:
    """Return the bits of ``x`` rounded to bf16, nearest even."""
    return np.ascontiguousarray(x).astype(ml_dtypes.bfloat16).view(np.uint16)
