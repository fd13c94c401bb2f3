"""Tensor types: a shape, possibly symbolic, and an element type, dense or packed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeGuard

from poot_core import DType, Shape, format_shape
from poot_quant import QuantFormat

__all__ = ["ElementType", "Storage", "TensorType", "is_packed"]

ElementType = DType | QuantFormat
"""A dense dtype, or the packed format of a weight whose shape is still the logical one."""


class Storage(Enum):
    """Where a value lives, and who writes it.

    Attributes:
        CONST: A weight, found by its checkpoint name; never written.
        SLOT: A per-step input at a stable address; the host writes it before the step.
        STATE: Donated in and out: KV pools and recurrent state.
        COMPUTED: What an equation produces.
        ARGUMENT: What a region hands to its body.
    """

    CONST = "const"
    SLOT = "slot"
    STATE = "state"
    COMPUTED = "computed"
    ARGUMENT = "argument"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value.

    Attributes:
        shape: Logical extents in elements; a packed weight has the shape of its decoded values.
        dtype: Dense dtype or packed format.
    """

    shape: Shape
    dtype: ElementType

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}{format_shape(self.shape)}"


def is_packed(dtype: ElementType) -> TypeGuard[QuantFormat]:
    """Return whether ``dtype`` is a packed weight format and no dense dtype."""
    return not isinstance(dtype, DType)
