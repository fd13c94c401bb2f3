"""Meaning of a paged pool: where an element lies, how values get there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import dtype_by_name
from poot_kernelgen.requests import KvLayout

__all__ = ["kv_pool_shape", "kv_read", "kv_write"]

Array = NDArray[Any]


def kv_pool_shape(layout: KvLayout, num_blocks: int) -> tuple[int, ...]:
    """Return the shape of a pool: axes as ``KvLayout`` names them."""
    inner = (
        (layout.head_dim, layout.block_size)
        if layout.role == "key"
        else (layout.block_size, layout.head_dim)
    )
    if layout.pairs:
        inner = (inner[0] // 2, inner[1], 2)
    return (num_blocks, layout.num_kv_heads, *inner)


def kv_write(
    layout: KvLayout, pool: Array, values: Array, slots: NDArray[Any], status: NDArray[np.int32]
) -> None:
    """Store (T, heads, dim) f32 values (or their flattening) into the pool, in place.

    A negative slot is skipped; one beyond the pool is skipped and flagged in ``status`` (T,).
    """
    num_slots = len(pool) * layout.block_size
    beyond = slots >= num_slots
    status[: len(slots)] |= beyond
    kept = np.flatnonzero((slots >= 0) & ~beyond)
    block, offset = np.divmod(slots[kept], layout.block_size)
    shaped = values.reshape(len(slots), layout.num_kv_heads, layout.head_dim)[kept]
    converted = shaped.astype(dtype_by_name(layout.dtype).numpy)
    if layout.pairs and layout.role == "key":
        halves = converted.reshape(len(kept), layout.num_kv_heads, layout.head_dim // 2, 2)
        pool[block, :, :, offset, :] = halves
    elif layout.pairs:
        pool[block, :, offset // 2, :, offset % 2] = converted
    elif layout.role == "key":
        pool[block, :, :, offset] = converted
    else:
        pool[block, :, offset, :] = converted


def kv_read(layout: KvLayout, pool: Array, blocks: NDArray[Any], first: int, end: int) -> Array:
    """Return keys or values first..end of a sequence as (end - first, heads, dim) f32."""
    positions = np.arange(first, end)
    block, offset = blocks[positions // layout.block_size], positions % layout.block_size
    if layout.pairs and layout.role == "key":
        found = pool[block, :, :, offset, :].reshape(len(positions), layout.num_kv_heads, -1)
    elif layout.pairs:
        found = pool[block, :, offset // 2, :, offset % 2]
    else:
        found = pool[block, :, :, offset] if layout.role == "key" else pool[block, :, offset, :]
    return np.ascontiguousarray(found.astype(np.float32))
