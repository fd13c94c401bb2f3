"""poot's own f32 mathematics over the SIMT machine: additions, products and bit operations alone.

The same minimax polynomials as the host's (``targets/host/math.py``). Rounding to an integer is an
operation of the machine here, because a driver may simplify ``x + c - c``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from poot_core import f32, i32

if TYPE_CHECKING:
    from poot_kernel.targets.common.machine import Machine, Register

__all__ = ["MATH_FUNCTIONS", "math_function"]

_LN2_HIGH = float.fromhex("0x1.62e4p-1")  # 15 bits: n * high is exact for |n| < 2^9
_LN2_LOW = math.log(2) - _LN2_HIGH
_EXP = (1.0, 1.0, 0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.00836874544620514,
        0.0013814539415761828)  # fmt: skip
_EXP2 = (1.0, 0.6931471824645996, 0.24022647738456726, 0.05550331994891167, 0.00961843878030777,
         0.0013399003073573112, 0.00015353257185779512)  # fmt: skip
_SIN = (-0.1666666716337204, 0.008333329111337662, -0.0001983930415008217, 2.718046516747563e-06)
_COS = (0.0416666679084301, -0.0013888883404433727, 2.479945214872714e-05, -2.7205044261791045e-07)
_TANH = (-0.3333333134651184, 0.1333320587873459, -0.05394676327705383, 0.021700702607631683,
         -0.008177398703992367, 0.0021429620683193207)  # fmt: skip
_ERF_SMALL = (0.1283791667646503, -0.37612634897232056, 0.11283715069293976, -0.02686050906777382,
              0.005203859880566597, -0.0008175647235475481, 8.513134525856003e-05)  # fmt: skip
_ERFC_LOG = (0.00017055081843864173, -1.1294951438903809, -0.6333866715431213, -0.10823660343885422,
             0.025091486051678658, -0.004160522483289242, 0.00043230204028077424,
             -2.090946691168938e-05)  # fmt: skip
_LOG = (0.3333333134651184, -0.250008225440979, 0.20001234114170074, -0.16623298823833466,
        0.14201553165912628, -0.1316058337688446, 0.1276332587003708, -0.07635651528835297)  # fmt: skip
# Three parts of 8 bits, whose products with a count below 2**16 are exact even where a machine rounds
# the product of a multiply-add, and the rest.
_HALF_PI = (1.5703125, 0.0004825592041015625, 1.2665987014770508e-06, 9.920935184482005e-10)
# 2 * atanh(s) = 2 s + s**3 * these, over |s| <= 0.172.
_ATANH = (2 / 3, 2 / 5, 2 / 7, 2 / 9, 2 / 11)
_SIGN = -(1 << 31)


class _Body:
    """Short names for what the functions are made of."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def real(self, value: float) -> Register:
        return self.machine.constant(value, f32)

    def whole(self, value: int) -> Register:
        return self.machine.constant(value, i32)

    def _both(self, a: Register | float, b: Register | float) -> tuple[Register, Register]:
        return (
            self.real(a) if isinstance(a, int | float) else a,
            self.real(b) if isinstance(b, int | float) else b,
        )

    def add(self, a: Register | float, b: Register | float) -> Register:
        return self.machine.binary("add", *self._both(a, b))

    def sub(self, a: Register | float, b: Register | float) -> Register:
        return self.machine.binary("sub", *self._both(a, b))

    def mul(self, a: Register | float, b: Register | float) -> Register:
        return self.machine.binary("mul", *self._both(a, b))

    def div(self, a: Register | float, b: Register | float) -> Register:
        return self.machine.binary("div", *self._both(a, b))

    def fma(self, a: Register | float, b: Register | float, c: Register | float) -> Register:
        x, y = self._both(a, b)
        return self.machine.fma(x, y, self.real(c) if isinstance(c, int | float) else c)

    def opaque(self, x: Register) -> Register:
        return self.machine.opaque(x)

    def rint(self, x: Register) -> Register:
        return self.machine.unary("rint", x)

    def abs(self, x: Register) -> Register:
        return self.machine.unary("abs", x)

    def bits(self, x: Register) -> Register:
        return self.machine.reinterpret(x, i32)

    def from_bits(self, x: Register) -> Register:
        return self.machine.reinterpret(x, f32)

    def word(self, name: str, a: Register, b: int | Register) -> Register:
        return self.machine.binary(name, a, self.whole(b) if isinstance(b, int) else b)

    def compare(self, name: str, a: Register | float, b: Register | float) -> Register:
        return self.machine.compare(name, *self._both(a, b))

    def both(self, a: Register, b: Register) -> Register:
        return self.machine.binary("and", a, b)

    def select(self, condition: Register, a: Register | float, b: Register | float) -> Register:
        return self.machine.select(condition, *self._both(a, b))

    def horner(self, x: Register, coefficients: tuple[float, ...]) -> Register:
        result = self.real(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def scaled(self, value: Register, power: Register) -> Register:
        """Return value * 2**power, an addition to the exponent's bits; power is a whole f32."""
        exponent = self.word("shl", self.machine.convert(power, i32), 23)
        return self.from_bits(self.machine.binary("add", self.bits(value), exponent))

    def with_sign(self, magnitude: Register, sign: Register) -> Register:
        only = self.word("and", self.bits(sign), _SIGN)
        return self.from_bits(self.machine.binary("or", self.bits(magnitude), only))


def _exp_core(body: _Body, x: Register) -> Register:
    count = body.rint(body.mul(x, 1 / math.log(2)))
    rest = body.opaque(body.fma(count, -_LN2_HIGH, x))
    rest = body.fma(count, -_LN2_LOW, rest)
    return body.scaled(body.horner(rest, _EXP), count)


def _bounded(body: _Body, value: Register, x: Register, low: float, high: float) -> Register:
    value = body.select(body.compare("lt", x, low), 0.0, value)
    value = body.select(body.compare("gt", x, high), math.inf, value)
    # What the integer of a NaN is differs between machines.
    return body.select(body.compare("ne", x, x), x, value)


def _exp(body: _Body, x: Register) -> Register:
    return _bounded(body, _exp_core(body, x), x, -87.33654, 88.72283)


def _exp2(body: _Body, x: Register) -> Register:
    count = body.rint(x)
    value = body.scaled(body.horner(body.sub(x, count), _EXP2), count)
    return _bounded(body, value, x, -126.0, 127.99999)


def _split(body: _Body, x: Register) -> tuple[Register, Register]:
    """Return (e as f32, m - 1) with x = m * 2**e, m in [sqrt(1/2), sqrt(2)), for positive x."""
    tiny = body.compare("lt", x, 2.0**-126)
    normal = body.select(tiny, body.mul(x, 2.0**24), x)
    bias = body.select(tiny, -24.0, 0.0)
    bits = body.bits(normal)
    exponent = body.word("shr", body.word("sub", bits, 0x3F3504F3), 23)  # sqrt(1/2)
    mantissa = body.from_bits(body.word("sub", bits, body.word("shl", exponent, 23)))
    return body.add(body.machine.convert(exponent, f32), bias), body.sub(mantissa, 1.0)


def _log_edges(body: _Body, value: Register, x: Register) -> Register:
    value = body.select(body.compare("eq", x, math.inf), math.inf, value)
    value = body.select(body.compare("eq", x, 0.0), -math.inf, value)
    value = body.select(body.compare("lt", x, 0.0), math.nan, value)
    return body.select(body.compare("ne", x, x), x, value)


def _log1p_tail(body: _Body, f: Register) -> Register:
    """Return log(1 + f) - f."""
    cubic = body.mul(body.horner(f, _LOG), f)
    return body.mul(body.mul(f, f), body.add(cubic, -0.5))


def _log(body: _Body, x: Register) -> Register:
    power, f = _split(body, x)
    low = body.fma(power, _LN2_LOW, _log1p_tail(body, f))
    value = body.fma(power, _LN2_HIGH, body.opaque(body.add(f, low)))
    return _log_edges(body, value, x)


def _log2(body: _Body, x: Register) -> Register:
    power, f = _split(body, x)
    low = _log1p_tail(body, f)
    # log2(e) in two parts, so that f close to zero keeps all of its bits.
    main = float.fromhex("0x1.7154p0")
    small = body.mul(body.add(f, low), 1 / math.log(2) - main)
    small = body.opaque(body.fma(low, main, small))
    value = body.fma(f, main, small)
    return _log_edges(body, body.add(power, value), x)


def _trigonometric(offset: int) -> Callable[[_Body, Register], Register]:
    def function(body: _Body, x: Register) -> Register:
        # x - n * pi/2 in steps that are exact far beyond the longest context.
        count = body.rint(body.mul(x, 2 / math.pi))
        rest = x
        for part in _HALF_PI:
            rest = body.opaque(body.fma(count, -part, rest))
        square = body.mul(rest, rest)
        sine = body.fma(body.horner(square, _SIN), body.mul(square, rest), rest)
        tail = body.fma(body.horner(square, _COS), square, -0.5)
        cosine = body.fma(tail, square, 1.0)
        quadrant = body.word("add", body.machine.convert(count, i32), offset)
        odd = body.machine.compare("ne", body.word("and", quadrant, 1), body.whole(0))
        chosen = body.bits(body.select(odd, cosine, sine))
        sign = body.word("shl", body.word("and", quadrant, 2), 30)
        return body.from_bits(body.machine.binary("xor", chosen, sign))

    return function


def _tanh(body: _Body, x: Register) -> Register:
    magnitude = body.abs(x)
    square = body.mul(x, x)
    small = body.fma(body.horner(square, _TANH), body.mul(square, x), x)
    # 1 - 2 / (e**(2|x|) + 1); beyond 10 the result rounds to 1.
    limited = body.select(body.compare("lt", magnitude, 10.0), magnitude, 10.0)
    grown = _exp_core(body, body.add(limited, limited))
    large = body.add(body.div(-2.0, body.add(grown, 1.0)), 1.0)
    # A NaN is unordered and takes the polynomial.
    is_large = body.compare("ge", magnitude, 0.625)
    return body.select(is_large, body.with_sign(large, x), small)


def _erf(body: _Body, x: Register) -> Register:
    magnitude = body.abs(x)
    square = body.mul(x, x)
    # 2/sqrt(pi) - 1 as the first coefficient keeps the last bit of small results.
    small = body.fma(body.horner(square, _ERF_SMALL), x, x)
    limited = body.select(body.compare("lt", magnitude, 4.0), magnitude, 4.0)
    tail = _exp_core(body, body.horner(limited, _ERFC_LOG))
    large = body.with_sign(body.sub(1.0, tail), x)
    return body.select(body.compare("ge", magnitude, 0.9), large, small)


def _log2_pair(body: _Body, x: Register) -> tuple[Register, Register]:
    """Return log2 of a positive number in two parts, good to about 2**-30 of itself."""
    power, f = _split(body, x)
    # log(1 + f) = 2 atanh(f / (2 + f)); the quotient in two parts.
    den = body.add(f, 2.0)
    den_low = body.sub(f, body.sub(den, 2.0))
    s = body.div(f, den)
    error = body.fma(body.machine.unary("neg", s), den, f)
    s_low = body.div(body.fma(body.machine.unary("neg", s), den_low, error), den)
    square = body.mul(s, s)
    tail = body.mul(body.mul(square, s), body.horner(square, _ATANH))
    high, low = body.add(s, s), body.add(body.add(s_low, s_low), tail)
    main = float.fromhex("0x1.715476p0")  # log2(e) to 24 bits
    product = body.mul(high, main)
    rest = body.fma(high, main, body.machine.unary("neg", product))
    rest = body.fma(high, 1 / math.log(2) - main, rest)
    rest = body.fma(low, main, rest)
    total = body.add(power, product)
    return total, body.add(body.sub(product, body.sub(total, power)), rest)


def _pow(body: _Body, x: Register, y: Register) -> Register:
    magnitude = body.abs(x)
    high, low = _log2_pair(body, magnitude)
    product = body.mul(y, high)
    rest = body.fma(y, high, body.machine.unary("neg", product))
    rest = body.fma(y, low, rest)
    count = body.rint(product)
    value = body.scaled(body.horner(body.add(body.sub(product, count), rest), _EXP2), count)
    result = _bounded(body, value, product, -126.0, 127.99999)
    return _pow_edges(body, result, x, y)


def _pow_edges(body: _Body, result: Register, x: Register, y: Register) -> Register:
    """Return the result with the sign and the special cases of IEEE 754's pow."""
    magnitude = body.abs(x)
    is_whole = body.compare("eq", body.machine.unary("floor", y), y)
    half = body.mul(y, 0.5)
    is_even = body.compare("eq", body.machine.unary("floor", half), half)
    grows = body.compare("gt", y, 0.0)
    result = body.select(
        body.compare("eq", magnitude, 0.0), body.select(grows, 0.0, math.inf), result
    )
    result = body.select(
        body.compare("eq", magnitude, math.inf), body.select(grows, math.inf, 0.0), result
    )
    is_endless = body.compare("eq", body.abs(y), math.inf)
    inside = body.compare("lt", magnitude, 1.0)
    vanishes = body.machine.binary("xor", inside, body.machine.unary("not", grows))
    extreme = body.select(vanishes, 0.0, math.inf)
    extreme = body.select(body.compare("eq", magnitude, 1.0), 1.0, extreme)
    result = body.select(is_endless, extreme, result)
    signed = body.select(is_whole, body.with_sign(result, x), result)
    result = body.select(is_even, result, signed)
    is_negative = body.both(body.compare("lt", x, 0.0), body.compare("lt", magnitude, math.inf))
    is_broken = body.both(is_negative, body.machine.unary("not", is_whole))
    result = body.select(is_broken, math.nan, result)
    result = body.select(body.compare("ne", x, x), x, result)
    result = body.select(body.compare("ne", y, y), y, result)
    result = body.select(body.compare("eq", y, 0.0), 1.0, result)
    return body.select(body.compare("eq", x, 1.0), 1.0, result)


_UNARY: dict[str, Callable[[_Body, Register], Register]] = {
    "exp": _exp, "exp2": _exp2, "log": _log, "log2": _log2, "sin": _trigonometric(0),
    "cos": _trigonometric(1), "tanh": _tanh, "erf": _erf,
}  # fmt: skip
MATH_FUNCTIONS = frozenset({*_UNARY, "pow"})
"""Names that ``math_function`` knows."""


def math_function(machine: Machine, name: str, *operands: Register) -> Register:
    """Return a function of f32 values; ``pow`` takes two."""
    body = _Body(machine)
    return _pow(body, *operands) if name == "pow" else _UNARY[name](body, *operands)
