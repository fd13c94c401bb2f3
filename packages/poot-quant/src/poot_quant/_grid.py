"""Formats that index a table of vectors: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_quant._bits import Bytes, bits, half, planes, words
from poot_quant._format import QuantFormat, Unpacked
from poot_quant._tables import grid_table

__all__ = [
    "unpack_iq1_m",
    "unpack_iq1_s",
    "unpack_iq2_s",
    "unpack_iq2_xs",
    "unpack_iq2_xxs",
    "unpack_iq3_s",
    "unpack_iq3_xxs",
]


Floats = NDArray[np.float32]
Integers = NDArray[Any]


def _signed(table: NDArray[np.int8], index: Integers, negative: Integers) -> NDArray[np.int8]:
    """Return table rows with the sign bits applied: index (n, v), negative (n, elements)."""
    values = table[index].reshape(len(index), -1)  # (n, elements)
    return values * (1 - 2 * negative.view(np.int8))


def _even_signs(seven: Integers) -> Bytes:
    """Return 8 sign bits for each 7-bit field; the eighth makes the number of ones even."""
    low = seven.astype(np.uint8)
    fold = low ^ low >> np.uint8(4)
    fold ^= fold >> np.uint8(2)
    fold ^= fold >> np.uint8(1)
    signs: Bytes = low | fold << np.uint8(7)
    return bits(signs.reshape(len(low), -1))


def _four_sevens(word: Integers) -> Integers:
    shifts = np.array([0, 7, 14, 21], dtype=np.uint32)
    return (word[..., None] >> shifts & 127).reshape(len(word), -1)


def _scaled(fmt: QuantFormat, blocks: Bytes, groups: Integers, factor: float) -> Floats:
    """Return d * (0.5 + group) * factor, in that order, as the format defines its scale."""
    half_up: Floats = np.float32(0.5) + groups.astype(np.float32)
    return half(fmt.slice(blocks, "d")) * half_up * np.float32(factor)


def unpack_iq2_xxs(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack 32 elements from 8 bytes: four grid bytes, four 7-bit sign fields, a 4-bit scale."""
    pairs = words(fmt.slice(blocks, "qs"), 4)  # (n, 16): indices, signs and scale in turn
    index = np.ascontiguousarray(pairs[:, 0::2]).view(np.uint8)  # (n, 32)
    control = pairs[:, 1::2]  # (n, 8)
    codes = _signed(grid_table("iq2_xxs"), index, _even_signs(_four_sevens(control)))
    return Unpacked(codes, _scaled(fmt, blocks, control >> 28, 0.25), None)


def unpack_iq2_xs(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack 8 elements from 16 bits: a 9-bit grid index and a 7-bit sign field."""
    pair = words(fmt.slice(blocks, "qs"), 2)  # (n, 32)
    codes = _signed(grid_table("iq2_xs"), pair & 511, _even_signs(pair >> 9))
    groups = planes(fmt.slice(blocks, "scales"), 4, 1)
    return Unpacked(codes, _scaled(fmt, blocks, groups, 0.25), None)


def unpack_iq2_s(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack 8 elements from a 10-bit grid index and 8 sign bits."""
    high = planes(fmt.slice(blocks, "qh"), 2, 1).astype(np.uint16)
    index = fmt.slice(blocks, "qs").astype(np.uint16) | high << 8
    codes = _signed(grid_table("iq2_s"), index, bits(fmt.slice(blocks, "signs")))
    groups = planes(fmt.slice(blocks, "scales"), 4, 1)
    return Unpacked(codes, _scaled(fmt, blocks, groups, 0.25), None)


def unpack_iq3_xxs(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack 4 elements from a grid byte; each 32 share a word of sign fields and scale."""
    control = words(fmt.slice(blocks, "control"), 4)  # (n, 8)
    index = fmt.slice(blocks, "qs")  # (n, 64)
    codes = _signed(grid_table("iq3_xxs"), index, _even_signs(_four_sevens(control)))
    return Unpacked(codes, _scaled(fmt, blocks, control >> 28, 0.5), None)


def unpack_iq3_s(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack 4 elements from a 9-bit grid index and 4 sign bits; odd scales 1..31."""
    high = bits(fmt.slice(blocks, "qh")).astype(np.uint16)
    index = fmt.slice(blocks, "qs").astype(np.uint16) | high << 8
    codes = _signed(grid_table("iq3_s"), index, bits(fmt.slice(blocks, "signs")))
    odd = (1 + 2 * planes(fmt.slice(blocks, "scales"), 4, 1)).astype(np.float32)
    return Unpacked(codes, half(fmt.slice(blocks, "d")) * odd, None)


def unpack_iq1_s(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack ternary vectors shifted by an eighth: 8 * vector +- 1 under scale / 8."""
    control = words(fmt.slice(blocks, "qh"), 2)  # (n, 8): four 3-bit highs, scale, shift sign
    high = (control[..., None] >> np.array([0, 3, 6, 9], dtype=np.uint16) & 7).reshape(-1, 32)
    index = fmt.slice(blocks, "qs").astype(np.uint16) | high << 8
    negative = np.repeat((control >> 15).astype(np.uint8), 4, axis=1)  # (n, 32), per vector
    odd = (2 * (control >> 12 & 7) + 1).astype(np.float32)
    scales = half(fmt.slice(blocks, "d")) * odd * np.float32(0.125)
    return Unpacked(_shifted_ternary(index, negative), scales, None)


def unpack_iq1_m(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack like IQ1_S; a scale per 16, a shift per 8, the f16 scale cut in four nibbles."""
    control = words(fmt.slice(blocks, "scales"), 2)  # (n, 4): four 3-bit scales, a nibble of f16
    nibbles = control >> 12
    pattern = nibbles[:, 0] | nibbles[:, 1] << 4 | nibbles[:, 2] << 8 | nibbles[:, 3] << 12
    block_scale = half(pattern.astype("<u2").view(np.uint8).reshape(-1, 2))  # (n, 1)
    groups = (control[..., None] >> np.array([0, 3, 6, 9], dtype=np.uint16) & 7).reshape(-1, 16)
    high = planes(fmt.slice(blocks, "qh"), 4, 1)  # (n, 32): three index bits, shift sign
    index = fmt.slice(blocks, "qs").astype(np.uint16) | (high & 7).astype(np.uint16) << 8
    scales = block_scale * (2 * groups + 1).astype(np.float32) * np.float32(0.125)
    return Unpacked(_shifted_ternary(index, high >> 3), scales, None)


def _shifted_ternary(index: Integers, negative: Integers) -> NDArray[np.int8]:
    vectors = grid_table("iq1")[index] * np.int8(8)  # (n, 32, 8)
    shift = 1 - 2 * negative.view(np.int8)
    return (vectors + shift[..., None]).reshape(len(index), -1)
