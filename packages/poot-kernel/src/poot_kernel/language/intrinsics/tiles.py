"""Operations on tiles."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from poot_core import DType, PootError
from poot_kernel.ir import Layout, TileType, Value
from poot_kernel.ir.types import Space
from poot_kernel.language._values import (
    Closure,
    Inline,
    intrinsic,
    on_places,
)

if TYPE_CHECKING:
    from poot_kernel.language._calls import CallImporter

__all__ = [
    "broadcast",
    "concatenate",
    "copy",
    "copy_async",
    "copy_rows",
    "full",
    "interleave",
    "iota",
    "map",
    "mma",
    "move",
    "reduce",
    "reshape",
    "store_rows",
    "transpose",
    "wait",
    "zeros",
]


@intrinsic
def full(
    k: CallImporter,
    node: ast.Call,
    shape: Sequence[int],
    value: object,
    dtype: DType | None = None,
    *,
    space: Space = "private",
) -> object:
    """A tile of equal elements."""
    return k.b.tile_full(tuple(shape), k.value(value, dtype), space)


@intrinsic
def zeros(
    k: CallImporter,
    node: ast.Call,
    shape: Sequence[int],
    dtype: DType,
    *,
    space: Space = "accumulator",
) -> object:
    """A tile of zeros, an accumulator unless told otherwise."""
    return k.b.tile_zeros(tuple(shape), dtype, space)


@intrinsic
def iota(k: CallImporter, node: ast.Call, shape: Sequence[int], axis: int, dtype: DType) -> object:
    """Coordinates along an axis."""
    return k.b.tile_iota(tuple(shape), axis, dtype)


def _copy(
    k: CallImporter,
    place: object,
    asynchronous: bool,
    masked: bool,
    layout: Layout | None,
    strides: Sequence[Any],
    dtype: DType | None,
    space: Space,
    alignment: int,
) -> Value:
    at = k.place(place)
    if at.shape is None and layout is None:
        raise PootError("copies a box of an array: write x[i : i + SIZE], or give a layout")
    return k.b.copy(
        at.memory,
        at.starts(),
        None if layout is not None else at.shape,
        layout=layout,
        strides=strides,
        dtype=dtype,
        space=space,
        bounds="masked" if masked else "full",
        alignment=alignment,
        asynchronous=asynchronous,
    )


@on_places
def copy(
    k: CallImporter,
    node: ast.Call,
    place: object,
    *,
    masked: bool = False,
    layout: Layout | None = None,
    strides: Sequence[Any] = (),
    dtype: DType | None = None,
    space: Space = "private",
    alignment: int = 0,
) -> object:
    """A tile read from x[i : i + M, ...], or through a layout from w[at:]."""
    return _copy(k, place, False, masked, layout, strides, dtype, space, alignment)


@on_places
def copy_async(
    k: CallImporter,
    node: ast.Call,
    place: object,
    *,
    masked: bool = False,
    layout: Layout | None = None,
    strides: Sequence[Any] = (),
    dtype: DType | None = None,
    space: Space = "private",
    alignment: int = 0,
) -> object:
    """A token for a tile on its way; wait(token) is the tile."""
    return _copy(k, place, True, masked, layout, strides, dtype, space, alignment)


@intrinsic
def wait(k: CallImporter, node: ast.Call, token: Value) -> object:
    """The tile of a token."""
    return k.b.wait(token)


@intrinsic
def copy_rows(
    k: CallImporter,
    node: ast.Call,
    memory: Value,
    rows: object,
    indices: Sequence[Any],
    row_shape: Sequence[int],
    *,
    space: Space = "private",
) -> object:
    """A tile whose row r is row rows[r] of an array; indices start the other axes."""
    return k.b.copy_rows(memory, k.tile(rows), list(indices), tuple(row_shape), space)


@intrinsic
def store_rows(
    k: CallImporter,
    node: ast.Call,
    memory: Value,
    tile: object,
    rows: object,
    indices: Sequence[Any],
) -> None:
    """Write row r of a tile to row rows[r]; negative rows are dropped."""
    k.b.store_rows(memory, k.tile(tile), k.tile(rows), list(indices))


@intrinsic
def mma(
    k: CallImporter,
    node: ast.Call,
    a: object,
    b: object,
    acc: object,
    *,
    signature: str = "native",
) -> object:
    """Acc + a @ b."""
    return k.b.mma(k.tile(a), k.tile(b), k.tile(acc), signature=signature)


@intrinsic
def map(k: CallImporter, node: ast.Call, function: object, *tiles: object) -> object:
    """Elements of tiles through a function of element operations; several results give a tuple."""
    if isinstance(function, Inline):
        function = k.closure(function)
    if not isinstance(function, Closure):
        raise PootError(f"map() takes a lambda or a function, got {k.describe(function)}")
    body = function
    is_tuple = False

    def emit(*elements: Value) -> list[Value]:
        nonlocal is_tuple
        result = k.settle(k.apply(node, body, elements))
        is_tuple = isinstance(result, tuple)
        items = cast("tuple[object, ...]", result) if is_tuple else (result,)
        return [k.value(item) for item in items]

    results = k.b.map_many(emit, *(k.tile(tile) for tile in tiles))
    return tuple(results) if is_tuple else results[0]


@intrinsic
def reduce(
    k: CallImporter,
    node: ast.Call,
    tile: object,
    axis: int,
    kind: str,
    *,
    order: str = "ascending",
) -> object:
    """A tile combined along an axis, which keeps extent 1."""
    return k.b.reduce(k.tile(tile), axis, kind, order=order)


@intrinsic
def move(k: CallImporter, node: ast.Call, tile: object, space: Space) -> object:
    """A tile in another space."""
    return k.b.tile_move(k.tile(tile), space)


@intrinsic
def broadcast(k: CallImporter, node: ast.Call, tile: object, shape: Sequence[int]) -> object:
    """A tile repeated along extents of 1."""
    return k.b.broadcast(k.tile(tile), tuple(shape))


@intrinsic
def transpose(
    k: CallImporter, node: ast.Call, tile: object, permutation: Sequence[int] = (1, 0)
) -> object:
    """A view with axes permuted."""
    return k.b.transpose(k.tile(tile), tuple(permutation))


@intrinsic
def reshape(k: CallImporter, node: ast.Call, tile: object, shape: Sequence[int]) -> object:
    """A view of another shape."""
    return k.b.reshape(k.tile(tile), tuple(shape))


@intrinsic
def interleave(k: CallImporter, node: ast.Call, *tiles: object, axis: int, block: int) -> object:
    """Tiles joined along an axis, dealing blocks of each in turn."""
    return k.b.interleave(*(k.tile(tile) for tile in tiles), axis=axis, block=block)


@intrinsic
def concatenate(k: CallImporter, node: ast.Call, *tiles: object, axis: int) -> object:
    """Tiles joined along an axis."""
    found = [k.tile(tile) for tile in tiles]
    assert isinstance(found[0].type, TileType)
    return k.b.interleave(*found, axis=axis, block=found[0].type.shape[axis])
