"""Weights as a plan names them: matrices that are re-laid for kernels, vectors and constants."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Constant", "Matrix", "MatrixPart", "Vector"]


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """Some rows of a stored tensor.

    Attributes:
        name: Checkpoint name.
        first_row: First row taken.
        num_rows: Rows taken.
        transposed: Whether the tensor is stored (K, N) rather than (N, K).
    """

    name: str
    first_row: int
    num_rows: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix (N, K) in device memory; two that are equal are laid out once.

    Attributes:
        source: Stored type of all parts: a dtype's or a packed format's name.
        k: Elements of a row.
        parts: Stacked along N. Of a gated pair there are two of equal size, whose groups of rows
            alternate.
        gated: Whether this is a gated pair.
    """

    source: str
    k: int
    parts: tuple[MatrixPart, ...]
    gated: bool = False

    @property
    def n(self) -> int:
        """Rows, of both halves of a gated pair together."""
        return sum(part.num_rows for part in self.parts)

    def __str__(self) -> str:
        names = "+".join(part.name for part in self.parts)
        return f"{names}:{self.source}[{self.n}, {self.k}]"


@dataclass(frozen=True, slots=True)
class Vector:
    """A small tensor that kernels read as it is.

    Attributes:
        name: Checkpoint name.
        source: Stored dtype's name.
        dtype: Name of the dtype that kernels read.
        shape: Extents.
    """

    name: str
    source: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """An array that the graph itself holds.

    Attributes:
        dtype: Name of the element type.
        shape: Extents.
        data: Bytes in row-major order.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes
