"""Dot products within a lane: four bytes into 32 bits, and pairs of 16-bit floats into f32."""

from __future__ import annotations

from poot_core import DType, bf16, f32, i8, i16, i32, u8, u32
from poot_kernel.targets.host.convert import convert
from poot_kernel.targets.host.emitter import Emitter, Val
from poot_kernel.targets.host.machine import HostMachine

__all__ = ["dot_bytes", "dot_pairs"]


def dot_bytes(
    e: Emitter, machine: HostMachine, a: Val, b: Val, acc: Val, signed: tuple[bool, bool]
) -> Val:
    """Return acc plus, in each 32-bit lane, four products of bytes, exact modulo 2**32.

    Args:
        e: Where to emit.
        machine: Chooses the instructions; all choices give the same bits.
        a: Bytes, or 32-bit lanes holding four; its ``bound`` may be used.
        b: The same.
        acc: i32 lanes.
        signed: Whether the bytes of a and of b are signed.
    """
    lanes = acc.lanes
    a, b = (_as_bytes(e, x, s) for x, s in zip((a, b), signed, strict=True))
    if signed == (True, False):
        a, b, signed = b, a, (False, True)
    full = lanes * 4 in {16, 32, 64} and lanes * 4 <= machine.vector_bytes
    if signed == (False, False) and b.bound is not None and b.bound < 128:
        signed = (False, True)
    elif signed == (False, False) and a.bound is not None and a.bound < 128:
        a, b, signed = b, a, (False, True)
    if signed == (False, True) and full:
        if machine.byte_dot == "vnni":
            name = f"llvm.x86.avx512.vpdpbusd.{lanes * 32}"
            return e.call(name, i32, lanes, acc, a, b)
        if machine.byte_dot == "maddubs" and lanes * 4 >= 16:
            return _dot_saturating(e, a, b, acc)
        if machine.byte_dot == "usdot":
            return e.call("llvm.aarch64.neon.usdot.v4i32.v16i8", i32, lanes, acc, a, b)
        if machine.byte_dot == "sdot":
            return _dot_signed_only(e, a, b, acc)
    if signed == (True, True) and full:
        if machine.byte_dot in {"usdot", "sdot"}:
            return e.call("llvm.aarch64.neon.sdot.v4i32.v16i8", i32, lanes, acc, a, b)
        # (a + 128) . b - 128 * sum(b), both through the unsigned form.
        n = lanes * 4
        lifted = e.binary("xor", Val(a.name, u8, n), e.const(128, u8, n))
        sums = dot_bytes(e, machine, e.const(128, u8, n), b, e.const(0, i32, lanes), (False, True))
        return dot_bytes(e, machine, lifted, b, e.binary("sub", acc, sums), (False, True))
    return _dot_plain(e, a, b, acc, signed)


def _as_bytes(e: Emitter, x: Val, signed: bool) -> Val:
    dtype = i8 if signed else u8
    if x.dtype.bits == 8:
        return Val(x.name, dtype, x.lanes, x.constant, x.bound)
    return e.reinterpret(x, dtype, x.lanes * 4, None)


def _dot_saturating(e: Emitter, a: Val, b: Val, acc: Val) -> Val:
    """Vpmaddubsw saturates at 16 bits: split a into its low seven bits and its top bit if needed."""
    n, lanes = a.lanes, acc.lanes
    largest = 255 if a.bound is None else a.bound
    other = 128 if b.bound is None else b.bound
    if 2 * largest * other > 32767:
        low = e.binary("and", a, e.const(127, u8, n), 127)
        high = e.binary("and", a, e.const(128, u8, n), 128)
        acc = _dot_saturating(e, low, b, acc)
        # 128 * (-128) * 2 is exactly the least 16-bit number, 128 * 127 * 2 fits.
        return _madd(e, high, b, acc, lanes)
    return _madd(e, a, b, acc, lanes)


def _madd(e: Emitter, a: Val, b: Val, acc: Val, lanes: int) -> Val:
    names = {
        64: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
        32: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
        16: ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    }[a.lanes]
    pairs = e.call(names[0], i16, a.lanes // 2, a, b)
    sums = e.call(names[1], i32, lanes, pairs, e.const(1, i16, a.lanes // 2))
    return e.binary("add", acc, sums)


def _dot_signed_only(e: Emitter, a: Val, b: Val, acc: Val) -> Val:
    """NEON's sdot without usdot: what exceeds seven bits is added as two halves of 128."""
    name, n, lanes = "llvm.aarch64.neon.sdot.v4i32.v16i8", a.lanes, acc.lanes
    if a.bound is not None and a.bound < 128:
        return e.call(name, i32, lanes, acc, a, b)
    low = e.binary("and", a, e.const(127, u8, n), 127)
    half = e.binary("and", e.binary("lshr", a, e.const(1, u8, n)), e.const(64, u8, n), 64)
    acc = e.call(name, i32, lanes, acc, low, b)
    acc = e.call(name, i32, lanes, acc, half, b)
    return e.call(name, i32, lanes, acc, half, b)


def _dot_plain(e: Emitter, a: Val, b: Val, acc: Val, signed: tuple[bool, bool]) -> Val:
    lanes = acc.lanes
    words = [e.reinterpret(x, i32, lanes) for x in (a, b)]
    for byte in range(4):
        parts: list[Val] = []
        for word, is_signed in zip(words, signed, strict=True):
            moved = word
            if byte < 3:
                moved = e.binary("shl", word, e.const(24 - 8 * byte, i32, lanes))
            shift = e.const(24, i32, lanes)
            parts.append(e.binary("ashr" if is_signed else "lshr", moved, shift))
        acc = e.binary("add", acc, e.binary("mul", parts[0], parts[1]))
    return acc


def dot_pairs(
    e: Emitter, machine: HostMachine | None, a: Val, b: Val, acc: Val, dtype: DType
) -> Val:
    """Return fma(even, fma(odd, acc)) of two pairs of 16-bit floats in each 32-bit lane.

    Args:
        e: Where to emit.
        machine: Whether to use vdpbf16ps (which flushes subnormals); None never does.
        a: 32-bit lanes, or twice as many of 16 bits.
        b: The same.
        acc: f32 lanes (or a scalar).
        dtype: bf16 or f16.
    """
    lanes = acc.lanes
    if dtype is bf16 and machine is not None and machine.has_bf16_dot and lanes == 16:
        kind = "<32 x bfloat>"
        x, y = (e.name(f"bitcast {v.typed} to {kind}") for v in (a, b))
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        e.declare(f"<16 x float> @{name}(<16 x float>, {kind}, {kind})")
        return e.emit(f"call <16 x float> @{name}({acc.typed}, {kind} {x}, {kind} {y})", f32, 16)
    words = [e.reinterpret(x, u32, lanes) for x in (a, b)]
    for odd in (True, False):
        parts = [_half_word(e, word, odd, dtype) for word in words]
        acc = e.overloaded("fma", *parts, acc)
    return acc


def _half_word(e: Emitter, word: Val, odd: bool, dtype: DType) -> Val:
    n = word.lanes
    if dtype is bf16:
        high = (
            e.binary("and", word, e.const(0xFFFF0000, u32, n))
            if odd
            else e.binary("shl", word, e.const(16, u32, n))
        )
        return e.reinterpret(high, f32, n)
    moved = e.binary("lshr", word, e.const(16, u32, n)) if odd else word
    narrow = e.name(f"trunc {moved.typed} to {f'<{n} x i16>' if n else 'i16'}")
    kind = f"<{n} x i16>" if n else "i16"
    half = e.emit(f"bitcast {kind} {narrow} to {f'<{n} x half>' if n else 'half'}", dtype, n)
    return convert(e, half, f32)
