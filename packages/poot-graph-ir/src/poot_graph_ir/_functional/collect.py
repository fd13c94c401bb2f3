"""Reductions, scans, contraction, gather and scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poot_core import ShapeError, SymbolicDim
from poot_graph_ir._functional._common import Axes, resolve_axis
from poot_graph_ir._functional.elementwise import mul
from poot_graph_ir._functional.views import reshape
from poot_graph_ir._location import model_location

if TYPE_CHECKING:
    from poot_graph_ir._tracer import Tracer

__all__ = [
    "argmax",
    "cumsum",
    "dot_general",
    "gather",
    "mean",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "scatter",
    "top_k",
]


def _reduce(op: str, x: Tracer, axis: Axes, keepdims: bool) -> Tracer:
    axes = (axis,) if isinstance(axis, int) else axis
    axes = tuple(sorted(resolve_axis(x, a) for a in axes))
    result = x.trace.emit(op, (x,), {"axes": axes})
    if keepdims:
        shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
        result = reshape(result, shape)
    return result


def reduce_sum(x: Tracer, axis: Axes, *, keepdims: bool = False) -> Tracer:
    """Return the sum over axes."""
    return _reduce("reduce_sum", x, axis, keepdims)


def reduce_max(x: Tracer, axis: Axes, *, keepdims: bool = False) -> Tracer:
    """Return the largest over axes."""
    return _reduce("reduce_max", x, axis, keepdims)


def reduce_min(x: Tracer, axis: Axes, *, keepdims: bool = False) -> Tracer:
    """Return the smallest over axes."""
    return _reduce("reduce_min", x, axis, keepdims)


def mean(x: Tracer, axis: Axes, *, keepdims: bool = False) -> Tracer:
    """Return the mean over axes of static extent: the sum times 1/n."""
    axes = (axis,) if isinstance(axis, int) else axis
    count = 1
    for a in axes:
        extent = x.shape[resolve_axis(x, a)]
        if isinstance(extent, SymbolicDim):
            raise ShapeError(f"'mean' over the symbolic {extent}, at {model_location()}")
        count *= extent
    return mul(reduce_sum(x, axis, keepdims=keepdims), 1.0 / count)


def argmax(x: Tracer, axis: int = -1) -> Tracer:
    """Return the i32 index of the first largest element along an axis."""
    return x.trace.emit("argmax", (x,), {"axis": resolve_axis(x, axis)})


def top_k(x: Tracer, k: int) -> tuple[Tracer, Tracer]:
    """Return the k largest of the last axis, falling, and their i32 indices."""
    values, indices = x.trace.emit_many("top_k", (x,), {"k": k})
    return values, indices


def cumsum(x: Tracer, axis: int = -1) -> Tracer:
    """Return the running sum along an axis, the element itself included."""
    return x.trace.emit("cumsum", (x,), {"axis": resolve_axis(x, axis)})


def dot_general(
    a: Tracer,
    b: Tracer,
    *,
    contract: tuple[Axes, Axes],
    batch: tuple[Axes, Axes] = ((), ()),
) -> Tracer:
    """Return the sum of products over paired axes, in f32.

    Args:
        a: Left operand.
        b: Right operand, of the same float dtype.
        contract: Axes of each that are summed over, in pairs.
        batch: Axes of each that are matched and kept, in pairs.

    Returns:
        Batch axes, free axes of ``a``, free axes of ``b``.
    """

    def axes(x: Tracer, given: Axes) -> tuple[int, ...]:
        return tuple(
            resolve_axis(x, axis) for axis in ((given,) if isinstance(given, int) else given)
        )

    attributes = {
        "lhs_batch": axes(a, batch[0]),
        "rhs_batch": axes(b, batch[1]),
        "lhs_contract": axes(a, contract[0]),
        "rhs_contract": axes(b, contract[1]),
    }
    return a.trace.emit("dot_general", (a, b), attributes)


def gather(x: Tracer, indices: Tracer, axis: int = 0) -> Tracer:
    """Return slices of x along ``axis`` at i32 indices, whose axes take its place.

    An index out of range reads the nearest slice (devices flag it in the step's status word).
    """
    return x.trace.emit("gather", (x, indices), {"axis": resolve_axis(x, axis)})


def scatter(x: Tracer, indices: Tracer, updates: Tracer, *, leading: int = 1) -> Tracer:
    """Return x, which is given up, with rows replaced.

    Args:
        x: State to change.
        indices: (N,) i32 row numbers over the first ``leading`` axes in row-major order; one out of
            range (such as -1) writes nothing, the last of equal ones wins.
        updates: (N, *x.shape[leading:]) of the dtype of x.
        leading: Axes of x that a row number counts over.
    """
    return x.trace.emit("scatter", (x, indices, updates), {"leading": leading})
