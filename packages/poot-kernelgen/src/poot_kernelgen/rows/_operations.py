"""Elementwise nodes as kernel IR: one element of each operand to one element of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

from poot_core import UnsupportedError, boolean, dtype_by_name, f32
from poot_kernel import IRBuilder, ScalarType, Value, VectorType
from poot_kernelgen.requests import RowNode

__all__ = ["REDUCTIONS", "emit_node", "literal_of"]

_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "max",
           "minimum": "min", "logical_and": "and", "logical_or": "or"}  # fmt: skip
_COMPARE = {"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
            "greater_equal": "ge"}  # fmt: skip
_UNARY = {"neg": "neg", "abs": "abs", "exp": "exp", "log": "log", "sqrt": "sqrt",
          "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf",
          "floor": "floor", "logical_not": "not"}  # fmt: skip
_MOST_PRODUCTS = 16


def literal_of(node: RowNode) -> float | int | bool:
    """Return a literal node's number in its dtype."""
    value = dict(node.attributes)["value"]
    assert isinstance(value, bool | int | float)
    dtype = dtype_by_name(node.dtype)
    if dtype is boolean:
        return bool(value)
    return float(value) if dtype.is_float else int(value)


def emit_node(
    b: IRBuilder, node: RowNode, operands: Sequence[Value], power: float | None = None
) -> Value:
    """Return a node's value; operands mix scalars and vectors of one length.

    Args:
        b: The builder.
        node: An elementwise node or a conversion.
        operands: Values of its operands.
        power: For ``pow``: the exponent, if it is a literal.

    Raises:
        UnsupportedError: If the operation is unknown.
    """
    dtype = dtype_by_name(node.dtype)
    if node.op == "convert":
        source = _dtype(operands[0])
        saturate = source.is_float and dtype.is_integer
        return b.convert(operands[0], dtype, saturate=saturate)
    # Arithmetic of 16-bit floats is that of f32, rounded: one operation stays correctly rounded.
    wide = [_widened(b, x) for x in _lifted(b, operands)]
    result = _emit(b, node, wide, power)
    narrow = dtype.is_float and dtype.bits == 16 and _dtype(result) is f32
    return b.convert(result, dtype) if narrow else result


def _dtype(value: Value):
    assert isinstance(value.type, ScalarType | VectorType)
    return value.type.dtype


def _widened(b: IRBuilder, x: Value) -> Value:
    dtype = _dtype(x)
    return b.convert(x, f32) if dtype.is_float and dtype.bits == 16 else x


def _lifted(b: IRBuilder, operands: Sequence[Value]) -> list[Value]:
    counts = {x.type.count for x in operands if isinstance(x.type, VectorType)}
    if not counts:
        return list(operands)
    (count,) = counts
    return [x if isinstance(x.type, VectorType) else b.splat(x, count) for x in operands]


def _emit(b: IRBuilder, node: RowNode, x: Sequence[Value], power: float | None) -> Value:
    op = node.op
    if op in _BINARY:
        return b.binary(_BINARY[op], x[0], x[1])
    if op in _COMPARE:
        return b.compare(_COMPARE[op], x[0], x[1])
    if op in _UNARY:
        return b.unary(_UNARY[op], x[0])
    if op == "select":
        return b.select(x[0], x[1], x[2])
    if op == "sign":
        return _sign(b, x[0])
    if op == "pow":
        return _power(b, x[0], x[1], power)
    raise UnsupportedError(f"a row program has no operation {op!r}", op=op)


def _sign(b: IRBuilder, x: Value) -> Value:
    zero, one, less = b.like(x, 0, 1, -1)[1:] if not _dtype(x).is_float else b.like(
        x, 0.0, 1.0, -1.0)[1:]  # fmt: skip
    negative = b.select(b.compare("lt", x, zero), less, x)  # zeros and NaN stay themselves
    return b.select(b.compare("gt", x, zero), one, negative)


def _power(b: IRBuilder, x: Value, y: Value, power: float | None) -> Value:
    if power == 0.5:
        return b.unary("sqrt", x)
    if power == -0.5:
        return b.unary("rsqrt", x)
    if power is not None and power == int(power) and abs(power) <= _MOST_PRODUCTS:
        return _whole_power(b, x, int(power))
    return b.binary("pow", x, y)


def _whole_power(b: IRBuilder, x: Value, power: int) -> Value:
    """Products by binary powers; a negative power is one division."""
    if power == 0:
        return b.like(x, 1.0)[1]
    square, rest = x, abs(power)
    result: Value | None = None
    while rest:
        if rest & 1:
            result = square if result is None else b.mul(result, square)
        rest >>= 1
        if rest:
            square = b.mul(square, square)
    assert result is not None
    return result if power > 0 else b.div(1.0, result)


REDUCTIONS: dict[str, tuple[str, float]] = {
    "reduce_sum": ("add", 0.0),
    "reduce_max": ("max", -math.inf),
    "reduce_min": ("min", math.inf),
}
"""Opcode and neutral element of each reduction."""
