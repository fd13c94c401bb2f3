"""Tiles of one row as single values: the host's tile code for stored blocks, run by one invocation.

What packs 16 rows on the host is written over tiles (16, c). Here the 16 rows are 16 invocations, each
of which holds a row's c elements as values of its own; tile operations are moves of Python lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from poot_core import DType
from poot_kernel import IRBuilder, TileType, Value
from poot_kernelgen.contraction._codec import ROWS

__all__ = ["ScalarTile", "ScalarTiles"]

Grid = np.ndarray[Any, Any]


class ScalarTile:
    """One row's elements of a tile; its first extent is that of the tile of all rows.

    Attributes:
        type: Of the tile of all rows.
        elements: This row's, of the tile's shape with a sixteenth of its first extent.
    """

    def __init__(self, elements: Grid, dtype: DType, *, is_shared: bool = False) -> None:
        factor = 1 if is_shared else ROWS
        shape = (elements.shape[0] * factor, *elements.shape[1:])
        self.type = TileType(shape, dtype, "private")
        self.elements = elements

    def values(self) -> list[Value]:
        """Return the elements in order."""
        return list(self.elements.reshape(-1))


class ScalarTiles:
    """A builder whose tile operations work on ``ScalarTile``; all others are those of a builder."""

    def __init__(self, b: IRBuilder) -> None:
        self.b = b

    def __getattr__(self, name: str) -> Any:
        return getattr(self.b, name)

    def row(self, value: Value) -> ScalarTile:
        """Return this invocation's row number as a tile of row numbers."""
        return ScalarTile(_grid([value], (1,)), _dtype(value))

    def map(self, body: Callable[..., Value], *tiles: Any) -> ScalarTile:
        """Apply a body to elements, broadcast along extents of 1."""
        grids = np.broadcast_arrays(*(t.elements for t in tiles))
        found = [body(*items) for items in zip(*(g.reshape(-1) for g in grids), strict=True)]
        is_shared = all(t.type.shape[0] == t.elements.shape[0] for t in tiles)
        return ScalarTile(_grid(found, grids[0].shape), _dtype(found[0]), is_shared=is_shared)

    def tile_convert(self, tile: Any, dtype: DType) -> ScalarTile:
        """Convert every element."""

        def body(element: Value) -> Value:
            return self.b.convert(element, dtype)

        return self.map(body, tile)

    def tile_iota(self, shape: Sequence[int], axis: int, dtype: DType) -> ScalarTile:
        """Return coordinates along an axis that is not the rows'."""
        local = (1, *shape[1:])
        coordinates = np.indices(local)[axis].reshape(-1)
        values = [self.b.constant(int(c), dtype) for c in coordinates]
        return ScalarTile(_grid(values, local), dtype, is_shared=shape[0] == 1)

    def broadcast(self, tile: Any, shape: Sequence[int]) -> ScalarTile:
        """Repeat along extents of 1."""
        local = (shape[0] // ROWS, *shape[1:])
        return ScalarTile(np.broadcast_to(tile.elements, local), tile.type.dtype)

    def slice(self, tile: Any, starts: Sequence[int], shape: Sequence[int]) -> ScalarTile:
        """Return a box that holds all rows."""
        whole = tile.elements
        box = tuple(slice(s, s + n) for s, n in zip(starts[1:], shape[1:], strict=True))
        return ScalarTile(whole[(slice(None), *box)], tile.type.dtype)

    def reshape(self, tile: Any, shape: Sequence[int]) -> ScalarTile:
        """Return the elements in another shape."""
        local = (shape[0] // ROWS, *shape[1:])
        return ScalarTile(tile.elements.reshape(local), tile.type.dtype)

    def interleave(self, *tiles: Any, axis: int, block: int) -> ScalarTile:
        """Join along an axis, dealing blocks of each tile in turn."""
        assert axis > 0, "rows are not dealt"
        extent = tiles[0].elements.shape[axis]
        parts = [
            np.take(t.elements, range(first, first + block), axis)
            for first in range(0, extent, block)
            for t in tiles
        ]
        return ScalarTile(np.concatenate(parts, axis), tiles[0].type.dtype)

    def copy_rows(self, memory: Value, rows: Any, column: Any, shape: Sequence[int]) -> ScalarTile:
        """Read ``shape[0]`` neighbours of each row."""
        b = self.b
        values = [
            b.load(memory, [row, b.add(column, i) if i else column])
            for row in rows.values()
            for i in range(shape[0])
        ]
        return ScalarTile(_grid(values, (len(rows.values()), shape[0])), _dtype(values[0]))


def _dtype(value: Value) -> DType:
    return value.type.dtype  # type: ignore[union-attr]


def _grid(values: Sequence[Value], shape: Sequence[int]) -> Grid:
    found = np.empty(len(values), object)
    for index, value in enumerate(values):
        found[index] = value
    return found.reshape(shape)
