"""Bit surgery shared by the unpackers; every function maps (n, bytes) to (n, more)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["bits", "half", "planes", "words"]

Bytes = NDArray[np.uint8]


def half(data: Bytes) -> NDArray[np.float32]:
    """Return little-endian f16 pairs of bytes as float32: (n, 2 k) -> (n, k)."""
    return data.view("<f2").astype(np.float32)


def words(data: Bytes, num_bytes: int) -> NDArray[np.unsignedinteger]:
    """Return runs of ``num_bytes`` as little-endian unsigned integers: (n, b k) -> (n, k)."""
    return data.view(f"<u{num_bytes}")


def planes(data: Bytes, width: int, span: int) -> Bytes:
    """Return the ``width``-bit planes of every run of ``span`` bytes, lowest bits first.

    ggml stores element ``i + span * p`` of a run in plane ``p`` of byte ``i``:
    (n, b) -> (n, b * 8 / width).
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]  # (planes, 1)
    runs = data.reshape(len(data), -1, 1, span)  # (n, runs, 1, span)
    out = runs >> shifts  # (n, runs, planes, span)
    out &= np.uint8((1 << width) - 1)
    return out.reshape(len(data), -1)


def bits(data: Bytes) -> Bytes:
    """Return every bit, lowest first: (n, b) -> (n, 8 b) of 0 and 1."""
    return np.unpackbits(data, axis=-1, bitorder="little")
