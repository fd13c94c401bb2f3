"""poot's own f32 math functions as LLVM vector code without calls into a C library.

Every function works lane by lane, so a value's bits do not depend on the vector width or on its
neighbours. Errors against the exact value, measured over dense samples by ``test_host_math.py``:
exp, exp2, log, log2, sin, cos and tanh stay within 2 ulp, erf within 2 ulp, pow within 1. Results
below the smallest normal number may be flushed to zero. Polynomials are weighted minimax fits
(Lawson's iteration) made for this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from poot_core import UnsupportedError
from poot_kernel.targets.host.math_body import MathBody

__all__ = ["MATH_FUNCTIONS", "math_function"]

# Adding 1.5 * 2^23 rounds to an integer in the low mantissa bits (|x| < 2^22).
_ROUND = 12582912.0
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


def _exp_core(body: MathBody, x: str) -> tuple[str, str]:
    """Return e**x before special cases, and its argument."""
    shifted = body.fma(x, body.real(1 / math.log(2)), body.real(_ROUND))
    count = body.binary("fsub", shifted, body.real(_ROUND))
    rest = body.fma(count, body.real(-_LN2_HIGH), x)
    rest = body.fma(count, body.real(-_LN2_LOW), rest)
    return _scale(body, body.horner(rest, _EXP), shifted), x


def _scale(body: MathBody, value: str, shifted: str) -> str:
    """Return value * 2**n, n being the low bits of ``shifted``: an addition to the exponent."""
    exponent = body.binary("shl", body.bits(shifted), body.integer(23), "i")
    return body.from_bits(body.binary("add", body.bits(value), exponent, "i"))


def _bounded(body: MathBody, value: str, x: str, low: float, high: float) -> str:
    value = body.select(body.compare("olt", x, body.real(low)), body.real(0.0), value)
    return body.select(body.compare("ogt", x, body.real(high)), body.real(math.inf), value)


def _exp(body: MathBody, x: str) -> str:
    value, _ = _exp_core(body, x)
    return _bounded(body, value, x, -87.33654, 88.72283)


def _exp2(body: MathBody, x: str) -> str:
    shifted = body.binary("fadd", x, body.real(_ROUND))
    rest = body.binary("fsub", x, body.binary("fsub", shifted, body.real(_ROUND)))
    value = _scale(body, body.horner(rest, _EXP2), shifted)
    return _bounded(body, value, x, -126.0, 127.99999)


def _split(body: MathBody, x: str) -> tuple[str, str]:
    """Return (e as f32, m - 1) with x = m * 2**e, m in [sqrt(1/2), sqrt(2)), for positive x."""
    tiny = body.compare("olt", x, body.real(2.0**-126))
    normal = body.select(tiny, body.binary("fmul", x, body.real(2.0**24)), x)
    bias = body.select(tiny, body.real(-24.0), body.real(0.0))
    bits = body.bits(normal)
    lifted = body.binary("sub", bits, body.integer(0x3F3504F3), "i")  # sqrt(1/2)
    exponent = body.binary("ashr", lifted, body.integer(23), "i")
    whole = body.binary("shl", exponent, body.integer(23), "i")
    mantissa = body.from_bits(body.binary("sub", bits, whole, "i"))
    power = body.emit(f"sitofp {body.i} {exponent} to {body.f}")
    return body.binary("fadd", power, bias), body.binary("fsub", mantissa, body.real(1.0))


def _log_edges(body: MathBody, value: str, x: str) -> str:
    infinite = body.compare("oeq", x, body.real(math.inf))
    value = body.select(infinite, body.real(math.inf), value)
    value = body.select(body.compare("oeq", x, body.real(0.0)), body.real(-math.inf), value)
    # Unordered covers a NaN argument as well.
    return body.select(body.compare("ult", x, body.real(0.0)), body.real(math.nan), value)


def _log1p_parts(body: MathBody, f: str) -> tuple[str, str]:
    """Return (f, log(1 + f) - f)."""
    square = body.binary("fmul", f, f)
    cubic = body.binary("fmul", body.horner(f, _LOG), f)
    return f, body.binary("fmul", square, body.binary("fadd", cubic, body.real(-0.5)))


def _log(body: MathBody, x: str) -> str:
    power, f = _split(body, x)
    high, low = _log1p_parts(body, f)
    low = body.fma(power, body.real(_LN2_LOW), low)
    value = body.fma(power, body.real(_LN2_HIGH), body.binary("fadd", high, low))
    return _log_edges(body, value, x)


def _log2(body: MathBody, x: str) -> str:
    power, f = _split(body, x)
    high, low = _log1p_parts(body, f)
    # log2(e) in two parts, so that f close to zero keeps all of its bits.
    main = float.fromhex("0x1.7154p0")
    rest = 1 / math.log(2) - main
    both = body.binary("fadd", high, low)
    small = body.binary("fmul", both, body.real(rest))
    small = body.fma(low, body.real(main), small)
    value = body.fma(high, body.real(main), small)
    return _log_edges(body, body.binary("fadd", power, value), x)


def _trigonometric(offset: int) -> Callable[[MathBody, str], str]:
    def function(body: MathBody, x: str) -> str:
        # x - n * pi/2 in three steps, each exact or rounded once relative to its result: good for
        # |x| up to 2^22 * pi/2, far beyond the longest context.
        shifted = body.fma(x, body.real(2 / math.pi), body.real(_ROUND))
        count = body.binary("fsub", shifted, body.real(_ROUND))
        rest = x
        for part in (1.5707963705062866, -4.371139000186241e-08, -1.7151245100059e-15):
            rest = body.fma(count, body.real(-part), rest)
        square = body.binary("fmul", rest, rest)
        cube = body.binary("fmul", square, rest)
        sine = body.fma(body.horner(square, _SIN), cube, rest)
        tail = body.fma(body.horner(square, _COS), square, body.real(-0.5))
        cosine = body.fma(tail, square, body.real(1.0))
        quadrant = body.binary("add", body.bits(shifted), body.integer(offset), "i")
        odd = body.binary("and", quadrant, body.integer(1), "i")
        swapped = body.compare_integers("ne", odd, body.integer(0))
        chosen = body.select(swapped, cosine, sine)
        second = body.binary("and", quadrant, body.integer(2), "i")
        sign = body.binary("shl", second, body.integer(30), "i")
        return body.from_bits(body.binary("xor", body.bits(chosen), sign, "i"))

    return function


def _tanh(body: MathBody, x: str) -> str:
    magnitude = body.absolute(x)
    square = body.binary("fmul", x, x)
    cube = body.binary("fmul", square, x)
    small = body.fma(body.horner(square, _TANH), cube, x)
    # 1 - 2 / (e**(2|x|) + 1); beyond 10 the result rounds to 1.
    limited = body.select(body.compare("olt", magnitude, body.real(10.0)), magnitude,
                          body.real(10.0))  # fmt: skip
    grown, _ = _exp_core(body, body.binary("fadd", limited, limited))
    quotient = body.binary("fdiv", body.real(-2.0), body.binary("fadd", grown, body.real(1.0)))
    large = body.with_sign(body.binary("fadd", quotient, body.real(1.0)), x)
    # A NaN is unordered and takes the polynomial.
    return body.select(body.compare("oge", magnitude, body.real(0.625)), large, small)


def _erf(body: MathBody, x: str) -> str:
    magnitude = body.absolute(x)
    square = body.binary("fmul", x, x)
    # 2/sqrt(pi) - 1 as the first coefficient keeps the last bit of small results.
    small = body.fma(body.horner(square, _ERF_SMALL), x, x)
    limited = body.select(body.compare("olt", magnitude, body.real(4.0)), magnitude,
                          body.real(4.0))  # fmt: skip
    tail, _ = _exp_core(body, body.horner(limited, _ERFC_LOG))
    large = body.with_sign(body.binary("fsub", body.real(1.0), tail), x)
    return body.select(body.compare("oge", magnitude, body.real(0.9)), large, small)


def _pow(body: MathBody, x: str, y: str) -> str:
    # In double: y * log2|x| needs 8 more bits than f32 has.
    magnitude = body.absolute(x)
    power, f = _split(body, magnitude)
    wide = body.emit(f"fpext {body.f} {f} to {body.g}")
    ratio = body.binary("fdiv", wide, body.binary("fadd", wide, body.double(2.0), "g"), "g")
    square = body.binary("fmul", ratio, ratio, "g")
    series = tuple(2 / math.log(2) / (2 * i + 1) for i in range(9))  # atanh
    logarithm = body.binary("fmul", body.horner_double(square, series), ratio, "g")
    exponent = body.emit(f"fpext {body.f} {power} to {body.g}")
    logarithm = body.binary("fadd", logarithm, exponent, "g")
    scaled = body.binary("fmul", logarithm, body.emit(f"fpext {body.f} {y} to {body.g}"), "g")
    for name, bound in (("llvm.minnum", 200.0), ("llvm.maxnum", -200.0)):
        scaled = body.intrinsic(name, "g", scaled, body.double(bound))
    magic = 6755399441055744.0  # 1.5 * 2^52
    shifted = body.binary("fadd", scaled, body.double(magic), "g")
    rest = body.binary("fsub", scaled, body.binary("fsub", shifted, body.double(magic), "g"), "g")
    taylor = tuple(math.log(2) ** i / math.factorial(i) for i in range(10))
    value = body.horner_double(rest, taylor)
    whole = body.emit(f"bitcast {body.g} {shifted} to {body.j}")
    whole = body.binary("shl", whole, body.long(52), "j")
    bits = body.binary("add", body.emit(f"bitcast {body.g} {value} to {body.j}"), whole, "j")
    result = body.emit(
        f"fptrunc {body.g} {body.emit(f'bitcast {body.j} {bits} to {body.g}')} to {body.f}"
    )
    return _pow_edges(body, result, x, y)


def _pow_edges(body: MathBody, result: str, x: str, y: str) -> str:
    """Return the result with the sign and the special cases of IEEE 754's pow."""
    zero, one = body.real(0.0), body.real(1.0)
    magnitude, nan, infinity = body.absolute(x), body.real(math.nan), body.real(math.inf)
    whole = body.compare("oeq", body.intrinsic("llvm.floor", "f", y), y)
    half = body.binary("fmul", y, body.real(0.5))
    even = body.compare("oeq", body.intrinsic("llvm.floor", "f", half), half)
    grows = body.compare("ogt", y, zero)
    at_zero = body.select(grows, zero, infinity)
    at_infinity = body.select(grows, infinity, zero)
    result = body.select(body.compare("oeq", magnitude, zero), at_zero, result)
    result = body.select(body.compare("oeq", magnitude, infinity), at_infinity, result)
    endless = body.compare("oeq", body.absolute(y), infinity)
    inside = body.compare("olt", magnitude, one)
    vanishes = body.binary("xor", inside, grows, "b")
    extreme = body.select(vanishes, infinity, zero)
    # |x| < 1: y = inf gives 0; |x| > 1: inf; swapped for -inf.
    result = body.select(endless, body.select(inside, _below_one(body, grows), extreme), result)
    result = body.select(
        body.binary("and", endless, body.compare("oeq", magnitude, one), "b"), one, result
    )
    signed = body.with_sign(result, x)
    result = body.select(even, result, body.select(whole, signed, result))
    negative = body.compare("olt", x, zero)
    finite = body.compare("olt", magnitude, infinity)
    broken = body.binary("and", negative, finite, "b")
    fractional = body.emit(f"xor {body.b} {whole}, {_true(body)}")
    result = body.select(body.binary("and", broken, fractional, "b"), nan, result)
    result = body.select(body.compare("uno", x, y), nan, result)
    result = body.select(body.compare("oeq", y, zero), one, result)
    return body.select(body.compare("oeq", x, one), one, result)


