"""What a rule is given: operands, attributes, and the sizes of the symbolic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poot_core import Shape, bind_shape
from poot_eval._packed import Array, Tensor

__all__ = ["Call", "Rule", "compute_dtype"]


@dataclass(frozen=True, slots=True)
class Call:
    """One evaluation of an equation.

    Attributes:
        operands: In the order of the equation's inputs.
        attributes: Of the equation.
        sizes: Extent of each symbolic dimension.
        donated: Whether the first operand is given up and may be overwritten.
    """

    operands: Sequence[Tensor]
    attributes: Mapping[str, Any]
    sizes: Mapping[str, int]
    donated: bool = False

    def array(self, index: int) -> Array:
        """Return a dense operand."""
        operand = self.operands[index]
        assert isinstance(operand, np.ndarray)
        return operand

    def bind(self, shape: Shape) -> tuple[int, ...]:
        """Return a shape attribute in numbers."""
        return bind_shape(shape, self.sizes)


Rule = Callable[[Call], tuple[Tensor, ...]]


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return what floats narrower than f32 are computed in: f32; other dtypes are their own."""
    narrow = dtype.itemsize < 4 and dtype.kind not in "iub"
    return np.dtype(np.float32) if narrow else dtype
