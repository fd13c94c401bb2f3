"""Primitives that only move data, and NumPy's basic indexing."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, cast

from poot_core import Dim, Shape, ShapeError, SymbolicDim, format_shape
from poot_graph_ir._functional._common import resolve_axis
from poot_graph_ir._location import model_location

if TYPE_CHECKING:
    from poot_graph_ir._tracer import Tracer

__all__ = [
    "concatenate",
    "index",
    "pad",
    "reshape",
    "slice_axis",
    "split",
    "transpose",
]


def reshape(x: Tracer, shape: Shape) -> Tracer:
    """Return the same elements in another shape; one extent may be -1."""
    if -1 in shape:
        shape = _fill_extent(x.shape, shape)
    return x if shape == x.shape else x.trace.emit("reshape", (x,), {"shape": shape})


def _fill_extent(old: Shape, new: Shape) -> Shape:
    """Return ``new`` with -1 replaced by what makes the volumes equal."""
    where = new.index(-1)
    rest = list(old)
    known = 1
    for position, dim in enumerate(new):
        if position == where:
            continue
        if isinstance(dim, SymbolicDim) and dim in rest:
            rest.remove(dim)
        elif isinstance(dim, int):
            known *= dim
    symbols = [dim for dim in rest if isinstance(dim, SymbolicDim)]
    total = prod(dim for dim in rest if isinstance(dim, int))
    missing: Dim | None = None
    if len(symbols) == 1 and total == known:
        missing = symbols[0]
    elif not symbols and known and total % known == 0:
        missing = total // known
    if missing is None:
        raise ShapeError(
            f"'reshape' cannot fill -1 in {format_shape(new)} from {format_shape(old)}, "
            f"at {model_location()}",
            location=model_location(),
        )
    return (*new[:where], missing, *new[where + 1 :])


def transpose(x: Tracer, axes: tuple[int, ...]) -> Tracer:
    """Return the axes in another order."""
    if axes == tuple(range(x.rank)):
        return x
    return x.trace.emit("transpose", (x,), {"permutation": axes})


def slice_axis(x: Tracer, axis: int, start: int, limit: int, stride: int = 1) -> Tracer:
    """Return ``start:limit:stride`` of one axis and all of the others."""
    axis = resolve_axis(x, axis)
    starts = tuple(start if i == axis else 0 for i in range(x.rank))
    limits = tuple(limit if i == axis else d for i, d in enumerate(x.shape))
    strides = tuple(stride if i == axis else 1 for i in range(x.rank))
    attributes: dict[str, Any] = {"starts": starts, "limits": limits, "strides": strides}
    return x.trace.emit("slice", (x,), attributes)


def split(x: Tracer, sizes: Sequence[int], axis: int = -1) -> tuple[Tracer, ...]:
    """Return consecutive pieces of one axis; the sizes must add up to its extent."""
    axis = resolve_axis(x, axis)
    if sum(sizes) != x.shape[axis]:
        raise ShapeError(
            f"'split' into {list(sizes)} does not add up to axis {axis} of {x.type}, "
            f"at {model_location()}",
            location=model_location(),
        )
    pieces: list[Tracer] = []
    start = 0
    for size in sizes:
        pieces.append(slice_axis(x, axis, start, start + size))
        start += size
    return tuple(pieces)


def index(x: Tracer, indices: tuple[int | slice | EllipsisType | None, ...]) -> Tracer:
    """Return basic NumPy indexing: integers, slices, one ``...`` and ``None``."""
    named = sum(1 for item in indices if item is not None and item is not ...)
    if named > x.rank:
        raise ShapeError(f"{named} indices for {x.type}, at {model_location()}")
    fill = (slice(None),) * (x.rank - named)
    if ... in indices:
        where = indices.index(...)
        items = (*indices[:where], *fill, *indices[where + 1 :])
    else:
        items = (*indices, *fill)
    starts: list[int] = []
    limits: list[Dim] = []
    strides: list[int] = []
    shape: list[Dim] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        size = x.shape[len(starts)]
        if item == slice(None):
            start, limit, stride = 0, size, 1
            shape.append(size)
        elif isinstance(size, SymbolicDim):
            raise ShapeError(f"cannot take {item} of the symbolic {size}, at {model_location()}")
        elif isinstance(item, slice):
            start, limit, stride = item.indices(size)
            if stride < 1:
                raise ShapeError(f"a stride must be positive, got {item}, at {model_location()}")
            limit = builtins.max(start, limit)
            shape.append(-(-(limit - start) // stride))
        else:
            position = cast("int", item)
            if not -size <= position < size:
                raise ShapeError(f"index {position} is outside of {x.type}, at {model_location()}")
            start = position % size
            limit, stride = start + 1, 1
        starts.append(start)
        limits.append(limit)
        strides.append(stride)
    result = x
    if tuple(limits) != x.shape or any(starts) or any(s != 1 for s in strides):
        attributes: dict[str, Any] = {
            "starts": tuple(starts),
            "limits": tuple(limits),
            "strides": tuple(strides),
        }
        result = x.trace.emit("slice", (x,), attributes)
    return reshape(result, tuple(shape))


def concatenate(parts: Sequence[Tracer], axis: int = -1) -> Tracer:
    """Return tensors end to end along an axis of static extent."""
    if len(parts) == 1:
        return parts[0]
    return parts[0].trace.emit("concatenate", parts, {"axis": resolve_axis(parts[0], axis)})


def pad(
    x: Tracer, low: tuple[int, ...], high: tuple[int, ...], value: float | int | bool = 0.0
) -> Tracer:
    """Return x with ``value`` around it, ``low`` before and ``high`` after each axis."""
    return x.trace.emit("pad", (x,), {"low": low, "high": high, "value": value})
