"""Packed weights at run time: the stored bytes under their logical shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DType, ShapeError, bind_shape
from poot_graph_ir import TensorType, is_packed
from poot_quant import QuantFormat, decode

__all__ = ["Array", "Packed", "Tensor", "weight_array"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of blocks.

    Attributes:
        data: (..., bytes of a row) uint8: the logical shape with its last axis in bytes.
        format: What the bytes mean.
    """

    data: NDArray[np.uint8]
    format: QuantFormat

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape: that of the decoded values."""
        blocks = self.data.shape[-1] // self.format.block_bytes
        return (*self.data.shape[:-1], blocks * self.format.block_elements)

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return self.data.nbytes

    def decode(self) -> NDArray[np.float32]:
        """Return the f32 values."""
        if self.data.size == 0:
            return np.zeros(self.shape, np.float32)
        return decode(self.format, self.data)


Tensor = Array | Packed
"""What a value holds while a graph is evaluated."""


def weight_array(name: str, kind: TensorType, stored: Array) -> Tensor:
    """Return a weight as its graph declares it.

    Args:
        name: For the message.
        kind: Declared type.
        stored: The dense array, or the bytes as stored (uint8) in any shape.

    Raises:
        ShapeError: If the bytes are not those of the declared type.
    """
    shape = bind_shape(kind.shape, {})
    if is_packed(kind.dtype):
        data_shape = (*shape[:-1], kind.dtype.num_bytes(shape[-1]))
        _check_bytes(name, kind, stored, int(np.prod(data_shape)))
        return Packed(np.ascontiguousarray(stored).view(np.uint8).reshape(data_shape), kind.dtype)
    assert isinstance(kind.dtype, DType)
    wanted = kind.dtype.numpy
    if stored.dtype == wanted and stored.shape == shape:
        return stored
    _check_bytes(name, kind, stored, int(np.prod(shape)) * wanted.itemsize)
    if stored.dtype not in (np.dtype(np.uint8), wanted):
        raise ShapeError(f"weight {name!r} is declared as {kind}, got an array of {stored.dtype}")
    return np.ascontiguousarray(stored).reshape(-1).view(wanted).reshape(shape)


def _check_bytes(name: str, kind: TensorType, stored: Array, expected: int) -> None:
    if stored.nbytes != expected:
        raise ShapeError(
            f"weight {name!r} is declared as {kind}, {expected} bytes, got {stored.nbytes} bytes "
            f"({stored.dtype} of shape {stored.shape})"
        )
