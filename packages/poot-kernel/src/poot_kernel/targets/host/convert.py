"""Conversions between element types, lane by lane."""

from __future__ import annotations

from poot_core import DType, UnsupportedError, bf16, boolean, f16, f32, f64, i32, u32
from poot_kernel.targets.host.emitter import Emitter, Val

__all__ = ["convert"]


def convert(e: Emitter, x: Val, dtype: DType, *, saturate: bool = False) -> Val:
    """Return x in another dtype, as opcode ``convert`` means it.

    Raises:
        UnsupportedError: For 8-bit floats.
    """
    if x.dtype is dtype:
        return x
    if x.constant is not None and not (x.dtype.is_float and dtype.is_integer):
        return e.const(_folded(x.constant, dtype), dtype, x.lanes)
    if dtype is boolean:
        zero = e.const(0, x.dtype, x.lanes)
        if x.dtype is bf16:  # -0.0 is false too
            return convert(e, convert(e, x, f32), boolean)
        return e.compare("fcmp une" if x.dtype.is_float else "icmp ne", x, zero)
    if x.dtype is boolean:
        if dtype.is_float:
            return convert(e, e.cast("uitofp", x, f32), dtype)
        return e.cast("zext", x, dtype, bound=1)
    if x.dtype.is_float and dtype.is_float:
        return _float_to_float(e, x, dtype)
    if x.dtype.is_float:
        return _float_to_integer(e, x, dtype, saturate)
    if dtype.is_float:
        return _integer_to_float(e, x, dtype)
    return _integer_to_integer(e, x, dtype, saturate)


def _folded(value: float | bool, dtype: DType) -> float | bool:
    if dtype is boolean:
        return value != 0
    if dtype.is_float:
        return float(dtype.numpy.type(value))
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return (
        wrapped - (1 << dtype.bits)
        if dtype.kind == "int" and wrapped >> dtype.bits - 1
        else wrapped
    )


def _refuse(dtype: DType) -> UnsupportedError:
    return UnsupportedError(f"the host has no conversion of {dtype.name}", dtype=dtype.name)


def _float_to_float(e: Emitter, x: Val, dtype: DType) -> Val:
    if x.dtype is bf16:
        wide = e.cast("zext", Val(x.name, bf16, x.lanes), u32)
        shifted = e.binary("shl", wide, e.const(16, u32, x.lanes))
        return convert(e, e.reinterpret(shifted, f32, x.lanes), dtype)
    if x.dtype.bits == 8 or dtype.bits == 8:
        raise _refuse(x.dtype if x.dtype.bits == 8 else dtype)
    if dtype is bf16:
        return _round_to_bf16(e, convert(e, x, f32))
    if {x.dtype, dtype} == {f16, f64}:  # no instruction, and LLVM would call a library
        return convert(e, convert(e, x, f32), dtype)
    return e.cast("fpext" if dtype.bits > x.dtype.bits else "fptrunc", x, dtype)


def _round_to_bf16(e: Emitter, x: Val) -> Val:
    """Round to nearest even on the bits; a NaN stays one."""
    n = x.lanes
    bits = e.reinterpret(x, u32, n)
    high = e.binary("lshr", bits, e.const(16, u32, n))
    odd = e.binary("and", high, e.const(1, u32, n))
    bias = e.binary("add", odd, e.const(0x7FFF, u32, n))
    rounded = e.binary("lshr", e.binary("add", bits, bias), e.const(16, u32, n))
    quiet = e.binary("or", high, e.const(0x40, u32, n))
    chosen = e.select(e.compare("fcmp uno", x, x), quiet, rounded)
    return e.cast("trunc", chosen, bf16)


def _float_to_integer(e: Emitter, x: Val, dtype: DType, saturate: bool) -> Val:
    if x.dtype is bf16 or x.dtype is f16:
        x = convert(e, x, f32)
    signed = dtype.kind == "int"
    if not saturate:
        if dtype.bits < 32:  # through 32 bits, so that vectors need one instruction
            wide = e.cast("fptosi", x, i32)
            return e.cast("trunc", wide, dtype)
        return e.cast("fptosi" if signed else "fptoui", x, dtype)
    element = "f64" if x.dtype is f64 else "f32"
    lanes = f"v{x.lanes}" if x.lanes else ""
    stem = "fptosi" if signed else "fptoui"
    return e.call(f"llvm.{stem}.sat.{lanes}i{dtype.bits}.{lanes}{element}", dtype, x.lanes, x)


def _integer_to_float(e: Emitter, x: Val, dtype: DType) -> Val:
    if dtype is bf16 or dtype is f16:
        return convert(e, _integer_to_float(e, x, f32), dtype)
    if dtype.bits == 8:
        raise _refuse(dtype)
    if x.dtype.bits < 32:
        x = e.cast("sext" if x.dtype.kind == "int" else "zext", x, i32, x.bound)
    return e.cast("sitofp" if x.dtype.kind == "int" else "uitofp", x, dtype)


def _integer_to_integer(e: Emitter, x: Val, dtype: DType, saturate: bool) -> Val:
    if saturate:
        x = _clamped(e, x, dtype)
    fits = x.bound is not None and x.bound < 1 << dtype.bits - 1
    bound = x.bound if fits else None
    if dtype.bits < x.dtype.bits:
        return e.cast("trunc", x, dtype, bound)
    if dtype.bits == x.dtype.bits:
        return Val(x.name, dtype, x.lanes, None, bound)
    return e.cast("sext" if x.dtype.kind == "int" else "zext", x, dtype, bound)


def _clamped(e: Emitter, x: Val, dtype: DType) -> Val:
    signed_from, signed_to = x.dtype.kind == "int", dtype.kind == "int"
    high = (1 << dtype.bits - signed_to) - 1
    low = -(1 << dtype.bits - 1) if signed_to else 0
    if high < (1 << x.dtype.bits - signed_from) - 1:
        x = e.overloaded("smin" if signed_from else "umin", x, e.const(high, x.dtype, x.lanes))
    if signed_from and low > -(1 << x.dtype.bits - 1):
        x = e.overloaded("smax", x, e.const(low, x.dtype, x.lanes))
    return x
