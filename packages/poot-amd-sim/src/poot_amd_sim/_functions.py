"""Operations of vector instructions that NumPy lacks: bits, bytes, dot products, roundings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._floats import bf16_bits, flushed, fma

__all__ = [
    "absolute_difference",
    "align",
    "byte_of",
    "dot2_f16",
    "dots",
    "field",
    "fraction",
    "halves",
    "ldexp",
    "leading",
    "leading_signed",
    "low_bits",
    "mantissa",
    "median",
    "median_float",
    "mul_high",
    "mul_high_signed",
    "pack_bf16",
    "pack_halves",
    "permute",
    "popcount",
    "reverse",
    "rounded",
    "signed24",
    "signed_field",
    "trailing",
    "truth_table",
    "turns",
    "wide",
]

_16, _31 = np.uint32(0xFFFF), np.uint32(31)
_ONE, _FULL = np.uint32(1), np.uint32(0xFFFFFFFF)


def rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the f64 function rounded to f32, denormals flushed as the hardware does."""

    def run(x: Any) -> Any:
        return flushed(function(flushed(x).astype(np.float64)).astype(np.float32))

    return run


def turns(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(np.asarray(x, np.float64) * 2 * np.pi).astype(np.float32)


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.uint64)


def signed24(x: Any) -> Any:
    return (x << np.int32(8)) >> np.int32(8)


def popcount(x: Any) -> Any:
    return np.bitwise_count(x).astype(np.uint32)


def leading(x: Any) -> Any:
    """Return leading zeros of u32, all ones for 0."""
    width = np.frexp(np.asarray(x, np.float64))[1]
    return np.where(x == 0, _FULL, (32 - width).astype(np.uint32))


def leading_signed(x: Any) -> Any:
    flipped = np.where(x < 0, ~x, x).view(np.uint32)
    return np.where(flipped == 0, _FULL, leading(flipped))


def trailing(x: Any) -> Any:
    return np.where(x == 0, _FULL, popcount((x & (~x + _ONE)) - _ONE))


def reverse(x: Any) -> Any:
    found = np.zeros_like(x)
    for bit in range(32):
        found |= ((x >> np.uint32(bit)) & _ONE) << np.uint32(31 - bit)
    return found


def field(x: Any, offset: Any, width: Any) -> Any:
    count = width & _31
    return (x >> (offset & _31)) & ((_ONE << count) - _ONE)


def signed_field(x: Any, offset: Any, width: Any) -> Any:
    count = (width & _31).astype(np.int32)
    up = np.int32(32) - count
    part = (x >> (offset & _31).astype(np.int32)).astype(np.int32)
    return np.where(count == 0, 0, (part << (up & 31)) >> (up & 31)).astype(np.int32)


def permute(high: Any, low: Any, selector: Any) -> Any:
    high, low, selector = np.broadcast_arrays(high, low, selector)
    both = wide(high) << np.uint64(32) | wide(low)
    found = np.zeros(both.shape, np.uint32)
    for byte in range(4):
        which = (selector >> np.uint32(8 * byte)) & np.uint32(255)
        plain = (both >> wide((which & np.uint32(7)) * np.uint32(8))).astype(np.uint32)
        sign_of = {8: 15, 9: 31, 10: 47, 11: 63}
        value = np.where(which < 8, plain & np.uint32(255), np.uint32(0))
        for code, bit in sign_of.items():
            sign = (both >> np.uint64(bit)).astype(np.uint32) & _ONE
            value = np.where(which == code, sign * np.uint32(255), value)
        value = np.where(which >= 13, np.uint32(255), value)
        found |= value << np.uint32(8 * byte)
    return found


def align(bits: int) -> Callable[[Any, Any, Any], Any]:
    def run(high: Any, low: Any, amount: Any) -> Any:
        both = wide(high) << np.uint64(32) | wide(low)
        limit = np.uint32(31 if bits == 1 else 3)
        return (both >> wide((amount & limit) * np.uint32(bits))).astype(np.uint32)

    return run


def median(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def median_float(a: Any, b: Any, c: Any) -> Any:
    any_nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(any_nan, np.fmin(np.fmin(a, b), c), median(a, b, c))


def ldexp(x: Any, exponent: Any) -> Any:
    return np.ldexp(np.asarray(x, np.float64), np.clip(exponent, -400, 400)).astype(np.float32)


def fraction(x: Any) -> Any:
    return np.minimum(x - np.floor(x), np.float32(1 - 2.0**-24))


def dots(count: int, a_signed: bool, b_signed: bool) -> Callable[[Any, Any, Any], Any]:
    bits = 32 // count

    def part(x: Any, number: int, signed: bool) -> Any:
        shifted = x >> np.uint32(number * bits) & np.uint32((1 << bits) - 1)
        wide = shifted.astype(np.int64)
        return wide - ((wide >> (bits - 1)) << bits) if signed else wide

    def run(a: Any, b: Any, c: Any) -> Any:
        total = np.asarray(c).astype(np.int64)
        for number in range(count):
            total = total + part(a, number, a_signed) * part(b, number, b_signed)
        return total.astype(np.int32)

    return run


def halves(x: Any) -> tuple[Any, Any]:
    low = (x & _16).astype(np.uint16).view(np.float16)
    return low, (x >> np.uint32(16)).astype(np.uint16).view(np.float16)


def dot2_f16(a: Any, b: Any, c: Any) -> Any:
    a0, a1 = halves(np.asarray(a))
    b0, b1 = halves(np.asarray(b))
    return fma(a0, b0, fma(a1, b1, c))


def pack_halves(low: Any, high: Any) -> Any:
    up = np.asarray(high, np.float16).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return up | np.asarray(low, np.float16).view(np.uint16).astype(np.uint32)


def pack_bf16(low: Any, high: Any) -> Any:
    return bf16_bits(high).astype(np.uint32) << np.uint32(16) | bf16_bits(low).astype(np.uint32)


def mul_high(a: Any, b: Any) -> Any:
    return (wide(a) * wide(b) >> np.uint64(32)).astype(np.uint32)


def mul_high_signed(a: Any, b: Any) -> Any:
    return (a.astype(np.int64) * b.astype(np.int64) >> 32).astype(np.int32)


def low_bits(x: Any) -> Any:
    return x & _31


def byte_of(number: int) -> Callable[[Any], Any]:
    """Return a function that gives one byte of u32 as f32."""
    return lambda x: (x >> np.uint32(8 * number) & np.uint32(255)).astype(np.float32)


def absolute_difference(a: Any, b: Any, c: Any) -> Any:
    """Return |a - b| + c of u32."""
    return np.maximum(a, b) - np.minimum(a, b) + c


def mantissa(x: Any) -> Any:
    """Return the significand of f32 in [0.5, 1); what is not finite stays."""
    return np.where(np.isfinite(x), np.frexp(x)[0], x)


def truth_table(table: int) -> Callable[[Any, Any, Any], Any]:
    """Return the bitwise function of three operands whose results a byte lists (V_BITOP3)."""

    def run(a: Any, b: Any, c: Any) -> Any:
        found = np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c)), np.uint32)
        for row in range(8):
            if table >> row & 1:
                sides = [x if row >> bit & 1 else ~x for x, bit in ((a, 2), (b, 1), (c, 0))]
                found = found | (sides[0] & sides[1] & sides[2])
        return found

    return run
