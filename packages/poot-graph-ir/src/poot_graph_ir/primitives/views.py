"""Primitives that only move data: broadcast, reshape, transpose, slice, concatenate, pad."""

from __future__ import annotations

from poot_core import Dim, DTypeError, Shape, ShapeError, format_shape
from poot_graph_ir._types import TensorType, is_packed
from poot_graph_ir.primitives._registry import (
    Attributes,
    Primitive,
    Types,
    check_axis,
    dense,
    same_volume,
    static,
)

__all__ = ["VIEWS"]


def _broadcast_in_dim(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    shape: Shape = attributes["shape"]
    dimensions: tuple[int, ...] = attributes["dimensions"]
    dense(x)
    if len(dimensions) != x.rank or list(dimensions) != sorted(set(dimensions)):
        raise ShapeError(f"'broadcast_in_dim' of {x} takes {x.rank} rising axes, got {dimensions}")
    for size, axis in zip(x.shape, dimensions, strict=True):
        check_axis(axis, shape)
        if size not in {1, shape[axis]}:
            raise ShapeError(
                f"'broadcast_in_dim' cannot spread {format_shape(x.shape)} over "
                f"{format_shape(shape)} along {dimensions}"
            )
    return (TensorType(shape, x.dtype),)


def _reshape(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    shape: Shape = attributes["shape"]
    if not same_volume(x.shape, shape):
        raise ShapeError(
            f"'reshape' cannot make {format_shape(shape)} of {format_shape(x.shape)}: "
            "the numbers of elements differ"
        )
    if is_packed(x.dtype) and shape[-1:] != x.shape[-1:]:
        raise ShapeError(f"'reshape' of the packed {x} must keep its last axis")
    return (TensorType(shape, x.dtype),)


def _transpose(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    permutation: tuple[int, ...] = attributes["permutation"]
    if sorted(permutation) != list(range(x.rank)):
        raise ShapeError(f"'transpose' of {x} takes each axis once, got {permutation}")
    if is_packed(x.dtype) and permutation[-1] != x.rank - 1:
        raise ShapeError(f"'transpose' of the packed {x} must keep its last axis")
    return (TensorType(tuple(x.shape[axis] for axis in permutation), x.dtype),)


def _slice(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    starts, limits, strides = attributes["starts"], attributes["limits"], attributes["strides"]
    if not len(starts) == len(limits) == len(strides) == x.rank:
        raise ShapeError(f"'slice' of {x} takes a start, a limit and a stride for each axis")
    shape: list[Dim] = []
    for axis, (size, start, limit, stride) in enumerate(
        zip(x.shape, starts, limits, strides, strict=True)
    ):
        if start == 0 and limit == size and stride == 1:
            shape.append(size)
            continue
        if is_packed(x.dtype) and axis == x.rank - 1:
            raise ShapeError(f"'slice' of the packed {x} must keep its last axis whole")
        size = static(size, f"'slice' along axis {axis}")
        if not (0 <= start <= limit <= size and stride >= 1):
            raise ShapeError(
                f"'slice' {start}:{limit}:{stride} is outside of axis {axis} of {x} (extent {size})"
            )
        shape.append(-(-(limit - start) // stride))
    return (TensorType(tuple(shape), x.dtype),)


def _concatenate(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    axis: int = attributes["axis"]
    first = types[0]
    check_axis(axis, first.shape)
    total = 0
    for x in types:
        if x.dtype != first.dtype:
            raise DTypeError(f"'concatenate' takes one dtype, got {first} and {x}")
        if is_packed(x.dtype) and axis == x.rank - 1:
            raise ShapeError(f"'concatenate' of the packed {x} must keep its last axis")
        if x.rank != first.rank or any(
            a != b for i, (a, b) in enumerate(zip(x.shape, first.shape, strict=False)) if i != axis
        ):
            raise ShapeError(f"'concatenate' along {axis} takes equal other axes: {first} and {x}")
        total += static(x.shape[axis], "'concatenate'")
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return (TensorType(shape, first.dtype),)


def _pad(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    low, high = attributes["low"], attributes["high"]
    dense(x)
    if not len(low) == len(high) == x.rank or min((*low, *high), default=0) < 0:
        raise ShapeError(f"'pad' of {x} takes two counts >= 0 for each axis, got {low} and {high}")
    shape = tuple(
        size if before == after == 0 else before + static(size, "'pad'") + after
        for size, before, after in zip(x.shape, low, high, strict=True)
    )
    return (TensorType(shape, x.dtype),)


VIEWS: tuple[Primitive, ...] = (
    Primitive(
        "broadcast_in_dim",
        1,
        ("shape", "dimensions"),
        _broadcast_in_dim,
        "operand axis i becomes result axis dimensions[i]; extent 1 is repeated",
        "view",
    ),
    Primitive("reshape", 1, ("shape",), _reshape, "same elements in row-major order", "view"),
    Primitive(
        "transpose", 1, ("permutation",), _transpose, "result axis i is permutation[i]", "view"
    ),
    Primitive(
        "slice", 1, ("starts", "limits", "strides"), _slice, "start:limit:stride per axis", "view"
    ),
    Primitive("concatenate", None, ("axis",), _concatenate, "operands end to end", "view"),
    Primitive("pad", 1, ("low", "high", "value"), _pad, "value around the operand", "view"),
)
