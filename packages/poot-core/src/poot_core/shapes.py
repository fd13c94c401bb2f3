"""Shapes: tuples of integers and of the few symbolic dimensions that a step has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Dim", "L", "R", "Shape", "SymbolicDim", "T", "bind_shape", "format_shape"]


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """A dimension known only at run time; two are the same when their names are."""

    name: str

    def __repr__(self) -> str:
        return self.name


Dim = int | SymbolicDim
Shape = tuple[Dim, ...]

T = SymbolicDim("T")
"""Tokens in a step."""
R = SymbolicDim("R")
"""Sequences (rows) in a step."""
L = SymbolicDim("L")
"""Positions of a step whose logits are wanted."""


def bind_shape(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return ``shape`` with each symbolic dimension replaced by its size.

    Raises:
        KeyError: If a symbolic dimension has no size.

    >>> bind_shape((T, 64), {"T": 3})
    (3, 64)
    """
    return tuple(dim if isinstance(dim, int) else sizes[dim.name] for dim in shape)


def format_shape(shape: Shape) -> str:
    """Return the shape as printed IR shows it.

    >>> format_shape((T, 64))
    '[T, 64]'
    """
    return "[" + ", ".join(str(dim) for dim in shape) + "]"
