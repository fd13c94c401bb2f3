"""Elementwise primitives: unary, binary, comparisons, select and convert."""

from __future__ import annotations

from poot_core import DTypeError, ShapeError, boolean, format_shape
from poot_graph_ir._types import TensorType
from poot_graph_ir.primitives._registry import Attributes, Primitive, Types, dense

__all__ = ["ELEMENTWISE"]


def _unary(kinds: frozenset[str], name: str) -> Primitive:
    def rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        (x,) = types
        if dense(x).kind not in kinds:
            raise DTypeError(f"{name!r} takes {_words(kinds)} elements, got {x}")
        return (x,)

    return Primitive(name, 1, (), rule, _UNARY[name][1], "unary")


def _binary(kinds: frozenset[str], name: str, doc: str, *, compare: bool = False) -> Primitive:
    def rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        a, b = types
        if dense(a) is not dense(b):
            raise DTypeError(f"{name!r} takes equal dtypes, got {a} and {b}; convert one of them")
        if dense(a).kind not in kinds:
            raise DTypeError(f"{name!r} takes {_words(kinds)} elements, got {a}")
        if a.shape != b.shape:
            raise ShapeError(
                f"{name!r} takes equal shapes, got {format_shape(a.shape)} and "
                f"{format_shape(b.shape)}"
            )
        return (TensorType(a.shape, boolean),) if compare else (a,)

    return Primitive(name, 2, (), rule, doc, "compare" if compare else "binary")


def _words(kinds: frozenset[str]) -> str:
    return " or ".join(sorted(kinds))


def _select(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    predicate, a, b = types
    if dense(predicate) is not boolean or dense(a) is not dense(b):
        raise DTypeError(
            f"'select' takes a boolean and two tensors of one dtype, got {predicate}, {a} and {b}"
        )
    if not predicate.shape == a.shape == b.shape:
        raise ShapeError(f"'select' takes equal shapes, got {predicate}, {a} and {b}")
    return (a,)


def _convert(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    dense(x)
    return (TensorType(x.shape, attributes["dtype"]),)


_FLOAT = frozenset({"float"})
_SIGNED = frozenset({"float", "int"})
_NUMBER = frozenset({"float", "int", "uint"})
_BOOL = frozenset({"bool"})
_ANY = _NUMBER | _BOOL

_UNARY: dict[str, tuple[frozenset[str], str]] = {
    "neg": (_SIGNED, "-x"),
    "abs": (_SIGNED, "|x|"),
    "sign": (_SIGNED, "-1, 0 or 1"),
    "exp": (_FLOAT, "e to the x"),
    "log": (_FLOAT, "natural logarithm"),
    "sqrt": (_FLOAT, "square root"),
    "rsqrt": (_FLOAT, "1 / sqrt(x)"),
    "sin": (_FLOAT, "sine, x in radians"),
    "cos": (_FLOAT, "cosine, x in radians"),
    "tanh": (_FLOAT, "hyperbolic tangent"),
    "erf": (_FLOAT, "error function"),
    "floor": (_FLOAT, "largest integer not above x"),
    "logical_not": (_BOOL, "not x"),
}
_BINARY: dict[str, tuple[frozenset[str], str]] = {
    "add": (_NUMBER, "a + b; integers wrap"),
    "sub": (_NUMBER, "a - b; integers wrap"),
    "mul": (_NUMBER, "a * b; integers wrap"),
    "div": (_FLOAT, "a / b"),
    "pow": (_FLOAT, "a to the b"),
    "maximum": (_NUMBER, "the larger; NaN if either is"),
    "minimum": (_NUMBER, "the smaller; NaN if either is"),
    "logical_and": (_BOOL, "a and b"),
    "logical_or": (_BOOL, "a or b"),
}
_COMPARE: dict[str, tuple[frozenset[str], str]] = {
    "equal": (_ANY, "a == b"),
    "not_equal": (_ANY, "a != b"),
    "less": (_NUMBER, "a < b"),
    "less_equal": (_NUMBER, "a <= b"),
    "greater": (_NUMBER, "a > b"),
    "greater_equal": (_NUMBER, "a >= b"),
}

ELEMENTWISE: tuple[Primitive, ...] = (
    *(_unary(kinds, name) for name, (kinds, _) in _UNARY.items()),
    *(_binary(kinds, name, doc) for name, (kinds, doc) in _BINARY.items()),
    *(_binary(kinds, name, doc, compare=True) for name, (kinds, doc) in _COMPARE.items()),
    Primitive("select", 3, (), _select, "a where the predicate holds, else b", "select"),
    Primitive(
        "convert",
        1,
        ("dtype",),
        _convert,
        "to another dtype: floats round to nearest even, float to integer truncates and saturates",
        "unary",
    ),
)
