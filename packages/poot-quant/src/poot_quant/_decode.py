"""Unpacking and decoding of arrays of blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_core import ShapeError
from poot_quant._format import Bytes, QuantFormat, Unpacked

__all__ = ["decode", "unpack"]

# Blocks are decoded in runs, so that temporaries stay near the cache whatever the tensor's size.
_RUN_ELEMENTS = 1 << 18


def unpack(fmt: QuantFormat, raw: Bytes) -> Unpacked:
    """Return the exact affine form of packed rows: ``value = scales * codes + mins`` per group.

    Args:
        fmt: The format of ``raw``.
        raw: (..., bytes), uint8; bytes a whole number of blocks.

    Returns:
        codes (..., K) int8, scales and mins (..., K / fmt.group) float32; mins None without offset.

    Raises:
        ShapeError: If the last axis is no whole number of blocks.
    """
    blocks, lead = _as_blocks(fmt, raw)
    codes, scales, mins = fmt.unpacker(fmt, blocks)
    return Unpacked(
        np.ascontiguousarray(codes).reshape(*lead, -1),
        scales.reshape(*lead, -1),
        None if mins is None else mins.reshape(*lead, -1),
    )


def decode(fmt: QuantFormat, raw: Bytes) -> NDArray[np.float32]:
    """Return the values of packed rows, bit for bit those of ggml's reference decoder.

    Every format's value is one float32 multiplication and, with an offset, one float32 addition.

    Args:
        fmt: The format of ``raw``.
        raw: (..., bytes), uint8; bytes a whole number of blocks.

    Returns:
        (..., elements), float32.

    Raises:
        ShapeError: If the last axis is no whole number of blocks.
    """
    blocks, lead = _as_blocks(fmt, raw)
    out = np.empty((len(blocks), fmt.groups_per_block, fmt.group), dtype=np.float32)
    run = max(1, _RUN_ELEMENTS // fmt.block_elements)
    for start in range(0, len(blocks), run):
        codes, scales, mins = fmt.unpacker(fmt, blocks[start : start + run])
        values = out[start : start + run]  # (run, groups, group)
        np.multiply(codes.reshape(values.shape), scales[..., None], out=values)
        if mins is not None:
            values += mins[..., None]
    return out.reshape(*lead, raw.shape[-1] // fmt.block_bytes * fmt.block_elements)


def _as_blocks(fmt: QuantFormat, raw: Bytes) -> tuple[Bytes, tuple[int, ...]]:
    if raw.dtype != np.uint8 or raw.ndim < 1 or raw.shape[-1] % fmt.block_bytes:
        raise ShapeError(
            f"{fmt.name} needs uint8 rows of a multiple of {fmt.block_bytes} bytes, "
            f"got {raw.dtype} of shape {raw.shape}"
        )
    lead = raw.shape[:-1]
    return np.ascontiguousarray(raw).reshape(-1, fmt.block_bytes), lead
