# pyright: basic, reportCallIssue=false
"""What a logit weighs, as a whole number, and sums of weights; helpers of the sampler's kernels.

A weight is ``2**31 * 2**-(distance * scale)``, rounded, where the distance is from the largest logit.
The product is the only rounding of a float; the power is a polynomial over fixed-point numbers, so
every device gives the same bits. 64-bit sums are pairs of 32-bit words, since not every target has more.
"""

from __future__ import annotations

from poot_core import f32, u32
from poot_kernel.language import bitcast, inline, mul_high, where, workgroup_reduce
from poot_kernelgen._power import POWER_COEFFICIENTS

__all__ = [
    "FAULT",
    "LIMIT",
    "NO_BOUND",
    "STATS",
    "TIES",
    "TOKEN",
    "TOP",
    "add_pair",
    "at_least_pair",
    "is_nan",
    "key_of",
    "multiply_add_pair",
    "sum_pair",
    "weight_of",
]

FAULT, TOP, TOKEN, LIMIT, TIES = 0, 1, 2, 3, 4
STATS = 6
"""Words of a row's statistics: fault, bits of the largest logit, its lowest id, and what filters keep:
keys below the limit, and of those at it so many with the lowest ids."""
NO_BOUND = 2**32 - 1


@inline
def is_nan(value):
    """Return whether a float is a NaN, by its bits: comparisons may assume that there is none."""
    return (bitcast(value, u32) & u32(0x7FFFFFFF)) > u32(0x7F800000)


@inline
def key_of(top, value):
    """Return the distance from the largest logit as bits, which are ordered as the distances are."""
    return bitcast(top - value, u32)


@inline
def weight_of(key, scale):
    """Return the weight of a logit with this key; 0 from a factor of 2**-32 on, and for a NaN."""
    reach = bitcast(key, f32) * scale
    near = (key <= u32(0x7F800000)) & (reach < 32.0)
    fixed = u32(where(near, reach, f32(0.0)) * 67108864.0)  # 2**26
    x = fixed << u32(6)
    halvings = fixed >> u32(26)
    c = u32(POWER_COEFFICIENTS[4])
    c = u32(POWER_COEFFICIENTS[3]) - mul_high(x, c)
    c = u32(POWER_COEFFICIENTS[2]) - mul_high(x, c)
    c = u32(POWER_COEFFICIENTS[1]) - mul_high(x, c)
    c = u32(POWER_COEFFICIENTS[0]) - mul_high(x, c)
    power = u32(0x80000000) - (mul_high(x, c) >> u32(1))
    half = (u32(1) << halvings) >> u32(1)
    return where(near, (power + half) >> halvings, u32(0))


@inline
def sum_pair(low, middle, high):
    """Return (high, low) words of low + middle * 2**11 + high * 2**22, summed over the workgroup.

    The parts are sums of 11, 11 and 10 bits over at most 2**20 columns.
    """
    a = workgroup_reduce(low, "add")
    b = workgroup_reduce(middle, "add") + (a >> u32(11))
    c = workgroup_reduce(high, "add") + (b >> u32(11))
    word = (a & u32(0x7FF)) | ((b & u32(0x7FF)) << u32(11)) | (c << u32(22))
    return c >> u32(10), word


@inline
def add_pair(a_high, a_low, b_high, b_low):
    """Return the sum of two 64-bit numbers."""
    low = a_low + b_low
    return a_high + b_high + where(low < a_low, u32(1), u32(0)), low


@inline
def multiply_add_pair(a, b, high, low):
    """Return a * b + (high, low)."""
    return add_pair(mul_high(a, b), a * b, high, low)


@inline
def at_least_pair(a_high, a_low, b_high, b_low):
    """Return whether the first 64-bit number is at least the second."""
    return (a_high > b_high) | ((a_high == b_high) & (a_low >= b_low))
