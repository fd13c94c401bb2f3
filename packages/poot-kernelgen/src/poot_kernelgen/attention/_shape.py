"""How attention is blocked for a host's registers; results do not depend on any of it."""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import Target, UnsupportedError
from poot_kernelgen._lanes import lane_count
from poot_kernelgen.requests import AttendRequest

__all__ = ["Blocking", "choose_blocking"]


@dataclass(frozen=True, slots=True)
class Blocking:
    """Sizes of one work item's loops.

    Attributes:
        lanes: Lanes of a vector.
        group: Query heads that share a kv head.
        chunk: (token, head) rows that are computed together.
        key_count: Neighbouring keys of a block that a lane holds.
        key_blocks: Blocks of the pool whose scores are computed together.
        value_count: Neighbouring dims of a value that a lane holds.
        stride: f32 elements from one row of scores to the next.
    """

    lanes: int
    group: int
    chunk: int
    key_count: int
    key_blocks: int
    value_count: int
    stride: int


def choose_blocking(request: AttendRequest, target: Target) -> Blocking:
    """Return the blocking for a request.

    Raises:
        UnsupportedError: If heads, layouts or the split do not fit together.
    """
    key, value = request.key, request.value
    if request.num_heads % key.num_kv_heads:
        raise UnsupportedError(
            f"attention of {request.num_heads} heads over {key.num_kv_heads} kv heads is uneven"
        )
    if (key.num_kv_heads, key.block_size, key.pairs) != (
        value.num_kv_heads,
        value.block_size,
        value.pairs,
    ):
        raise UnsupportedError(
            f"key and value pools differ in heads, block size or pairs: {key}, {value}"
        )
    if request.split % 16 or request.split % key.block_size:
        raise UnsupportedError(
            f"split {request.split} is no multiple of 16 and of the block size {key.block_size}"
        )
    lanes = lane_count(target)
    group = request.num_heads // key.num_kv_heads
    chunk, key_count, key_blocks, value_count = _registers(request, lanes, group)
    return Blocking(
        lanes=lanes,
        group=group,
        chunk=chunk,
        key_count=key_count,
        key_blocks=key_blocks,
        value_count=value_count,
        # The last blocks of a group may lie past the split; an odd number of cache lines keeps rows
        # out of each other's cache sets.
        stride=(-(-(request.split + key_blocks * key.block_size) // 16) | 1) * 16,
    )


def _registers(request: AttendRequest, lanes: int, group: int) -> tuple[int, int, int, int]:
    """Return rows of a chunk, keys and blocks of keys of a lane, and value dims of a lane."""
    key, value = request.key, request.value
    rows = request.query_tile * group
    if lanes == 16 and rows >= 6:
        # AVX-512 multiplies by an element in memory at no cost, so one vector of keys or values
        # serves as many rows as there are registers, and is converted to f32 once for all of them.
        if key.pairs:
            # Elements in memory are no operands of products of pairs: two vectors share each.
            chunk = -(-rows // -(-rows // 8))
            return chunk, _count(key.block_size, lanes, 2), 1, _count(value.head_dim, lanes, 2)
        return -(-rows // -(-rows // 28)), 1, 1, 1
    # Accumulators that fit beside the operands: 32 vector registers, or 16 with AVX2.
    registers = 12 if lanes == 8 else 24
    key_count = _count(key.block_size, lanes, max(1, registers // min(rows, 4)))
    most = min(8, max(1, registers // max(key_count, 2)))
    chunk = -(-rows // -(-rows // most))
    # Fused multiply-adds take 4 cycles: 8 chains keep the units of every core busy.
    key_blocks = max(1, min(4, 8 // (chunk * key_count)))
    value_count = _count(value.head_dim, lanes, max(1, registers // chunk))
    return chunk, key_count, key_blocks, value_count


def _count(extent: int, lanes: int, most: int) -> int:
    return next((c for c in (4, 2) if c <= most and extent % (lanes * c) == 0), 1)
