"""Handles of traced tensors: what a model function computes with."""

from __future__ import annotations

from types import EllipsisType
from typing import TYPE_CHECKING, NoReturn, cast

from poot_core import DType, Shape, TraceError
from poot_graph_ir import _functional as functional
from poot_graph_ir._graph import Value
from poot_graph_ir._location import model_location
from poot_graph_ir._types import ElementType, TensorType

if TYPE_CHECKING:
    from poot_graph_ir._trace import Trace

__all__ = ["Scalar", "Tracer"]

Scalar = bool | int | float
Index = int | slice | EllipsisType | None


class Tracer:
    """A tensor that exists only once the graph runs; arithmetic on it records equations.

    Shapes broadcast as in NumPy, through recorded ``broadcast_in_dim`` equations. Dtypes are strict:
    two tensors must agree, and only a Python scalar takes the dtype of the tensor beside it.
    """

    __slots__ = ("trace", "value")

    def __init__(self, trace: Trace, value: Value) -> None:
        self.trace = trace
        self.value = value

    @property
    def type(self) -> TensorType:
        """Shape and element type."""
        return self.value.type

    @property
    def shape(self) -> Shape:
        """Extents in elements; symbolic ones are SymbolicDim."""
        return self.value.type.shape

    @property
    def dtype(self) -> ElementType:
        """Dense dtype or packed format."""
        return self.value.type.dtype

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.value.type.shape)

    def __repr__(self) -> str:
        return f"Tracer({self.value}: {self.type})"

    # --- arithmetic ---

    def __add__(self, other: Tracer | Scalar) -> Tracer:
        return functional.add(self, other)

    def __radd__(self, other: Scalar) -> Tracer:
        return functional.add(other, self)

    def __sub__(self, other: Tracer | Scalar) -> Tracer:
        return functional.sub(self, other)

    def __rsub__(self, other: Scalar) -> Tracer:
        return functional.sub(other, self)

    def __mul__(self, other: Tracer | Scalar) -> Tracer:
        return functional.mul(self, other)

    def __rmul__(self, other: Scalar) -> Tracer:
        return functional.mul(other, self)

    def __truediv__(self, other: Tracer | Scalar) -> Tracer:
        return functional.div(self, other)

    def __rtruediv__(self, other: Scalar) -> Tracer:
        return functional.div(other, self)

    def __pow__(self, other: Tracer | Scalar) -> Tracer:
        return functional.pow(self, other)

    def __neg__(self) -> Tracer:
        return functional.neg(self)

    def __abs__(self) -> Tracer:
        return functional.abs(self)

    def __and__(self, other: Tracer | Scalar) -> Tracer:
        return functional.logical_and(self, other)

    def __or__(self, other: Tracer | Scalar) -> Tracer:
        return functional.logical_or(self, other)

    def __invert__(self) -> Tracer:
        return functional.logical_not(self)

    def __lt__(self, other: Tracer | Scalar) -> Tracer:
        return functional.less(self, other)

    def __le__(self, other: Tracer | Scalar) -> Tracer:
        return functional.less_equal(self, other)

    def __gt__(self, other: Tracer | Scalar) -> Tracer:
        return functional.greater(self, other)

    def __ge__(self, other: Tracer | Scalar) -> Tracer:
        return functional.greater_equal(self, other)

    def __eq__(self, other: object) -> Tracer:  # pyright: ignore[reportIncompatibleMethodOverride] -- elementwise, as in NumPy
        return functional.equal(self, cast("Tracer | Scalar", other))

    def __ne__(self, other: object) -> Tracer:  # pyright: ignore[reportIncompatibleMethodOverride] -- elementwise, as in NumPy
        return functional.not_equal(self, cast("Tracer | Scalar", other))

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tracer:
        return functional.index(self, index if isinstance(index, tuple) else (index,))

    # --- methods ---

    def astype(self, dtype: DType) -> Tracer:
        """Return this converted to ``dtype``; itself if it has that already."""
        return functional.convert(self, dtype)

    def reshape(self, *shape: object) -> Tracer:
        """Return the same elements in another shape; one extent may be -1."""
        return functional.reshape(self, functional.as_shape(shape))

    def transpose(self, *axes: int) -> Tracer:
        """Return the axes in the order given, all reversed when none is."""
        return functional.transpose(self, axes or tuple(range(self.rank))[::-1])

    def sum(self, axis: int | tuple[int, ...], *, keepdims: bool = False) -> Tracer:
        """Return the sum over axes."""
        return functional.reduce_sum(self, axis, keepdims=keepdims)

    def max(self, axis: int | tuple[int, ...], *, keepdims: bool = False) -> Tracer:
        """Return the largest over axes."""
        return functional.reduce_max(self, axis, keepdims=keepdims)

    def min(self, axis: int | tuple[int, ...], *, keepdims: bool = False) -> Tracer:
        """Return the smallest over axes."""
        return functional.reduce_min(self, axis, keepdims=keepdims)

    def mean(self, axis: int | tuple[int, ...], *, keepdims: bool = False) -> Tracer:
        """Return the mean over axes of static extent."""
        return functional.mean(self, axis, keepdims=keepdims)

    # --- what a traced tensor cannot do ---

    def _refuse(self, use: str) -> NoReturn:
        location = model_location()
        raise TraceError(
            f"a traced tensor was used as {use}: {self} has no value until the graph runs, "
            f"at {location}; use ops.select for a choice, or compute it from the config",
            location=location,
        )

    def __bool__(self) -> NoReturn:
        self._refuse("a truth value")

    def __int__(self) -> NoReturn:
        self._refuse("an integer")

    def __index__(self) -> NoReturn:
        self._refuse("an index")

    def __float__(self) -> NoReturn:
        self._refuse("a float")

    def __len__(self) -> NoReturn:
        self._refuse("a sequence; write x.shape[0]")

    def __iter__(self) -> NoReturn:
        self._refuse("an iterable; index it or use ops.split")

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        self._refuse("a NumPy array")
