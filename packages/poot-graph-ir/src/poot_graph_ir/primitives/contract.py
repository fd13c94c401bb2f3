"""Contraction and the decoding of packed weights."""

from __future__ import annotations

from poot_core import DTypeError, ShapeError, f32
from poot_graph_ir._types import TensorType, is_packed
from poot_graph_ir.primitives._registry import Attributes, Primitive, Types, check_axis, dense

__all__ = ["CONTRACT"]


def _dot_general(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    a, b = types
    a_batch, b_batch = attributes["lhs_batch"], attributes["rhs_batch"]
    a_contract, b_contract = attributes["lhs_contract"], attributes["rhs_contract"]
    if dense(a) is not dense(b) or not dense(a).is_float:
        raise DTypeError(f"'dot_general' takes one float dtype, got {a} and {b}; convert one")
    for x, axes in ((a, (*a_batch, *a_contract)), (b, (*b_batch, *b_contract))):
        for axis in axes:
            check_axis(axis, x.shape)
        if len(set(axes)) != len(axes):
            raise ShapeError(f"'dot_general' names an axis of {x} twice: {axes}")
    if len(a_batch) != len(b_batch) or len(a_contract) != len(b_contract):
        raise ShapeError("'dot_general' takes as many axes of the left as of the right operand")
    pairs = zip((*a_batch, *a_contract), (*b_batch, *b_contract), strict=True)
    for left, right in pairs:
        if a.shape[left] != b.shape[right]:
            raise ShapeError(
                f"'dot_general' pairs axis {left} of {a} with axis {right} of {b}: "
                f"{a.shape[left]} is not {b.shape[right]}"
            )
    shape = (
        *(a.shape[axis] for axis in a_batch),
        *(d for i, d in enumerate(a.shape) if i not in {*a_batch, *a_contract}),
        *(d for i, d in enumerate(b.shape) if i not in {*b_batch, *b_contract}),
    )
    return (TensorType(shape, f32),)


def _dequantize(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    if not is_packed(x.dtype):
        raise DTypeError(f"'dequantize' takes a packed weight, got {x}; convert it instead")
    return (TensorType(x.shape, f32),)


CONTRACT: tuple[Primitive, ...] = (
    Primitive(
        "dot_general",
        2,
        ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"),
        _dot_general,
        "sum of products over the contracted axes, accumulated in and returned as f32; result axes "
        "are batch, free axes of the left, free axes of the right operand",
        "contract",
    ),
    Primitive("dequantize", 1, (), _dequantize, "f32 values of a packed weight", "unary"),
)
