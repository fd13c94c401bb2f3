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
        sums: (rows, K / 32) f32: scale * sum of the block's codes.
    """

    codes: NDArray[np.int8]
    scales: Float32
    sums: Float32


def quantise_activation(x: Float32) -> QuantisedActivation:
    """Return rows rounded to 8 bits in blocks of 32.

    A block's scale is ``max|x| * f32(1/127)``, its codes are ``x * (127 / max|x|)`` rounded to
    nearest even (0 for a block of zeros), both in f32.

    Args:
        x: (rows, K) with K a multiple of 32.
    """
    rows, width = x.shape
    blocks = x.reshape(rows, width // BLOCK, BLOCK)
    largest = np.abs(blocks).max(axis=-1)  # (rows, K / 32)
    safe = np.where(largest > 0, largest, np.float32(1))
    inverse = np.where(largest > 0, np.float32(127) / safe, np.float32(0))
    codes = np.rint(blocks * inverse[..., None])
    scales = largest * np.float32(1 / 127)
    sums = scales * codes.sum(axis=-1, dtype=np.float32)
    return QuantisedActivation(codes.astype(np.int8).reshape(rows, width), scales, sums)


def dequantise_activation(x: QuantisedActivation) -> Float32:
    """Return the f32 values that the codes stand for, (rows, K)."""
    return np.repeat(x.scales, BLOCK, axis=-1) * x.codes.astype(np.float32)


def round_to_bf16(x: Float32) -> NDArray[np.uint16]:
    """Return the bits of ``x`` rounded to bf16, nearest even."""
    return np.ascontiguousarray(x).astype(ml_dtypes.bfloat16).view(np.uint16)
