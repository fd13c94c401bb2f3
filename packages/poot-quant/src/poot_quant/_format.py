"""The descriptor of a packed weight format and the affine form that every format unpacks to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Field", "QuantFormat", "Role", "Unpacked"]

Bytes = NDArray[np.uint8]


class Role(Enum):
    """What a field of a block holds."""

    SCALE = "scale"
    """The block's scale: f16, e8m0 or unsigned e4m3, by format."""
    MIN = "min"
    """The block's offset, or the scale of its group offsets: f16."""
    GROUP_SCALES = "group_scales"
    """Small integers that scale the groups of a block (and their offsets, where it has them)."""
    CODES = "codes"
    """Low bits of the codes, or indices into a codebook."""
    HIGH_BITS = "high_bits"
    """High bits of the codes or of the grid indices."""
    SIGNS = "signs"
    """Sign bits, one per element."""
    GRID_INDEX = "grid_index"
    """Low bits of the indices into a table of vectors."""


@dataclass(frozen=True, slots=True)
class Field:
    """One run of bytes in a block.

    Attributes:
        name: Name as ggml's block structs have it.
        role: What it holds.
        offset: First byte within the block.
        num_bytes: Length.
    """

    name: str
    role: Role
    offset: int
    num_bytes: int


class Unpacked(NamedTuple):
    """The exact affine form: ``value = scales * codes + mins``, scales and mins per group.

    Attributes:
        codes: (..., K), int8.
        scales: (..., K / group), float32.
        mins: (..., K / group), float32, already signed so that it is added; None if there is none.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    mins: NDArray[np.float32] | None


Unpacker = Callable[["QuantFormat", Bytes], Unpacked]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class QuantFormat:
    """One packed weight format; interned, compared by identity.

    A tensor's innermost axis is cut into blocks of ``block_elements``, each stored in
    ``block_bytes``; within a block every ``group`` elements share one scale (and offset).

    Attributes:
        name: Name as GGUF has it, such as ``Q4_K``.
        ggml_type: The type's number in a GGUF file.
        block_elements: Elements of a block.
        block_bytes: Bytes of a block.
        group: Elements that share one scale, 16 or 32 (a scale per block is repeated).
        fields: The block's layout, in order, without gaps.
        code_min: Smallest code.
        code_max: Largest code.
        code_values: All codes, ascending, where there are at most 16; else None, and the codes are
            the whole range code_min..code_max.
        has_min: Whether there is an offset per group.
        unpacker: The NumPy meaning; called through :func:`poot_quant.unpack`.
    """

    name: str
    ggml_type: int
    block_elements: int
    block_bytes: int
    group: int
    fields: tuple[Field, ...]
    code_min: int
    code_max: int
    code_values: tuple[int, ...] | None
    has_min: bool
    unpacker: Unpacker = field(repr=False)

    @property
    def code_bits(self) -> int:
        """Bits of an index into ``code_values``, or of ``code - code_min`` where that is None."""
        if self.code_values is not None:
            return (len(self.code_values) - 1).bit_length()
        return (self.code_max - self.code_min).bit_length()

    @property
    def groups_per_block(self) -> int:
        """Groups of one block."""
        return self.block_elements // self.group

    @property
    def bits_per_element(self) -> float:
        """Stored bits of one element, scales included."""
        return 8 * self.block_bytes / self.block_elements

    def num_bytes(self, num_elements: int) -> int:
        """Return the bytes that ``num_elements`` of one row take.

        Raises:
            ValueError: If they are no whole number of blocks.
        """
        blocks, rest = divmod(num_elements, self.block_elements)
        if rest:
            raise ValueError(
                f"{self.name} packs {self.block_elements} elements to a block; "
                f"a row of {num_elements} is no whole number of blocks"
            )
        return blocks * self.block_bytes

    def field(self, name: str) -> Field:
        """Return the field called ``name``.

        Raises:
            KeyError: If there is none.
        """
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
        raise KeyError(name)

    def slice(self, blocks: Bytes, name: str) -> Bytes:
        """Return the bytes of one field: blocks (n, block_bytes) -> a view (n, field bytes)."""
        found = self.field(name)
        return blocks[:, found.offset : found.offset + found.num_bytes]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        from poot_quant._registry import format_by_name

        return format_by_name, (self.name,)
