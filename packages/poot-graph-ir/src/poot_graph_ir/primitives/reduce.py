"""Reductions, argmax, top-k and the running sum."""

from __future__ import annotations

from poot_core import DTypeError, ShapeError, i32
from poot_graph_ir._types import TensorType
from poot_graph_ir.primitives._registry import (
    Attributes,
    Primitive,
    Types,
    check_axis,
    dense,
    static,
)

__all__ = ["REDUCE"]


def _number(x: TensorType, name: str) -> None:
    if dense(x).kind == "bool":
        raise DTypeError(f"{name!r} takes numbers, got {x}")


def _reduce(name: str, doc: str) -> Primitive:
    def rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        (x,) = types
        axes: tuple[int, ...] = attributes["axes"]
        _number(x, name)
        for axis in axes:
            check_axis(axis, x.shape)
        if list(axes) != sorted(set(axes)) or not axes:
            raise ShapeError(f"{name!r} takes rising axes, at least one, got {axes}")
        if name != "reduce_sum" and any(x.shape[axis] == 0 for axis in axes):
            raise ShapeError(f"{name!r} has no value over the empty axes {axes} of {x}")
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        return (TensorType(shape, x.dtype),)

    return Primitive(name, 1, ("axes",), rule, doc, "reduce")


def _argmax(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    axis: int = attributes["axis"]
    _number(x, "argmax")
    check_axis(axis, x.shape)
    if x.shape[axis] == 0:
        raise ShapeError(f"'argmax' has no value over the empty axis {axis} of {x}")
    return (TensorType((*x.shape[:axis], *x.shape[axis + 1 :]), i32),)


def _cumsum(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    _number(x, "cumsum")
    check_axis(attributes["axis"], x.shape)
    return (x,)


def _top_k(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    k: int = attributes["k"]
    _number(x, "top_k")
    check_axis(x.rank - 1, x.shape)
    if not 0 <= k <= static(x.shape[-1], "'top_k'"):
        raise ShapeError(f"'top_k' cannot take {k} of the {x.shape[-1]} elements of {x}")
    shape = (*x.shape[:-1], k)
    return TensorType(shape, x.dtype), TensorType(shape, i32)


REDUCE: tuple[Primitive, ...] = (
    _reduce("reduce_sum", "sum over axes; floats accumulate in f32 or wider"),
    _reduce("reduce_max", "largest over axes; NaN if any is"),
    _reduce("reduce_min", "smallest over axes; NaN if any is"),
    Primitive("argmax", 1, ("axis",), _argmax, "index of the first largest element, i32", "reduce"),
    Primitive(
        "top_k",
        1,
        ("k",),
        _top_k,
        "the k largest of the last axis, falling, and their indices; the lower index wins a tie",
        "index",
    ),
    Primitive("cumsum", 1, ("axis",), _cumsum, "running sum, the element itself included", "scan"),
)
