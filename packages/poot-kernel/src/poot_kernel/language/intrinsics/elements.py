"""Operations on elements: on scalars and vectors at once, on tiles as part of a map."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from poot_core import DType, PootError
from poot_kernel.ir import Value
from poot_kernel.language._values import (
    Intrinsic,
    intrinsic,
    is_tile,
)

if TYPE_CHECKING:
    from poot_kernel.language._calls import CallImporter

__all__ = [
    "absolute",
    "assume_multiple",
    "bitcast",
    "ceil",
    "ceildiv",
    "convert",
    "cos",
    "count_ones",
    "dot2",
    "dot4",
    "erf",
    "exp",
    "exp2",
    "floor",
    "fma",
    "insert",
    "log",
    "log2",
    "lut16",
    "maximum",
    "minimum",
    "mul_high",
    "rint",
    "rsqrt",
    "sin",
    "splat",
    "sqrt",
    "tanh",
    "trunc",
    "vector",
    "vector_reduce",
    "where",
]


def _unary(name: str, opcode: str = "") -> Intrinsic:
    def handler(k: CallImporter, node: ast.Call, x: object, /) -> object:
        return k.element(node, partial(k.b.unary, opcode or name), x)

    return Intrinsic(name, handler)


def _folded(name: str, opcode: str) -> Intrinsic:
    def handler(k: CallImporter, node: ast.Call, *items: object) -> object:
        if len(items) < 2:
            raise PootError(f"{name}() takes two values or more")
        result, *rest = items
        for item in rest:
            result = k.element(node, partial(k.b.binary, opcode), result, item)
        return result

    return Intrinsic(name, handler)


exp = _unary("exp")
exp2 = _unary("exp2")
log = _unary("log")
log2 = _unary("log2")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
sin = _unary("sin")
cos = _unary("cos")
tanh = _unary("tanh")
erf = _unary("erf")
floor = _unary("floor")
ceil = _unary("ceil")
trunc = _unary("trunc")
rint = _unary("rint")
absolute = _unary("abs")
count_ones = _unary("count_ones")
minimum = _folded("minimum", "min")
maximum = _folded("maximum", "max")
mul_high = _folded("mul_high", "mul_high")


@intrinsic
def fma(k: CallImporter, node: ast.Call, a: object, b: object, c: object) -> object:
    """The product of a and b plus c, rounded once."""
    return k.element(node, k.b.fma, a, b, c)


@intrinsic
def where(k: CallImporter, node: ast.Call, condition: object, a: object, b: object) -> object:
    """A where the condition holds, else b."""

    def emit(test: Any, x: Any, y: Any) -> Value:
        if not isinstance(x, Value) and not isinstance(y, Value):
            x = k.value(x)
        return k.b.select(k.value(test), x, y)

    return k.element(node, emit, condition, a, b)


@intrinsic
def convert(
    k: CallImporter, node: ast.Call, x: object, dtype: DType, *, saturate: bool = False
) -> object:
    """X in another dtype; calling a dtype is the short form."""
    if isinstance(x, Value) and is_tile(x) and not saturate:
        return k.b.tile_convert(x, dtype)
    return k.element(node, partial(k.b.convert, dtype=dtype, saturate=saturate), x)


@intrinsic
def bitcast(k: CallImporter, node: ast.Call, x: object, dtype: DType) -> object:
    """The same bits as another dtype."""
    return k.element(node, partial(k.b.bitcast, dtype=dtype), x)


@intrinsic
def dot4(
    k: CallImporter,
    node: ast.Call,
    a: object,
    b: object,
    acc: object,
    *,
    a_signed: bool = True,
    b_signed: bool = True,
) -> object:
    """Acc plus four byte products."""
    emit = partial(k.b.dot4, a_signed=a_signed, b_signed=b_signed)
    return k.element(node, emit, a, b, acc)


@intrinsic
def dot2(
    k: CallImporter, node: ast.Call, a: object, b: object, acc: object, dtype: DType
) -> object:
    """Acc plus two 16-bit float products."""
    return k.element(node, partial(k.b.dot2, dtype=dtype), a, b, acc)


@intrinsic
def lut16(
    k: CallImporter, node: ast.Call, index: object, table: Sequence[int], dtype: DType
) -> object:
    """An entry of a table of 16, by the low four bits of the index."""
    return k.element(node, partial(k.b.lut16, table=tuple(table), dtype=dtype), index)


@intrinsic
def vector(k: CallImporter, node: ast.Call, *items: object) -> object:
    """A vector of scalars."""
    return k.b.vector_build(*(k.value(item) for item in items))


@intrinsic
def splat(k: CallImporter, node: ast.Call, x: object, count: int) -> object:
    """A vector of equal elements."""
    return k.b.splat(k.value(x), count)


@intrinsic
def insert(k: CallImporter, node: ast.Call, v: Value, x: object, index: int) -> object:
    """A vector with one element replaced."""
    return k.b.insert(v, k.value(x), index)


@intrinsic
def vector_reduce(k: CallImporter, node: ast.Call, v: object, kind: str) -> object:
    """A vector's elements combined in ascending order."""
    return k.element(node, partial(k.b.vector_reduce, kind=kind), v)


@intrinsic
def assume_multiple(k: CallImporter, node: ast.Call, x: Value, factor: int) -> object:
    """X, promised to be a multiple of factor."""
    return k.b.assume_multiple(x, factor)


@intrinsic
def ceildiv(k: CallImporter, node: ast.Call, a: object, b: object) -> object:
    """The quotient rounded up."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return -(-cast("int", a) // cast("int", b))
    total = k.b.add(cast("Value", a), k.b.sub(b, 1) if isinstance(b, Value) else cast("int", b) - 1)
    return k.b.floordiv(total, cast("Value", b))
