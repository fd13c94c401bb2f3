"""Data-dependent reads and writes: gather and scatter."""

from __future__ import annotations

from poot_core import DTypeError, ShapeError, format_shape, i32
from poot_graph_ir._types import TensorType, is_packed
from poot_graph_ir.primitives._registry import (
    Attributes,
    Primitive,
    Types,
    check_axis,
    dense,
)

__all__ = ["INDEX"]


def _gather(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    operand, indices = types
    axis: int = attributes["axis"]
    check_axis(axis, operand.shape)
    if dense(indices) is not i32:
        raise DTypeError(f"'gather' takes i32 indices, got {indices}")
    if is_packed(operand.dtype) and axis == operand.rank - 1:
        raise ShapeError(f"'gather' from the packed {operand} must keep its last axis")
    if operand.shape[axis] == 0:
        raise ShapeError(f"'gather' has nothing to read along axis {axis} of {operand}")
    shape = (*operand.shape[:axis], *indices.shape, *operand.shape[axis + 1 :])
    return (TensorType(shape, operand.dtype),)


def _scatter(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    operand, indices, updates = types
    leading: int = attributes["leading"]
    if dense(indices) is not i32 or indices.rank != 1:
        raise DTypeError(f"'scatter' takes i32 indices of rank 1, got {indices}")
    if dense(operand) is not dense(updates):
        raise DTypeError(f"'scatter' takes updates of the operand's dtype: {operand}, {updates}")
    if not 1 <= leading <= operand.rank:
        raise ShapeError(f"'scatter' cannot index {leading} leading axes of {operand}")
    expected = (*indices.shape, *operand.shape[leading:])
    if updates.shape != expected:
        raise ShapeError(
            f"'scatter' into {operand} at {indices} takes updates of shape "
            f"{format_shape(expected)}, got {updates}"
        )
    return (operand,)


INDEX: tuple[Primitive, ...] = (
    Primitive(
        "gather",
        2,
        ("axis",),
        _gather,
        "slices along axis at the indices, whose axes replace it; an index out of range is clamped",
        "index",
    ),
    Primitive(
        "scatter",
        3,
        ("leading",),
        _scatter,
        "the operand (donated) with rows replaced; an index counts rows over the leading axes in "
        "row-major order, one out of range writes nothing, the last of equal ones wins",
        "index",
    ),
)
