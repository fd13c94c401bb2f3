"""The primitives as functions over tracers, with NumPy broadcasting and Python scalars."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, cast

from poot_core import Dim, DType, DTypeError, Shape, ShapeError, SymbolicDim, format_shape
from poot_graph_ir._location import model_location
from poot_graph_ir._types import is_packed

if TYPE_CHECKING:
    from poot_graph_ir._tracer import Scalar, Tracer

Axes = int | tuple[int, ...]


# --- elementwise ---


def _unary(op: str, x: Tracer) -> Tracer:
    return x.trace.emit(op, (x,))


def neg(x: Tracer) -> Tracer:
    """Return -x."""
    return _unary("neg", x)


def abs(x: Tracer) -> Tracer:
    """Return the magnitude of x."""
    return _unary("abs", x)


def sign(x: Tracer) -> Tracer:
    """Return -1, 0 or 1."""
    return _unary("sign", x)


def exp(x: Tracer) -> Tracer:
    """Return e to the x."""
    return _unary("exp", x)


def log(x: Tracer) -> Tracer:
    """Return the natural logarithm."""
    return _unary("log", x)


def sqrt(x: Tracer) -> Tracer:
    """Return the square root."""
    return _unary("sqrt", x)


def rsqrt(x: Tracer) -> Tracer:
    """Return one over the square root."""
    return _unary("rsqrt", x)


def sin(x: Tracer) -> Tracer:
    """Return the sine; x in radians."""
    return _unary("sin", x)


def cos(x: Tracer) -> Tracer:
    """Return the cosine; x in radians."""
    return _unary("cos", x)


def tanh(x: Tracer) -> Tracer:
    """Return the hyperbolic tangent."""
    return _unary("tanh", x)


def erf(x: Tracer) -> Tracer:
    """Return the error function."""
    return _unary("erf", x)


def floor(x: Tracer) -> Tracer:
    """Return the largest integer not above x."""
    return _unary("floor", x)


def logical_not(x: Tracer) -> Tracer:
    """Return not x."""
    return _unary("logical_not", x)


def _binary(op: str, a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    if isinstance(a, bool | int | float):
        b = _tensor(b)
        a = _lift(op, a, b)
    elif isinstance(b, bool | int | float):
        b = _lift(op, b, a)
    elif a.shape != b.shape:
        a, b = broadcast_together(a, b)
    return a.trace.emit(op, (a, b))


def _tensor(x: Tracer | Scalar) -> Tracer:
    if isinstance(x, bool | int | float):
        raise DTypeError(f"one operand must be a tensor, got {x!r} at {model_location()}")
    return x


def _lift(op: str, scalar: Scalar, like: Tracer) -> Tracer:
    """Return a Python scalar as a tensor of the type of the one beside it."""
    dtype = like.dtype
    if is_packed(dtype):
        raise DTypeError(f"{op!r} got the packed {like}; dequantize it, at {model_location()}")
    assert isinstance(dtype, DType)
    allowed = {"float": (int, float), "int": (int,), "uint": (int,), "bool": (bool,)}[dtype.kind]
    if type(scalar) not in allowed:
        raise DTypeError(
            f"{op!r} got the scalar {scalar!r} beside a tensor of {dtype}; scalars take the "
            f"tensor's dtype, so convert the tensor first, at {model_location()}",
            location=model_location(),
        )
    return like.trace.full(like.shape, scalar, dtype)


def add(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a + b."""
    return _binary("add", a, b)


