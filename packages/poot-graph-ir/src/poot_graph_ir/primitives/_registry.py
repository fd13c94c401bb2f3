"""The record of a primitive and the checks that most rules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from poot_core import Dim, DType, DTypeError, Shape, ShapeError, SymbolicDim, format_shape
from poot_graph_ir._types import TensorType, is_packed

__all__ = ["Attributes", "Primitive", "Types", "check_axis", "dense", "same_volume", "static"]

Types = Sequence[TensorType]
Attributes = Mapping[str, Any]
Rule = Callable[[Types, Attributes], tuple[TensorType, ...]]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive: what it means is what ``poot-eval`` computes for it.

    Attributes:
        name: As it stands in ``Equation.op``.
        num_inputs: Operands, or None for one and more.
        attributes: Names of the attributes, all of them required.
        rule: Types of the results from the types of the operands; raises ShapeError or DTypeError.
        doc: One line of meaning.
        category: ``unary``, ``binary``, ``compare``, ``view``, ``reduce``, ``create``, ``contract``,
            ``index`` or ``scan``; a planner groups by it.
    """

    name: str
    num_inputs: int | None
    attributes: tuple[str, ...]
    rule: Rule
    doc: str
    category: str

    def infer(self, types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        """Return the types of the results.

        Raises:
            ShapeError: If the shapes do not fit.
            DTypeError: If the element types do not fit.
        """
        if self.num_inputs is not None and len(types) != self.num_inputs:
            raise ShapeError(f"{self.name!r} takes {self.num_inputs} operands, got {len(types)}")
        if set(attributes) != set(self.attributes):
            raise DTypeError(
                f"{self.name!r} has the attributes {sorted(self.attributes)}, "
                f"got {sorted(attributes)}"
            )
        return self.rule(types, attributes)


def dense(tensor: TensorType) -> DType:
    """Return the dtype of a tensor that must not be packed."""
    if is_packed(tensor.dtype):
        raise DTypeError(f"{tensor} is packed; dequantize it first")
    assert isinstance(tensor.dtype, DType)
    return tensor.dtype


def check_axis(axis: int, shape: Shape) -> None:
    """Refuse an axis outside of ``shape``; primitives take no negative axes."""
    if not 0 <= axis < len(shape):
        raise ShapeError(f"axis {axis} is outside of shape {format_shape(shape)}")


def static(dim: Dim, what: str) -> int:
    """Return a dimension that must be a number."""
    if isinstance(dim, SymbolicDim):
        raise ShapeError(f"{what} needs a static extent, got the symbolic {dim}")
    return dim


def same_volume(a: Shape, b: Shape) -> bool:
    """Return whether two shapes hold the same number of elements for every binding.

    >>> from poot_core import T
    >>> same_volume((T, 6), (2, T, 3)), same_volume((T, 6), (6,))
    (True, False)
    """
    return _volume(a) == _volume(b)


def _volume(shape: Shape) -> tuple[int, list[str]]:
    numbers = prod(dim for dim in shape if isinstance(dim, int))
    return numbers, sorted(dim.name for dim in shape if isinstance(dim, SymbolicDim))
