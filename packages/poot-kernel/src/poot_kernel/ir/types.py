"""Types of kernel values: scalars, small vectors, tiles, arrays, shared memory, tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from poot_core import DType, boolean, i64
from poot_kernel.ir.sizes import Size

__all__ = [
    "BOOLEAN",
    "INDEX",
    "Access",
    "ArrayType",
    "MemoryType",
    "ScalarType",
    "SharedType",
    "Space",
    "TileType",
    "TokenType",
    "Type",
    "VectorType",
]

Space = Literal["private", "shared", "accumulator"]
Access = Literal["r", "w", "rw"]


@dataclass(frozen=True, slots=True)
class ScalarType:
    """One element; at lane level one for each invocation."""

    dtype: DType

    def __str__(self) -> str:
        return self.dtype.name


@dataclass(frozen=True, slots=True)
class VectorType:
    """``count`` elements held by each invocation; what a wide load returns."""

    dtype: DType
    count: int

    def __str__(self) -> str:
        return f"vec<{self.dtype.name}, {self.count}>"


@dataclass(frozen=True, slots=True)
class TileType:
    """A block of elements owned by the workgroup; how it lies in registers is the target's choice.

    Attributes:
        shape: Static extents.
        dtype: Element type.
        space: ``private`` registers, ``shared`` memory, or an ``accumulator`` of ``mma``.
    """

    shape: tuple[int, ...]
    dtype: DType
    space: Space = "private"

    @property
    def size(self) -> int:
        """Elements in all."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"tile<{self.dtype.name}, {'x'.join(map(str, self.shape))}, {self.space}>"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A kernel argument in global memory.

    Attributes:
        dtype: Element type; ``u8`` of rank 1 is also a raw byte buffer, from which loads and copies
            read any dtype at a byte offset.
        shape: Extents; None where unknown (only ever the first).
        strides: Strides in elements; None is row-major.
        access: Whether the kernel reads, writes or does both.
        alignment: Bytes by which the base address is aligned.
    """

    dtype: DType
    shape: tuple[Size | None, ...]
    strides: tuple[Size, ...] | None = None
    access: Access = "r"
    alignment: int = 1

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        strides = "" if self.strides is None else f", strides {_sizes(self.strides)}"
        return (
            f"array<{self.dtype.name}, {_sizes(self.shape)}{strides}, {self.access}, "
            f"{self.alignment}>"
        )


@dataclass(frozen=True, slots=True)
class SharedType:
    """Memory shared by a workgroup, row-major; the per-thread scratch on the host.

    Extents may be launch-time sizes on the host alone: GPU targets refuse them.
    """

    dtype: DType
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"shared<{self.dtype.name}, {_sizes(self.shape)}>"


@dataclass(frozen=True, slots=True)
class TokenType:
    """An asynchronous copy in flight; ``wait`` turns it into its tile."""

    tile: TileType

    def __str__(self) -> str:
        return f"token<{self.tile}>"


Type = ScalarType | VectorType | TileType | ArrayType | SharedType | TokenType
MemoryType = ArrayType | SharedType

BOOLEAN = ScalarType(boolean)
INDEX = ScalarType(i64)


def _sizes(sizes: tuple[Size | None, ...]) -> str:
    inner = ", ".join('"?"' if size is None else f'"{size}"' for size in sizes)
    return f"({inner})"
