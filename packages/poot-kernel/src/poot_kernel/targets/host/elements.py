"""Element operations on values of any number of lanes: one table for scalars, tiles and SPMD code.

Every function takes operands of equal lanes (``lower_element`` widens scalars) and is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from poot_core import DType, UnsupportedError, boolean, f32, i64
from poot_kernel.ir.core import Attribute
from poot_kernel.targets.host.convert import convert
from poot_kernel.targets.host.emitter import Emitter, Val
from poot_kernel.targets.host.machine import HostMachine
from poot_kernel.targets.host.math import MATH_FUNCTIONS, math_function
from poot_kernel.targets.host.products import dot_bytes, dot_pairs

__all__ = ["ELEMENT_LOWERINGS", "lower_element"]

Attributes = dict[str, Attribute]
ElementLowering = Callable[[Emitter, HostMachine, Attributes, list[Val]], Val]


def lower_element(
    e: Emitter, machine: HostMachine, opcode: str, attributes: Attributes, operands: list[Val]
) -> Val:
    """Return the value of an element operation; scalars are widened to the widest operand.

    Raises:
        UnsupportedError: If the host has no lowering of it.
    """
    lowering = ELEMENT_LOWERINGS.get(opcode)
    if lowering is None:
        raise UnsupportedError(f"the host has no lowering of element operation {opcode!r}")
    lanes = max((x.lanes for x in operands), default=0)
    if opcode == "select" and operands[1].lanes == operands[2].lanes and not operands[0].lanes:
        return lowering(e, machine, attributes, operands)
    return lowering(e, machine, attributes, [e.splat(x, lanes) if lanes else x for x in operands])


def _constant(
    e: Emitter, _machine: HostMachine, attributes: Attributes, _operands: list[Val]
) -> Val:
    value = attributes["value"]
    assert isinstance(value, int | float)
    return e.const(value, cast("DType", attributes["dtype"]))


def _is_signed(x: Val) -> bool:
    return x.dtype.kind == "int"


def _wide(function: Callable[[Emitter, list[Val]], Val]) -> ElementLowering:
    """Compute on 16-bit floats in f32, rounding once at the end."""

    def lowering(e: Emitter, _machine: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
        dtype = operands[0].dtype
        if dtype.is_float and dtype.bits < 32:
            return convert(e, function(e, [convert(e, x, f32) for x in operands]), dtype)
        return function(e, operands)

    return lowering


def _arithmetic(floating: str, integer: str) -> ElementLowering:
    def function(e: Emitter, operands: list[Val]) -> Val:
        a, b = operands
        if not a.lanes and a.dtype is i64:
            if integer == "add":
                return e.add(a, b)
            if integer == "mul":
                return e.mul(a, b)
            if isinstance(a.constant, int) and isinstance(b.constant, int):
                return e.index(a.constant - b.constant)
        return e.binary(floating if a.dtype.is_float else integer, a, b)

    return _wide(function)


def _extremum(ordered: str, signed: str, unsigned: str) -> ElementLowering:
    def function(e: Emitter, operands: list[Val]) -> Val:
        a, b = operands
        if a.dtype.is_float:
            return e.select(e.compare(f"fcmp {ordered}", a, b), a, b)
        return e.overloaded(signed if _is_signed(a) else unsigned, a, b)

    return _wide(function)


def _quotient(want_remainder: bool) -> ElementLowering:
    def function(e: Emitter, operands: list[Val]) -> Val:
        a, b = operands
        divisor = b.constant
        if isinstance(a.constant, int) and isinstance(divisor, int):
            folded = a.constant % divisor if want_remainder else a.constant // divisor
            return e.const(folded, a.dtype, a.lanes)
        if isinstance(divisor, int) and divisor > 0 and divisor & (divisor - 1) == 0:
            if want_remainder:
                return e.binary("and", a, e.const(divisor - 1, a.dtype, a.lanes), divisor - 1)
            shift = e.const(divisor.bit_length() - 1, a.dtype, a.lanes)
            return e.binary("ashr" if _is_signed(a) else "lshr", a, shift)
        if not _is_signed(a):
            return e.binary("urem" if want_remainder else "udiv", a, b)
        quotient, rest = e.binary("sdiv", a, b), e.binary("srem", a, b)
        zero = e.const(0, a.dtype, a.lanes)
        differs = e.compare("icmp slt", e.binary("xor", rest, b), zero)
        inexact = e.compare("icmp ne", rest, zero)
        below = e.binary("and", differs, inexact)
        if want_remainder:
            return e.select(below, e.binary("add", rest, b), rest)
        one = e.const(1, a.dtype, a.lanes)
        return e.select(below, e.binary("sub", quotient, one), quotient)

    return _wide(function)


def _mul_high(e: Emitter, _m: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
    a, b = operands
    wide = f"i{2 * a.dtype.bits}"
    wide = f"<{a.lanes} x {wide}>" if a.lanes else wide
    grow = "sext" if _is_signed(a) else "zext"
    x, y = (e.name(f"{grow} {v.typed} to {wide}") for v in (a, b))
    product = e.name(f"mul {wide} {x}, {y}")
    bits = str(a.dtype.bits)
    bits = f"splat (i{2 * a.dtype.bits} {bits})" if a.lanes else bits
    high = e.name(f"lshr {wide} {product}, {bits}")
    return e.emit(f"trunc {wide} {high} to {a.type}", a.dtype, a.lanes)


def _bitwise(instruction: str) -> ElementLowering:
    def lowering(e: Emitter, _m: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
        a, b = operands
        bound = None
        if a.dtype.kind == "uint":
            known = [x.bound for x in (a, b) if x.bound is not None]
            if instruction == "and" and known:
                bound = min(known)
            elif instruction != "and" and len(known) == 2:
                bound = (1 << max(known).bit_length()) - 1
        return e.binary(instruction, a, b, bound)

    return lowering


def _shift_right(e: Emitter, _m: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
    a, by = operands
    if _is_signed(a):
        return e.binary("ashr", a, by)
    largest = (1 << a.dtype.bits) - 1 if a.bound is None else a.bound
    bound = largest >> by.constant if isinstance(by.constant, int) else a.bound
    return e.binary("lshr", a, by, bound)


def _shift_left(e: Emitter, _m: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
    a, by = operands
    bound = None
    if a.bound is not None and isinstance(by.constant, int):
        moved = a.bound << by.constant
        bound = moved if moved < 1 << a.dtype.bits - (a.dtype.kind == "int") else None
    return e.binary("shl", a, by, bound)


def _fma(e: Emitter, operands: list[Val]) -> Val:
    return e.overloaded("fma", *operands)


def _negate(e: Emitter, operands: list[Val]) -> Val:
    (x,) = operands
    if x.dtype.is_float:
        return e.emit(f"fneg {x.typed}", x.dtype, x.lanes)
    return e.binary("sub", e.const(0, x.dtype, x.lanes), x)


def _absolute(e: Emitter, operands: list[Val]) -> Val:
    (x,) = operands
    if x.dtype.is_float:
        return e.overloaded("fabs", x)
    if not _is_signed(x):
        return x
    return e.overloaded("smax", x, _negate(e, [x]))


def _complement(e: Emitter, _m: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
    (x,) = operands
    return e.binary("xor", x, e.const(True if x.dtype is boolean else -1, x.dtype, x.lanes))


def _count_ones(e: Emitter, operands: list[Val]) -> Val:
    return e.overloaded("ctpop", operands[0])


def _rounding(stem: str) -> ElementLowering:
    return _wide(lambda e, operands: e.overloaded(stem, operands[0]))


def _rsqrt(e: Emitter, operands: list[Val]) -> Val:
    (x,) = operands
    return e.binary("fdiv", e.const(1.0, x.dtype, x.lanes), e.overloaded("sqrt", x))


def _math(name: str) -> ElementLowering:
    def function(e: Emitter, operands: list[Val]) -> Val:
        (x,) = operands
        if x.dtype is not f32:
            raise UnsupportedError(f"the host computes {name!r} in f32, not in {x.dtype.name}")
        symbol, definition, declarations = math_function(name, max(x.lanes, 1))
        for text in declarations:
            e.declare(text.removeprefix("declare "))
        e.prelude.setdefault(symbol, definition)
        return e.emit(f"call {x.type} {symbol}({x.typed})", f32, x.lanes)

    return _wide(function)


_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def _compare(opcode: str) -> ElementLowering:
    def lowering(e: Emitter, _m: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
        a, b = operands
        if a.dtype.is_float:
            if a.dtype.bits < 32:
                a, b = convert(e, a, f32), convert(e, b, f32)
            return e.compare(f"fcmp {_FLOAT_PREDICATES[opcode]}", a, b)
        prefix = "" if opcode in {"eq", "ne"} else "s" if _is_signed(a) else "u"
        return e.compare(f"icmp {prefix}{opcode}", a, b)

    return lowering


def _select(e: Emitter, _m: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
    return e.select(*operands)


def _convert(e: Emitter, _m: HostMachine, attributes: Attributes, operands: list[Val]) -> Val:
    dtype = cast("DType", attributes["dtype"])
    return convert(e, operands[0], dtype, saturate=bool(attributes["saturate"]))


def _bitcast(e: Emitter, _m: HostMachine, attributes: Attributes, operands: list[Val]) -> Val:
    (x,) = operands
    dtype = cast("DType", attributes["dtype"])
    if dtype.bits != x.dtype.bits:
        raise UnsupportedError("the host casts bits of a lane only to a dtype of the same width")
    return e.reinterpret(x, dtype, x.lanes)


def _dot4(e: Emitter, machine: HostMachine, attributes: Attributes, operands: list[Val]) -> Val:
    a, b, acc = operands
    lanes = a.lanes
    if not lanes:
        a, b, acc = (e.splat(x, 4) for x in operands)
    signs = bool(attributes["a_signed"]), bool(attributes["b_signed"])
    result = dot_bytes(e, machine, a, b, acc, signs)
    return result if lanes else e.extract(result, 0)


def _dot2(e: Emitter, _m: HostMachine, attributes: Attributes, operands: list[Val]) -> Val:
    a, b, acc = operands
    return dot_pairs(e, None, a, b, acc, cast("DType", attributes["dtype"]))


def _lut16(e: Emitter, machine: HostMachine, attributes: Attributes, operands: list[Val]) -> Val:
    (index,) = operands
    dtype = cast("DType", attributes["dtype"])
    table = [int(v) for v in cast("tuple[int, ...]", attributes["table"])]
    bound = max(abs(v) for v in table)
    low = index if index.bound is not None and index.bound < 16 else e.binary(
        "and", index, e.const(15, index.dtype, index.lanes), 15
    )  # fmt: skip
    if dtype.bits == 8 and index.dtype.bits == 8 and index.lanes >= 16:
        return _shuffled_bytes(e, machine, table, low, dtype, bound)
    result = e.const(table[15], dtype, index.lanes)
    for i in range(14, -1, -1):
        hit = e.compare("icmp eq", low, e.const(i, index.dtype, index.lanes))
        result = e.select(hit, e.const(table[i], dtype, index.lanes), result)
    return Val(result.name, dtype, index.lanes, None, bound)


def _shuffled_bytes(
    e: Emitter, machine: HostMachine, table: list[int], low: Val, dtype: DType, bound: int
) -> Val:
    lanes = low.lanes
    width = min(lanes, machine.vector_bytes)
    if lanes > width:
        halves = [
            _shuffled_bytes(e, machine, table, e.shuffle(low, None, list(range(at, at + width))),
                            dtype, bound)
            for at in range(0, lanes, width)
        ]  # fmt: skip
        joined = halves[0]
        for half in halves[1:]:
            joined = e.shuffle(joined, half, list(range(joined.lanes + half.lanes)))
        return Val(joined.name, dtype, lanes, None, bound)
    bytes_ = ", ".join(f"i8 {v & 255}" for v in table * (width // 16))
    names = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b",
             16: "llvm.x86.ssse3.pshuf.b.128"}  # fmt: skip
    name = names[width] if machine.byte_shuffle == "x86" else "llvm.aarch64.neon.tbl1.v16i8"
    found = e.call(name, dtype, width, Val(f"<{bytes_}>", dtype, width), low)
    return Val(found.name, dtype, width, None, bound)


def _assume_multiple(e: Emitter, _m: HostMachine, _a: Attributes, operands: list[Val]) -> Val:
    return operands[0]


ELEMENT_LOWERINGS: dict[str, ElementLowering] = {
    "constant": _constant,
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": _arithmetic("fdiv", "sdiv"),
    "floordiv": _quotient(False),
    "mod": _quotient(True),
    "min": _extremum("olt", "smin", "umin"),
    "max": _extremum("ogt", "smax", "umax"),
    "mul_high": _mul_high,
    "and": _bitwise("and"),
    "or": _bitwise("or"),
    "xor": _bitwise("xor"),
    "shl": _shift_left,
    "shr": _shift_right,
    "fma": _wide(_fma),
    "neg": _wide(_negate),
    "abs": _wide(_absolute),
    "not": _complement,
    "count_ones": _wide(_count_ones),
    "sqrt": _rounding("sqrt"),
    "rsqrt": _wide(_rsqrt),
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "trunc": _rounding("trunc"),
    "rint": _rounding("rint"),
    **{name: _math(name) for name in sorted(MATH_FUNCTIONS - {"pow"})},
    **{name: _compare(name) for name in _FLOAT_PREDICATES},
    "select": _select,
    "convert": _convert,
    "bitcast": _bitcast,
    "dot4": _dot4,
    "dot2": _dot2,
    "lut16": _lut16,
    "assume_multiple": _assume_multiple,
}
"""Opcode -> lowering of element operations."""