def _below_one(body: MathBody, grows: str) -> str:
    """Return what |x| < 1 gives for an infinite exponent."""
    return body.select(grows, body.real(0.0), body.real(math.inf))


def _true(body: MathBody) -> str:
    return "true" if body.width == 1 else "splat (i1 true)"


_UNARY: dict[str, Callable[[MathBody, str], str]] = {
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "log2": _log2,
    "sin": _trigonometric(0),
    "cos": _trigonometric(1),
    "tanh": _tanh,
    "erf": _erf,
}

MATH_FUNCTIONS = frozenset({*_UNARY, "pow"})
"""Names that ``math_function`` knows."""


def math_function(name: str, width: int) -> tuple[str, str, frozenset[str]]:
    """Return a function over ``width`` f32 lanes (1: a scalar), to be inlined by LLVM.

    Args:
        name: One of ``MATH_FUNCTIONS``; ``pow`` takes two operands, the others one.
        width: Lanes.

    Returns:
        Its symbol (with ``@``), its definition, and the intrinsics' declarations that it needs.

    Raises:
        UnsupportedError: If there is no such function.
    """
    if name not in MATH_FUNCTIONS:
        raise UnsupportedError(f"no math function {name!r}; there are {sorted(MATH_FUNCTIONS)}")
    body = MathBody(width)
    result = _pow(body, "%x", "%y") if name == "pow" else _UNARY[name](body, "%x")
    parameters = f"{body.f} %x, {body.f} %y" if name == "pow" else f"{body.f} %x"
    symbol = f"@poot.{name}.f32x{width}"
    text = "\n".join(
        [f"define internal {body.f} {symbol}({parameters}) alwaysinline nounwind {{", *body.lines,
         f"  ret {body.f} {result}", "}", ""]
    )  # fmt: skip
    return symbol, text, frozenset(body.declarations)
