"""Powers of two for softmax weights: what ``exp`` costs without its range checks."""

from __future__ import annotations

import math

from poot_core import f32, i32
from poot_kernel import IRBuilder, Value

__all__ = ["LOG2_E", "power_of_two"]

LOG2_E = math.log2(math.e)
"""Factor that turns a score into the exponent of a power of two."""

# 2**x over [-1/2, 1/2], 1 at 0: a minimax fit of the relative error (Lawson's iteration), 9e-8.
_COEFFICIENTS = (1.0, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341,
                 0.009671512991189957, 0.001326472731307149)  # fmt: skip
_ROUND = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer in the low bits
# Here the polynomial is exactly 1 and the exponent's bits become 0: the result is 0.
_LOWEST = -127.0


def power_of_two(b: IRBuilder, x: Value) -> Value:
    """Return 2**x, within 1.6e-7 of itself, for x up to 0.

    Below 2**-126 it is some number in that range, and 0 for x of -127 and less.
    """
    x = b.maximum(b.constant(_LOWEST), x)  # a NaN stays one
    shifted = b.add(x, b.constant(_ROUND))
    rest = b.sub(x, b.sub(shifted, b.constant(_ROUND)))
    value = b.constant(_COEFFICIENTS[-1])
    for coefficient in reversed(_COEFFICIENTS[:-1]):
        value = b.fma(value, rest, b.constant(coefficient))
    exponent = b.shl(b.bitcast(shifted, i32), b.constant(23, i32))
    return b.bitcast(b.add(b.bitcast(value, i32), exponent), f32)
