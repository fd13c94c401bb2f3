"""Plain vector operations: result type, operand types, meaning on NumPy arrays.

Types: u i f 32 bits, U I d 64 bits, t s h 16 bits (unsigned, signed, float). Scalar float
instructions of gfx11.5 and gfx12 use the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._floats import (
    bf16_bits,
    div_fixup,
    flushed,
    fma,
    to_integer,
)

__all__ = ["ALIASES", "OPERATIONS", "Operation", "mixed_dot"]

Operation = tuple[str, str, Callable[..., Any]]

_32, _24, _16, _31, _63 = (np.uint32(x) for x in (32, 0xFFFFFF, 0xFFFF, 31, 63))
_ONE, _FULL = np.uint32(1), np.uint32(0xFFFFFFFF)


def _rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the f64 function rounded to f32, denormals flushed as the hardware does."""

    def run(x: Any) -> Any:
        return flushed(function(flushed(x).astype(np.float64)).astype(np.float32))

    return run


def _turns(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(np.asarray(x, np.float64) * 2 * np.pi).astype(np.float32)


def _wide(x: Any) -> Any:
    return np.asarray(x).astype(np.uint64)


def _signed24(x: Any) -> Any:
    return (x << np.int32(8)) >> np.int32(8)


def _popcount(x: Any) -> Any:
    return np.bitwise_count(x).astype(np.uint32)


def _leading(x: Any) -> Any:
    """Return leading zeros of u32, all ones for 0."""
    width = np.frexp(np.asarray(x, np.float64))[1]
    return np.where(x == 0, _FULL, (32 - width).astype(np.uint32))


def _leading_signed(x: Any) -> Any:
    flipped = np.where(x < 0, ~x, x).view(np.uint32)
    return np.where(flipped == 0, _FULL, _leading(flipped))


def _trailing(x: Any) -> Any:
    return np.where(x == 0, _FULL, _popcount((x & (~x + _ONE)) - _ONE))


def _reverse(x: Any) -> Any:
    found = np.zeros_like(x)
    for bit in range(32):
        found |= ((x >> np.uint32(bit)) & _ONE) << np.uint32(31 - bit)
    return found


def _field(x: Any, offset: Any, width: Any) -> Any:
    count = width & _31
    return (x >> (offset & _31)) & ((_ONE << count) - _ONE)


def _signed_field(x: Any, offset: Any, width: Any) -> Any:
    count = (width & _31).astype(np.int32)
    up = np.int32(32) - count
    part = (x >> (offset & _31).astype(np.int32)).astype(np.int32)
    return np.where(count == 0, 0, (part << (up & 31)) >> (up & 31)).astype(np.int32)


def _permute(high: Any, low: Any, selector: Any) -> Any:
    high, low, selector = np.broadcast_arrays(high, low, selector)
    both = _wide(high) << np.uint64(32) | _wide(low)
    found = np.zeros(both.shape, np.uint32)
    for byte in range(4):
        which = (selector >> np.uint32(8 * byte)) & np.uint32(255)
        plain = (both >> _wide((which & np.uint32(7)) * np.uint32(8))).astype(np.uint32)
        sign_of = {8: 15, 9: 31, 10: 47, 11: 63}
        value = np.where(which < 8, plain & np.uint32(255), np.uint32(0))
        for code, bit in sign_of.items():
            sign = (both >> np.uint64(bit)).astype(np.uint32) & _ONE
            value = np.where(which == code, sign * np.uint32(255), value)
        value = np.where(which >= 13, np.uint32(255), value)
        found |= value << np.uint32(8 * byte)
    return found


def _align(bits: int) -> Callable[[Any, Any, Any], Any]:
    def run(high: Any, low: Any, amount: Any) -> Any:
        both = _wide(high) << np.uint64(32) | _wide(low)
        limit = np.uint32(31 if bits == 1 else 3)
        return (both >> _wide((amount & limit) * np.uint32(bits))).astype(np.uint32)

    return run


def _median(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _median_float(a: Any, b: Any, c: Any) -> Any:
    any_nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(any_nan, np.fmin(np.fmin(a, b), c), _median(a, b, c))


def _ldexp(x: Any, exponent: Any) -> Any:
    return np.ldexp(np.asarray(x, np.float64), np.clip(exponent, -400, 400)).astype(np.float32)


def _fraction(x: Any) -> Any:
    return np.minimum(x - np.floor(x), np.float32(1 - 2.0**-24))


def _dots(count: int, a_signed: bool, b_signed: bool) -> Callable[[Any, Any, Any], Any]:
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


def _halves(x: Any) -> tuple[Any, Any]:
    low = (x & _16).astype(np.uint16).view(np.float16)
    return low, (x >> np.uint32(16)).astype(np.uint16).view(np.float16)


def _dot2_f16(a: Any, b: Any, c: Any) -> Any:
    a0, a1 = _halves(np.asarray(a))
    b0, b1 = _halves(np.asarray(b))
    return fma(a0, b0, fma(a1, b1, c))


def _pack_halves(low: Any, high: Any) -> Any:
    up = np.asarray(high, np.float16).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return up | np.asarray(low, np.float16).view(np.uint16).astype(np.uint32)


def _pack_bf16(low: Any, high: Any) -> Any:
    return bf16_bits(high).astype(np.uint32) << np.uint32(16) | bf16_bits(low).astype(np.uint32)


def _mul_high(a: Any, b: Any) -> Any:
    return (_wide(a) * _wide(b) >> np.uint64(32)).astype(np.uint32)


def _mul_high_signed(a: Any, b: Any) -> Any:
    return (a.astype(np.int64) * b.astype(np.int64) >> 32).astype(np.int32)


def _low_bits(x: Any) -> Any:
    return x & _31


OPERATIONS: dict[str, Operation] = {
    "mov_b32": ("u", "u", lambda a: a), "mov_b64": ("U", "U", lambda a: a),
    "mov_b16": ("t", "t", lambda a: a), "not_b32": ("u", "u", lambda a: ~a),
    "accvgpr_read_b32": ("u", "u", lambda a: a), "accvgpr_write_b32": ("u", "u", lambda a: a),
    "accvgpr_mov_b32": ("u", "u", lambda a: a),
    # f32
    "add_f32": ("f", "ff", np.add), "sub_f32": ("f", "ff", np.subtract),
    "subrev_f32": ("f", "ff", lambda a, b: b - a), "mul_f32": ("f", "ff", np.multiply),
    "mul_legacy_f32": ("f", "ff", lambda a, b: np.where((a == 0) | (b == 0), 0, a * b)),
    "fma_f32": ("f", "fff", fma), "fmac_f32": ("f", "ffD", fma), "mac_f32": ("f", "ffD", lambda a, b, c: a * b + c),
    "fmaak_f32": ("f", "fff", fma), "fmamk_f32": ("f", "fff", fma),
    "max_f32": ("f", "ff", np.fmax), "min_f32": ("f", "ff", np.fmin),
    "maximum_f32": ("f", "ff", np.maximum), "minimum_f32": ("f", "ff", np.minimum),
    "max3_f32": ("f", "fff", lambda a, b, c: np.fmax(np.fmax(a, b), c)),
    "min3_f32": ("f", "fff", lambda a, b, c: np.fmin(np.fmin(a, b), c)),
    "maxmin_f32": ("f", "fff", lambda a, b, c: np.fmin(np.fmax(a, b), c)),
    "minmax_f32": ("f", "fff", lambda a, b, c: np.fmax(np.fmin(a, b), c)),
    "med3_f32": ("f", "fff", _median_float),
    "rcp_f32": ("f", "f", _rounded(np.reciprocal)), "rcp_iflag_f32": ("f", "f", _rounded(np.reciprocal)),
    "rsq_f32": ("f", "f", _rounded(lambda x: 1 / np.sqrt(x))),
    "sqrt_f32": ("f", "f", lambda x: np.sqrt(x.astype(np.float64)).astype(np.float32)),
    "exp_f32": ("f", "f", _rounded(np.exp2)), "log_f32": ("f", "f", _rounded(np.log2)),
    "sin_f32": ("f", "f", _turns(np.sin)), "cos_f32": ("f", "f", _turns(np.cos)),
    "floor_f32": ("f", "f", np.floor), "ceil_f32": ("f", "f", np.ceil),
    "trunc_f32": ("f", "f", np.trunc), "rndne_f32": ("f", "f", np.rint),
    "fract_f32": ("f", "f", _fraction), "ldexp_f32": ("f", "fi", _ldexp),
    "frexp_mant_f32": ("f", "f", lambda x: np.where(np.isfinite(x), np.frexp(x)[0], x)),
    "frexp_exp_i32_f32": ("i", "f", lambda x: np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(np.int32)),
    "div_fixup_f32": ("f", "fff", div_fixup),
    # 16-bit floats
    "add_f16": ("h", "hh", np.add), "sub_f16": ("h", "hh", np.subtract), "mul_f16": ("h", "hh", np.multiply),
    "max_f16": ("h", "hh", np.fmax), "min_f16": ("h", "hh", np.fmin),
    "fma_f16": ("h", "hhh", lambda a, b, c: fma(a, b, c, np.float16)),
    # conversions
    "cvt_f32_i32": ("f", "i", lambda x: x.astype(np.float32)),
    "cvt_f32_u32": ("f", "u", lambda x: x.astype(np.float32)),
    "cvt_i32_f32": ("i", "f", lambda x: to_integer(x, np.int32)),
    "cvt_u32_f32": ("u", "f", lambda x: to_integer(x, np.uint32)),
    "cvt_rpi_i32_f32": ("i", "f", lambda x: to_integer(np.floor(x + np.float32(0.5)), np.int32)),
    "cvt_nearest_i32_f32": ("i", "f", lambda x: to_integer(np.floor(x + np.float32(0.5)), np.int32)),
    "cvt_flr_i32_f32": ("i", "f", lambda x: to_integer(np.floor(x), np.int32)),
    "cvt_floor_i32_f32": ("i", "f", lambda x: to_integer(np.floor(x), np.int32)),
    "cvt_f32_f16": ("f", "h", lambda x: x.astype(np.float32)),
    "cvt_f16_f32": ("h", "f", lambda x: x.astype(np.float16)),
    "cvt_f16_u16": ("h", "t", lambda x: x.astype(np.float16)),
    "cvt_f16_i16": ("h", "s", lambda x: x.astype(np.float16)),
    "cvt_u16_f16": ("t", "h", lambda x: to_integer(x, np.uint16)),
    "cvt_i16_f16": ("s", "h", lambda x: to_integer(x, np.int16)),
    "cvt_f64_f32": ("d", "f", lambda x: x.astype(np.float64)),
    "cvt_f32_f64": ("f", "d", lambda x: x.astype(np.float32)),
    "cvt_f64_i32": ("d", "i", lambda x: x.astype(np.float64)),
    "cvt_f64_u32": ("d", "u", lambda x: x.astype(np.float64)),
    "cvt_i32_f64": ("i", "d", lambda x: to_integer(x, np.int32)),
    "cvt_u32_f64": ("u", "d", lambda x: to_integer(x, np.uint32)),
    "cvt_i32_i16": ("i", "s", lambda x: x.astype(np.int32)),
    "cvt_u32_u16": ("u", "t", lambda x: x.astype(np.uint32)),
    **{
        f"cvt_f32_ubyte{n}": ("f", "u", lambda x, n=n: (x >> np.uint32(8 * n) & np.uint32(255)).astype(np.float32))
        for n in range(4)
    },
    "cvt_pkrtz_f16_f32": ("u", "ff", _pack_halves), "cvt_pk_bf16_f32": ("u", "ff", _pack_bf16),
    "pack_b32_f16": ("u", "hh", _pack_halves),
    "cvt_pk_u16_u32": ("u", "uu", lambda a, b: np.minimum(a, _16) | np.minimum(b, _16) << np.uint32(16)),
    "add_f64": ("d", "dd", np.add), "mul_f64": ("d", "dd", np.multiply),
    "fma_f64": ("d", "ddd", lambda a, b, c: (a.astype(np.longdouble) * b + c).astype(np.float64)),
    "rcp_f64": ("d", "d", np.reciprocal), "ldexp_f64": ("d", "di", np.ldexp),
    "floor_f64": ("d", "d", np.floor), "trunc_f64": ("d", "d", np.trunc), "rndne_f64": ("d", "d", np.rint),
    # integers
    "add_nc_u32": ("u", "uu", np.add), "sub_nc_u32": ("u", "uu", np.subtract),
    "subrev_nc_u32": ("u", "uu", lambda a, b: b - a), "add_nc_i32": ("i", "ii", np.add),
    "sub_nc_i32": ("i", "ii", np.subtract), "add3_u32": ("u", "uuu", lambda a, b, c: a + b + c),
    "add_nc_u16": ("t", "tt", np.add), "sub_nc_u16": ("t", "tt", np.subtract),
    "mul_lo_u16": ("t", "tt", np.multiply), "mad_u16": ("t", "ttt", lambda a, b, c: a * b + c),
    "mad_i16": ("s", "sss", lambda a, b, c: a * b + c),
    "max_i16": ("s", "ss", np.maximum), "min_i16": ("s", "ss", np.minimum),
    "max_u16": ("t", "tt", np.maximum), "min_u16": ("t", "tt", np.minimum),
    "lshlrev_b16": ("t", "tt", lambda n, x: x << (n & np.uint16(15))),
    "lshrrev_b16": ("t", "tt", lambda n, x: x >> (n & np.uint16(15))),
    "ashrrev_i16": ("s", "ts", lambda n, x: x >> (n & np.uint16(15)).astype(np.int16)),
    "mad_u32_u16": ("u", "ttu", lambda a, b, c: a.astype(np.uint32) * b + c),
    "mad_i32_i16": ("i", "ssi", lambda a, b, c: a.astype(np.int32) * b + c),
    "mul_lo_u32": ("u", "uu", np.multiply), "mul_lo_i32": ("u", "uu", np.multiply),
    "mul_hi_u32": ("u", "uu", _mul_high), "mul_hi_i32": ("i", "ii", _mul_high_signed),
    "mul_u32_u24": ("u", "uu", lambda a, b: (a & _24) * (b & _24)),
    "mul_i32_i24": ("i", "ii", lambda a, b: _signed24(a) * _signed24(b)),
    "mul_hi_u32_u24": ("u", "uu", lambda a, b: _mul_high(a & _24, b & _24)),
    "mad_u32_u24": ("u", "uuu", lambda a, b, c: (a & _24) * (b & _24) + c),
    "mad_i32_i24": ("i", "iii", lambda a, b, c: _signed24(a) * _signed24(b) + c),
    "min_u32": ("u", "uu", np.minimum), "max_u32": ("u", "uu", np.maximum),
    "min_i32": ("i", "ii", np.minimum), "max_i32": ("i", "ii", np.maximum),
    "min3_u32": ("u", "uuu", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "max3_u32": ("u", "uuu", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "min3_i32": ("i", "iii", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "max3_i32": ("i", "iii", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "maxmin_u32": ("u", "uuu", lambda a, b, c: np.minimum(np.maximum(a, b), c)),
    "minmax_u32": ("u", "uuu", lambda a, b, c: np.maximum(np.minimum(a, b), c)),
    "maxmin_i32": ("i", "iii", lambda a, b, c: np.minimum(np.maximum(a, b), c)),
    "minmax_i32": ("i", "iii", lambda a, b, c: np.maximum(np.minimum(a, b), c)),
    "med3_i32": ("i", "iii", _median), "med3_u32": ("u", "uuu", _median),
    # bits
    "and_b32": ("u", "uu", np.bitwise_and), "or_b32": ("u", "uu", np.bitwise_or),
    "xor_b32": ("u", "uu", np.bitwise_xor), "xnor_b32": ("u", "uu", lambda a, b: ~(a ^ b)),
    "and_b16": ("t", "tt", np.bitwise_and), "or_b16": ("t", "tt", np.bitwise_or),
    "xor_b16": ("t", "tt", np.bitwise_xor), "not_b16": ("t", "t", np.bitwise_not),
    "and_or_b32": ("u", "uuu", lambda a, b, c: a & b | c), "or3_b32": ("u", "uuu", lambda a, b, c: a | b | c),
    "xor3_b32": ("u", "uuu", lambda a, b, c: a ^ b ^ c), "xad_u32": ("u", "uuu", lambda a, b, c: (a ^ b) + c),
    "lshlrev_b32": ("u", "uu", lambda n, x: x << _low_bits(n)),
    "lshrrev_b32": ("u", "uu", lambda n, x: x >> _low_bits(n)),
    "ashrrev_i32": ("i", "ui", lambda n, x: x >> _low_bits(n).view(np.int32)),
    "lshl_or_b32": ("u", "uuu", lambda a, n, b: a << _low_bits(n) | b),
    "lshl_add_u32": ("u", "uuu", lambda a, n, b: (a << _low_bits(n)) + b),
    "add_lshl_u32": ("u", "uuu", lambda a, b, n: (a + b) << _low_bits(n)),
    "lshlrev_b64": ("U", "uU", lambda n, x: x << _wide(n & _63)),
    "lshrrev_b64": ("U", "uU", lambda n, x: x >> _wide(n & _63)),
    "ashrrev_i64": ("I", "uI", lambda n, x: x >> (n & _63).astype(np.int64)),
    "lshl_add_u64": ("U", "UuU", lambda a, n, b: (a << _wide(n & np.uint32(7))) + b),
    "add_nc_u64": ("U", "UU", np.add), "sub_nc_u64": ("U", "UU", np.subtract), "mul_u64": ("U", "UU", np.multiply),
    "bfe_u32": ("u", "uuu", _field), "bfe_i32": ("i", "iuu", _signed_field),
    "bfi_b32": ("u", "uuu", lambda a, b, c: a & b | ~a & c),
    "bfm_b32": ("u", "uu", lambda a, b: ((_ONE << _low_bits(a)) - _ONE) << _low_bits(b)),
    "bfrev_b32": ("u", "u", _reverse), "bcnt_u32_b32": ("u", "uu", lambda a, b: _popcount(a) + b),
    "clz_i32_u32": ("u", "u", _leading), "ffbh_u32": ("u", "u", _leading),
    "cls_i32": ("u", "i", _leading_signed), "ffbh_i32": ("u", "i", _leading_signed),
    "ctz_i32_b32": ("u", "u", _trailing), "ffbl_b32": ("u", "u", _trailing),
    "perm_b32": ("u", "uuu", _permute), "alignbit_b32": ("u", "uuu", _align(1)),
    "alignbyte_b32": ("u", "uuu", _align(8)),
    "sad_u32": ("u", "uuu", lambda a, b, c: np.where(a > b, a - b, b - a) + c),
    # dot products; those of mixed signs are built apart
    "dot4_i32_i8": ("i", "uui", _dots(4, True, True)), "dot4c_i32_i8": ("i", "uuD", _dots(4, True, True)),
    "dot4_u32_u8": ("i", "uui", _dots(4, False, False)),
    "dot4_i32_iu8": ("i", "uui", _dots(4, False, False)),
    "dot2_f32_f16": ("f", "uuf", _dot2_f16), "dot2c_f32_f16": ("f", "uuD", _dot2_f16),
    "dot2acc_f32_f16": ("f", "uuD", _dot2_f16),
}  # fmt: skip

mixed_dot = _dots

ALIASES = {
    "add_u32": "add_nc_u32", "sub_u32": "sub_nc_u32", "subrev_u32": "subrev_nc_u32",
    "add_i32": "add_nc_i32", "sub_i32": "sub_nc_i32", "add_u16": "add_nc_u16",
    "sub_u16": "sub_nc_u16", "max_num_f32": "max_f32", "min_num_f32": "min_f32",
    "max_num_f16": "max_f16", "min_num_f16": "min_f16", "max3_num_f32": "max3_f32",
    "min3_num_f32": "min3_f32", "maxmin_num_f32": "maxmin_f32", "minmax_num_f32": "minmax_f32",
    "med3_num_f32": "med3_f32", "lshlrev_b64_e64": "lshlrev_b64", "mul_dx9_zero_f32": "mul_legacy_f32",
    "cvt_pk_rtz_f16_f32": "cvt_pkrtz_f16_f32", "mad_legacy_u16": "mad_u16", "rndne_num_f32": "rndne_f32",
}  # fmt: skip