def sub(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a - b."""
    return _binary("sub", a, b)


def mul(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a * b."""
    return _binary("mul", a, b)


def div(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a / b; floats alone."""
    return _binary("div", a, b)


def pow(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a to the b; floats alone."""
    return _binary("pow", a, b)


def maximum(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return the larger of each pair."""
    return _binary("maximum", a, b)


def minimum(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return the smaller of each pair."""
    return _binary("minimum", a, b)


def logical_and(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a and b."""
    return _binary("logical_and", a, b)


def logical_or(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a or b."""
    return _binary("logical_or", a, b)


def equal(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a == b as booleans."""
    return _binary("equal", a, b)


def not_equal(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a != b as booleans."""
    return _binary("not_equal", a, b)


def less(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a < b as booleans."""
    return _binary("less", a, b)


def less_equal(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a <= b as booleans."""
    return _binary("less_equal", a, b)


def greater(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a > b as booleans."""
    return _binary("greater", a, b)


def greater_equal(a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a >= b as booleans."""
    return _binary("greater_equal", a, b)


def select(predicate: Tracer, a: Tracer | Scalar, b: Tracer | Scalar) -> Tracer:
    """Return a where the predicate holds, else b; all three broadcast together."""
    if isinstance(a, bool | int | float):
        b = _tensor(b)
        a = _lift("select", a, b)
    elif isinstance(b, bool | int | float):
        b = _lift("select", b, a)
    shape = broadcast_shapes(predicate.shape, broadcast_shapes(a.shape, b.shape))
    operands = [broadcast_to(x, shape) for x in (predicate, a, b)]
    return predicate.trace.emit("select", operands)


def convert(x: Tracer, dtype: DType) -> Tracer:
    """Return x in another dtype; x itself if it has that already."""
    return x if x.dtype is dtype else x.trace.emit("convert", (x,), {"dtype": dtype})


def dequantize(x: Tracer) -> Tracer:
    """Return the f32 values of a packed weight."""
    return x.trace.emit("dequantize", (x,))


def to_f32(x: Tracer) -> Tracer:
    """Return a weight, dense or packed, as f32."""
    from poot_core import f32

    return dequantize(x) if is_packed(x.dtype) else convert(x, f32)


# --- views ---


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


def as_shape(parts: Sequence[object]) -> Shape:
    """Return a shape from integers and symbolic dimensions, or from one tuple of them."""
    if len(parts) == 1 and isinstance(parts[0], tuple | list):
        parts = cast("Sequence[object]", parts[0])
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | SymbolicDim):
            raise ShapeError(f"{part!r} is no extent of a shape, at {model_location()}")
    return tuple(cast("Sequence[Dim]", parts))


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
    axis = _axis(x, axis)
    starts = tuple(start if i == axis else 0 for i in range(x.rank))
    limits = tuple(limit if i == axis else d for i, d in enumerate(x.shape))
    strides = tuple(stride if i == axis else 1 for i in range(x.rank))
    attributes: dict[str, Any] = {"starts": starts, "limits": limits, "strides": strides}
    return x.trace.emit("slice", (x,), attributes)


def split(x: Tracer, sizes: Sequence[int], axis: int = -1) -> tuple[Tracer, ...]:
    """Return consecutive pieces of one axis; the sizes must add up to its extent."""
    axis = _axis(x, axis)
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
    return parts[0].trace.emit("concatenate", parts, {"axis": _axis(parts[0], axis)})


def pad(
    x: Tracer, low: tuple[int, ...], high: tuple[int, ...], value: float | int | bool = 0.0
) -> Tracer:
    """Return x with ``value`` around it, ``low`` before and ``high`` after each axis."""
    return x.trace.emit("pad", (x,), {"low": low, "high": high, "value": value})


# --- reductions, scans, contraction, indexing ---


def _axis(x: Tracer, axis: int) -> int:
    if not -x.rank <= axis < x.rank:
        raise ShapeError(f"axis {axis} is outside of {x.type}, at {model_location()}")
    return axis % x.rank


def _reduce(op: str, x: Tracer, axis: Axes, keepdims: bool) -> Tracer:
    axes = (axis,) if isinstance(axis, int) else axis
    axes = tuple(sorted(_axis(x, a) for a in axes))
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
        extent = x.shape[_axis(x, a)]
        if isinstance(extent, SymbolicDim):
            raise ShapeError(f"'mean' over the symbolic {extent}, at {model_location()}")
        count *= extent
    return reduce_sum(x, axis, keepdims=keepdims) * (1.0 / count)


def argmax(x: Tracer, axis: int = -1) -> Tracer:
    """Return the i32 index of the first largest element along an axis."""
    return x.trace.emit("argmax", (x,), {"axis": _axis(x, axis)})


def top_k(x: Tracer, k: int) -> tuple[Tracer, Tracer]:
    """Return the k largest of the last axis, falling, and their i32 indices."""
    values, indices = x.trace.emit_many("top_k", (x,), {"k": k})
    return values, indices


def cumsum(x: Tracer, axis: int = -1) -> Tracer:
    """Return the running sum along an axis, the element itself included."""
    return x.trace.emit("cumsum", (x,), {"axis": _axis(x, axis)})


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
        return tuple(_axis(x, axis) for axis in ((given,) if isinstance(given, int) else given))

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
    return x.trace.emit("gather", (x, indices), {"axis": _axis(x, axis)})


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
