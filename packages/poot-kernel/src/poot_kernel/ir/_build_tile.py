"""Builder methods for tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from poot_core import DType
from poot_kernel.ir._build_lane import Indices, LaneBuilder
from poot_kernel.ir._emitter import Operand
from poot_kernel.ir.core import Attribute, Region, Value
from poot_kernel.ir.layouts import Layout
from poot_kernel.ir.types import ScalarType, Space, TileType

__all__ = ["TileBuilder"]


class TileBuilder(LaneBuilder):
    """Copies, products, maps, reductions and views of tiles."""

    def tile_full(self, shape: Sequence[int], value: Value, space: Space = "private") -> Value:
        """Return a tile of equal elements."""
        return self.one("tile_full", [value], shape=tuple(shape), space=space)

    def tile_zeros(self, shape: Sequence[int], dtype: DType, space: Space = "accumulator") -> Value:
        """Return a tile of zeros, an accumulator unless told otherwise."""
        return self.tile_full(shape, self.constant(0, dtype), space)

    def tile_iota(self, shape: Sequence[int], axis: int, dtype: DType) -> Value:
        """Return coordinates along an axis."""
        return self.one("tile_iota", shape=tuple(shape), axis=axis, dtype=dtype)

    def copy(
        self,
        memory: Value,
        indices: Indices,
        shape: Sequence[int] | None = None,
        *,
        layout: Layout | None = None,
        strides: Sequence[Operand] = (),
        dtype: DType | None = None,
        space: Space = "private",
        bounds: str = "full",
        alignment: int = 0,
        asynchronous: bool = False,
    ) -> Value:
        """Return a tile read from memory (a token with ``asynchronous``); see opcode ``copy``."""
        attributes: dict[str, Attribute] = {
            "shape": tuple(shape) if shape is not None else False, "layout": layout or False,
            "dtype": dtype or False, "space": space, "bounds": bounds, "alignment": alignment,
        }  # fmt: skip
        operands = [memory, *self.indices(indices), *self.indices(strides)]
        return self.one("copy_async" if asynchronous else "copy", operands, **attributes)

    def copy_rows(
        self,
        memory: Value,
        rows: Value,
        indices: Indices,
        row_shape: Sequence[int],
        space: Space = "private",
    ) -> Value:
        """Return a tile whose row r is row rows[r] of memory."""
        operands = [memory, rows, *self.indices(indices)]
        return self.one("copy_rows", operands, row_shape=tuple(row_shape), space=space)

    def wait(self, token: Value) -> Value:
        """Return the tile of a token."""
        return self.one("wait", [token])

    def store_tile(
        self,
        memory: Value,
        tile: Value,
        indices: Indices,
        *,
        layout: Layout | None = None,
        strides: Sequence[Operand] = (),
        bounds: str = "full",
        alignment: int = 0,
    ) -> None:
        """Write a tile."""
        operands = [memory, tile, *self.indices(indices), *self.indices(strides)]
        self.op("store_tile", operands, layout=layout or False, bounds=bounds, alignment=alignment)

    def store_rows(self, memory: Value, tile: Value, rows: Value, indices: Indices) -> None:
        """Write row r of a tile to row rows[r] of memory; negative rows are dropped."""
        self.op("store_rows", [memory, tile, rows, *self.indices(indices)])

    def mma(self, a: Value, b: Value, acc: Value, *, signature: str = "native") -> Value:
        """Return acc + a @ b."""
        return self.one("mma", [a, b, acc], signature=signature)

    @overload
    def map(self, body: Callable[[Value], Value], a: Value, /) -> Value: ...

    @overload
    def map(self, body: Callable[[Value, Value], Value], a: Value, b: Value, /) -> Value: ...

    @overload
    def map(
        self, body: Callable[[Value, Value, Value], Value], a: Value, b: Value, c: Value, /
    ) -> Value: ...

    @overload
    def map(
        self,
        body: Callable[[Value, Value, Value, Value], Value],
        a: Value,
        b: Value,
        c: Value,
        d: Value,
        /,
    ) -> Value: ...

    @overload
    def map(
        self,
        body: Callable[[Value, Value, Value, Value, Value], Value],
        a: Value,
        b: Value,
        c: Value,
        d: Value,
        e: Value,
        /,
    ) -> Value: ...

    @overload
    def map(
        self,
        body: Callable[[Value, Value, Value, Value, Value, Value], Value],
        a: Value,
        b: Value,
        c: Value,
        d: Value,
        e: Value,
        f: Value,
        /,
    ) -> Value: ...

    @overload
    def map(self, body: Callable[..., Value], *tiles: Value) -> Value: ...

    def map(self, body: Callable[..., Value], *tiles: Value) -> Value:
        """Return the tile of ``body(*elements)``; use ``map_many`` for several results."""
        (result,) = self.map_many(body, *tiles)
        return result

    def map_many(self, body: Callable[..., Value | Sequence[Value]], *tiles: Value) -> list[Value]:
        """Return the tiles of a body that returns several elements."""
        dtypes = [t.type.dtype for t in tiles if isinstance(t.type, TileType)]
        region = Region([Value(ScalarType(dtype)) for dtype in dtypes])
        with self.inserting(region):
            results = body(*region.arguments)
            self.op("yield", [results] if isinstance(results, Value) else list(results))
        return self.op("map", tiles, [region])

    def reduce(self, tile: Value, axis: int, kind: str, *, order: str = "ascending") -> Value:
        """Return a tile combined along an axis, which keeps extent 1."""
        return self.one("reduce", [tile], axis=axis, kind=kind, order=order)

    def tile_convert(self, tile: Value, dtype: DType) -> Value:
        """Return a tile in another dtype."""
        return self.one("tile_convert", [tile], dtype=dtype)

    def tile_move(self, tile: Value, space: Space) -> Value:
        """Return a tile in another space."""
        return self.one("tile_move", [tile], space=space)

    def broadcast(self, tile: Value, shape: Sequence[int]) -> Value:
        """Return a tile repeated along extents of 1."""
        return self.one("broadcast", [tile], shape=tuple(shape))

    def transpose(self, tile: Value, permutation: Sequence[int] = (1, 0)) -> Value:
        """Return a view with axes permuted."""
        return self.one("transpose", [tile], permutation=tuple(permutation))

    def reshape(self, tile: Value, shape: Sequence[int]) -> Value:
        """Return a view of another shape."""
        return self.one("reshape", [tile], shape=tuple(shape))

    def slice(self, tile: Value, starts: Sequence[int], shape: Sequence[int]) -> Value:
        """Return a static box of a tile."""
        return self.one("slice", [tile], starts=tuple(starts), shape=tuple(shape))

    def interleave(self, *tiles: Value, axis: int, block: int) -> Value:
        """Return tiles joined along an axis, dealing blocks of each in turn."""
        return self.one("interleave", tiles, axis=axis, block=block)

    def tile_element(self, tile: Value, indices: Sequence[int]) -> Value:
        """Return one element as a uniform scalar."""
        return self.one("tile_element", [tile], indices=tuple(indices))
