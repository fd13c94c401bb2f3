"""Axes and shapes as callers write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from poot_core import Dim, Shape, ShapeError, SymbolicDim
from poot_graph_ir._location import model_location

if TYPE_CHECKING:
    from poot_graph_ir._tracer import Tracer

__all__ = ["Axes", "as_shape", "resolve_axis"]

Axes = int | tuple[int, ...]


def resolve_axis(x: Tracer, axis: int) -> int:
    """Return an axis counted from the front.

    Raises:
        ShapeError: If x has no such axis.
    """
    if not -x.rank <= axis < x.rank:
        raise ShapeError(f"axis {axis} is outside of {x.type}, at {model_location()}")
    return axis % x.rank


def as_shape(parts: Sequence[object]) -> Shape:
    """Return a shape from integers and symbolic dimensions, or from one tuple of them."""
    if len(parts) == 1 and isinstance(parts[0], tuple | list):
        parts = cast("Sequence[object]", parts[0])
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | SymbolicDim):
            raise ShapeError(f"{part!r} is no extent of a shape, at {model_location()}")
    return tuple(cast("Sequence[Dim]", parts))
