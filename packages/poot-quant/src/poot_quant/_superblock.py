"""The K formats: 256 elements, small integer scales per group of 16 or 32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_quant._bits import Bytes, half, planes
from poot_quant._format import QuantFormat, Unpacked

__all__ = ["unpack_q2_k", "unpack_q3_k", "unpack_q4_k", "unpack_q5_k", "unpack_q6_k"]


def unpack_q2_k(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack two-bit codes; each group's byte holds a scale (low) and an offset (high nibble)."""
    groups = fmt.slice(blocks, "scales")  # (n, 16)
    scales = half(fmt.slice(blocks, "d")) * (groups & 15).astype(np.float32)
    mins = half(fmt.slice(blocks, "dmin")) * (groups >> 4).astype(np.float32)
    return Unpacked(planes(fmt.slice(blocks, "qs"), 2, 32).view(np.int8), scales, -mins)


def unpack_q3_k(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack three-bit codes: two low bits in ``qs``, a third, set for no offset, in ``hmask``."""
    packed = fmt.slice(blocks, "scales")  # 8 bytes of low nibbles, 4 bytes of high pairs
    groups = planes(packed[:, :8], 4, 8) | planes(packed[:, 8:], 2, 4) << 4  # (n, 16)
    scales = half(fmt.slice(blocks, "d")) * (groups.view(np.int8) - np.int8(32)).astype(np.float32)
    codes = planes(fmt.slice(blocks, "qs"), 2, 32)
    codes |= planes(fmt.slice(blocks, "hmask"), 1, 32) << 2
    return Unpacked(codes.view(np.int8) - np.int8(4), scales, None)


def unpack_q4_k(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack four-bit codes with six-bit scales and offsets."""
    scales, mins = _six_bit_pairs(fmt, blocks)
    return Unpacked(planes(fmt.slice(blocks, "qs"), 4, 32).view(np.int8), scales, mins)


def unpack_q5_k(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack five-bit codes, the fifth bit in ``qh``, with six-bit scales and offsets."""
    scales, mins = _six_bit_pairs(fmt, blocks)
    codes = planes(fmt.slice(blocks, "qs"), 4, 32)
    codes |= planes(fmt.slice(blocks, "qh"), 1, 32) << 4
    return Unpacked(codes.view(np.int8), scales, mins)


def unpack_q6_k(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack six-bit codes, two high bits in ``qh``, with signed byte scales."""
    groups = fmt.slice(blocks, "scales").view(np.int8)
    codes = planes(fmt.slice(blocks, "ql"), 4, 64)
    codes |= planes(fmt.slice(blocks, "qh"), 2, 32) << 4
    scales = half(fmt.slice(blocks, "d")) * groups.astype(np.float32)
    return Unpacked(codes.view(np.int8) - np.int8(32), scales, None)


def _six_bit_pairs(
    fmt: QuantFormat, blocks: Bytes
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return scales and (negated) offsets of 8 groups, six bits each, packed into 12 bytes.

    Bytes 0-3 hold scales 0-3 and the top pairs of scales 4-7; bytes 4-7 the same of the offsets;
    bytes 8-11 the low nibbles of scales (low) and offsets (high) 4-7.
    """
    first, second, third = np.split(fmt.slice(blocks, "scales"), 3, axis=1)
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1)
    return (
        half(fmt.slice(blocks, "d")) * scales.astype(np.float32),
        -(half(fmt.slice(blocks, "dmin")) * mins.astype(np.float32)),
    )
