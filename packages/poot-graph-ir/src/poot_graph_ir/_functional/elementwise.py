"""Elementwise primitives over tracers and Python scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poot_core import DType, DTypeError, f32
from poot_graph_ir._functional.broadcast import broadcast_shapes, broadcast_to, broadcast_together
from poot_graph_ir._location import model_location
from poot_graph_ir._types import is_packed

if TYPE_CHECKING:
    from poot_graph_ir._tracer import Scalar, Tracer

__all__ = [
    "abs",
    "add",
    "convert",
    "cos",
    "dequantize",
    "div",
    "equal",
    "erf",
    "exp",
    "floor",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "not_equal",
    "pow",
    "rsqrt",
    "select",
    "sign",
    "sin",
    "sqrt",
    "sub",
    "tanh",
    "to_f32",
]


def _unary(op: str, x: Tracer) -> Tracer:
    return x.trace.emit(op, (x,))


def neg(x: Tracer) -> Tracer:
    """Return -x."""
    return _unary("neg", x)


def abs(x: Tracer) -> Tracer:
    """Return the magnitude of x."""
    return _unary("abs", x)


def sign(x: Tracer) -> Tracer:
    """Return -1, 0 or 1."""
    return _unary("sign", x)


def exp(x: Tracer) -> Tracer:
    """Return e to the x."""
    return _unary("exp", x)


def log(x: Tracer) -> Tracer:
    """Return the natural logarithm."""
    return _unary("log", x)


def sqrt(x: Tracer) -> Tracer:
    """Return the square root."""
    return _unary("sqrt", x)


def rsqrt(x: Tracer) -> Tracer:
    """Return one over the square root."""
    return _unary("rsqrt", x)


def sin(x: Tracer) -> Tracer:
    """Return the sine; x in radians."""
    return _unary("sin", x)


def cos(x: Tracer) -> Tracer:
    """Return the cosine; x in radians."""
    return _unary("cos", x)


def tanh(x: Tracer) -> Tracer:
    """Return the hyperbolic tangent."""
    return _unary("tanh", x)


def erf(x: Tracer) -> Tracer:
    """Return the error function."""
    return _unary("erf", x)


def floor(x: Tracer) -> Tracer:
    """Return the largest integer not above x."""
    return _unary("floor", x)


def logical_not(x: Tracer) -> Tracer:
    """Return not x."""
    return _unary("logical_not", x)


def _binary(op: str, a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    if isinstance(a, bool | int | float):
        b = _tensor(b)
        a = _lift(op, a, b)
    elif isinstance(b, bool | int | float):
        b = _lift(op, b, a)
    elif a.shape != b.shape:
        a, b = broadcast_together(a, b)
    return a.trace.emit(op, (a, b))


def _tensor(x: Tracer | Scalar) -> Tracer:
    if isinstance(x, bool | int | float):
        raise DTypeError(f"one operand must be a tensor, got {x!r} at {model_location()}")
    return x


def _lift(op: str, scalar: Scalar, like: Tracer) -> Tracer:
    """Return a Python scalar as a tensor of the type of the one beside it."""
    dtype = like.dtype
    if is_packed(dtype):
        raise DTypeError(f"{op!r} got the packed {like}; dequantize it, at {model_location()}")
    assert isinstance(dtype, DType)
    allowed = {"float": (int, float), "int": (int,), "uint": (int,), "bool": (bool,)}[dtype.kind]
    if type(scalar) not in allowed:
        raise DTypeError(
            f"{op!r} got the scalar {scalar!r} beside a tensor of {dtype}; scalars take the "
            f"tensor's dtype, so convert the tensor first, at {model_location()}",
            location=model_location(),
        )
    return like.trace.full(like.shape, scalar, dtype)


def add(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a + b."""
    return _binary("add", a, b)


def sub(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a - b."""
    return _binary("sub", a, b)


def mul(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a * b."""
    return _binary("mul", a, b)


def div(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a / b; floats alone."""
    return _binary("div", a, b)


def pow(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a to the b; floats alone."""
    return _binary("pow", a, b)


def maximum(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return the larger of each pair."""
    return _binary("maximum", a, b)


def minimum(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return the smaller of each pair."""
    return _binary("minimum", a, b)


def logical_and(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a and b."""
    return _binary("logical_and", a, b)


def logical_or(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a or b."""
    return _binary("logical_or", a, b)


def equal(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a == b as booleans."""
    return _binary("equal", a, b)


def not_equal(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a != b as booleans."""
    return _binary("not_equal", a, b)


def less(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a < b as booleans."""
    return _binary("less", a, b)


def less_equal(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a <= b as booleans."""
    return _binary("less_equal", a, b)


def greater(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a > b as booleans."""
    return _binary("greater", a, b)


def greater_equal(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a >= b as booleans."""
    return _binary("greater_equal", a, b)


def select(predicate: Tracer, a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a where the predicate holds, else b; all three broadcast together."""
    if isinstance(a, bool | int | float):
        b = _tensor(b)
        a = _lift("select", a, b)
    elif isinstance(b, bool | int | float):
        b = _lift("select", b, a)
    shape = broadcast_shapes(predicate.shape, broadcast_shapes(a.shape, b.shape))
    operands = [broadcast_to(x, shape) for x in (predicate, a, b)]
    return predicate.trace.emit("select", operands)


def convert(x: Tracer, dtype: DType) -> Tracer:
    """Return x in another dtype; x itself if it has that already."""
    return x if x.dtype is dtype else x.trace.emit("convert", (x,), {"dtype": dtype})


def dequantize(x: Tracer) -> Tracer:
    """Return the f32 values of a packed weight."""
    return x.trace.emit("dequantize", (x,))


def to_f32(x: Tracer) -> Tracer:
    """Return a weight, dense or packed, as f32."""
    return dequantize(x) if is_packed(x.dtype) else convert(x, f32)
