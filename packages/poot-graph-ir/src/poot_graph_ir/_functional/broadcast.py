"""Broadcasting by NumPy's rule."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from poot_core import Dim, Shape, ShapeError, format_shape
from poot_graph_ir._location import model_location

if TYPE_CHECKING:
    from poot_graph_ir._tracer import Tracer

__all__ = ["broadcast_in_dim", "broadcast_shapes", "broadcast_to", "broadcast_together"]


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """Return the shape that two shapes broadcast to by NumPy's rule.

    Raises:
        ShapeError: If an axis has two extents of which none is 1.

    >>> from poot_core import T
    >>> broadcast_shapes((T, 1, 4), (8, 4))
    (T, 8, 4)
    """
    rank = builtins.max(len(a), len(b))
    padded = ((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b)
    result: list[Dim] = []
    for x, y in zip(*padded, strict=True):
        if x != y and x != 1 and y != 1:
            raise ShapeError(
                f"{format_shape(a)} and {format_shape(b)} do not broadcast: "
                f"{x} is not {y}, at {model_location()}",
                location=model_location(),
            )
        result.append(y if x == 1 else x)
    return tuple(result)


def broadcast_to(x: Tracer, shape: Shape) -> Tracer:
    """Return x repeated to ``shape`` by NumPy's rule; x itself if it has that shape."""
    if x.shape == shape:
        return x
    dimensions = tuple(range(len(shape) - x.rank, len(shape)))
    return broadcast_in_dim(x, shape, dimensions)


def broadcast_together(a: Tracer, b: Tracer) -> tuple[Tracer, Tracer]:
    """Return two tensors repeated to their common shape."""
    shape = broadcast_shapes(a.shape, b.shape)
    return broadcast_to(a, shape), broadcast_to(b, shape)


def broadcast_in_dim(x: Tracer, shape: Shape, dimensions: tuple[int, ...]) -> Tracer:
    """Return x repeated to ``shape``: axis i of x becomes axis ``dimensions[i]``."""
    attributes = {"shape": shape, "dimensions": dimensions}
    return x.trace.emit("broadcast_in_dim", (x,), attributes)
