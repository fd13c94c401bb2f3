"""Shapes and element types of tiles under construction."""

from __future__ import annotations

from poot_core import DType
from poot_kernel import TileType, Value

__all__ = ["dtype_of", "shape_of", "width_of"]


def _type(tile: Value) -> TileType:
    assert isinstance(tile.type, TileType)
    return tile.type


def shape_of(tile: Value) -> tuple[int, ...]:
    """Return a tile's extents."""
    return _type(tile).shape


def width_of(tile: Value) -> int:
    """Return the second extent."""
    return _type(tile).shape[1]


def dtype_of(tile: Value) -> DType:
    """Return a tile's element type."""
    return _type(tile).dtype
