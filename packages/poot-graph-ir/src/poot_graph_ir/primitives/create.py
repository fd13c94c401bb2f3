"""Primitives that make tensors out of nothing: full, iota, literal."""

from __future__ import annotations

from poot_core import DTypeError
from poot_graph_ir._types import TensorType
from poot_graph_ir.primitives._registry import Attributes, Primitive, Types, check_axis

__all__ = ["CREATE"]


def _full(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    value, dtype = attributes["value"], attributes["dtype"]
    wanted = {"float": float, "int": int, "uint": int, "bool": bool}[dtype.kind]
    if type(value) is not wanted:
        raise DTypeError(f"'full' of {dtype} takes a Python {wanted.__name__}, got {value!r}")
    return (TensorType(attributes["shape"], dtype),)


def _iota(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    check_axis(attributes["axis"], attributes["shape"])
    if attributes["dtype"].kind == "bool":
        raise DTypeError("'iota' makes numbers, not booleans")
    return (TensorType(attributes["shape"], attributes["dtype"]),)


def _literal(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    return (attributes["value"].type,)


CREATE: tuple[Primitive, ...] = (
    Primitive("full", 0, ("shape", "value", "dtype"), _full, "one number everywhere", "create"),
    Primitive("iota", 0, ("shape", "axis", "dtype"), _iota, "the index along axis", "create"),
    Primitive("literal", 0, ("value",), _literal, "an array known at trace time", "create"),
)
