"""Opcode table: tile-level operations (workgroup-uniform)."""

from __future__ import annotations

import math

from poot_core import DType
from poot_kernel.ir.core import Attribute
from poot_kernel.ir.layouts import Layout
from poot_kernel.ir.opcodes_memory import access_dtype
from poot_kernel.ir.specs import REDUCE_KINDS, Effect, OpSpec, Request, Rule, RuleError
from poot_kernel.ir.types import ScalarType, Space, TileType, TokenType, Type

__all__ = ["MMA_SIGNATURES", "TILE_OPS"]

SPACES = ("private", "shared", "accumulator")
MMA_SIGNATURES = ("native", "exact", "fma_chain", "pair_chain", "k16", "k16_chunk1024")
_MMA_INPUTS = {
    ("i8", "i8"): "i32", ("u8", "i8"): "i32", ("i8", "u8"): "i32", ("u8", "u8"): "i32",
    ("f32", "f32"): "f32", ("bf16", "bf16"): "f32", ("f16", "f16"): "f32",
    ("f8e4m3", "f8e4m3"): "f32", ("f8e5m2", "f8e5m2"): "f32",
    ("bf16", "f32"): "f32", ("f16", "f32"): "f32", ("f32", "bf16"): "f32", ("f32", "f16"): "f32",
}  # fmt: skip


def _space(request: Request) -> Space:
    value = request.one_of("space", SPACES)
    return "shared" if value == "shared" else "private" if value == "private" else "accumulator"


def _shape(request: Request, name: str = "shape") -> tuple[int, ...]:
    shape = request.integers(name)
    if not shape or min(shape) < 1:
        raise RuleError(f"attribute {name!r} must hold positive extents, got {shape}")
    return shape


def _tile_full(request: Request) -> tuple[Type, ...]:
    request.count(1)
    value = request.type(0)
    if not isinstance(value, ScalarType):
        raise RuleError(f"operand 0 must be a scalar, got {value}")
    return (TileType(_shape(request), value.dtype, _space(request)),)


def _tile_iota(request: Request) -> tuple[Type, ...]:
    request.count(0)
    shape = _shape(request)
    if not 0 <= request.attribute("axis", int) < len(shape):
        raise RuleError(f"axis {request.attributes['axis']} is outside of shape {shape}")
    return (TileType(shape, request.attribute("dtype", DType)),)


def _address(request: Request, first: int, tile_rank: int) -> int:
    """Check base indices and layout strides; return the number of operands they take."""
    memory = request.memory()
    layout = request.attributes["layout"]
    num = memory.rank
    if isinstance(layout, Layout):
        if memory.rank != 1:
            raise RuleError(f"a layout addresses arrays of rank 1, got {memory}")
        num += layout.num_dynamic_strides
    elif memory.rank < tile_rank:
        raise RuleError(f"a tile of rank {tile_rank} needs a layout to lie in {memory}")
    for index in range(first, first + num):
        request.integer(index)
    return num


def _copy_tile(request: Request) -> TileType:
    memory = request.memory()
    request.readable(memory)
    request.one_of("bounds", ("full", "masked"))
    layout = request.attributes["layout"]
    shape = layout.shape if isinstance(layout, Layout) else _shape(request)
    if isinstance(layout, Layout) and request.attributes["shape"] not in {False, shape}:
        raise RuleError(f"shape {request.attributes['shape']} is not the layout's {shape}")
    request.count(1 + _address(request, 1, len(shape)))
    return TileType(shape, access_dtype(request), _space(request))


def _copy(request: Request) -> tuple[Type, ...]:
    return (_copy_tile(request),)


def _copy_async(request: Request) -> tuple[Type, ...]:
    return (TokenType(_copy_tile(request)),)


def _copy_rows(request: Request) -> tuple[Type, ...]:
    memory = request.memory()
    request.readable(memory)
    rows = request.tile(1)
    if len(rows.shape) != 1 or not rows.dtype.is_integer:
        raise RuleError(f"operand 1 must be a rank-1 integer tile of row numbers, got {rows}")
    request.count(1 + memory.rank)
    for index in range(2, 1 + memory.rank):
        request.integer(index)
    shape = (rows.shape[0], *_shape(request, "row_shape"))
    if len(shape) > memory.rank:
        raise RuleError(f"rows of shape {shape[1:]} need more axes than {memory} has")
    return (TileType(shape, memory.dtype, _space(request)),)


def _wait(request: Request) -> tuple[Type, ...]:
    request.count(1)
    token = request.type(0)
    if not isinstance(token, TokenType):
        raise RuleError(f"operand 0 must be a token, got {token}")
    return (token.tile,)


def _store_tile(request: Request) -> tuple[Type, ...]:
    memory = request.memory()
    request.writable(memory)
    request.one_of("bounds", ("full", "masked"))
    tile = request.tile(1)
    layout = request.attributes["layout"]
    if isinstance(layout, Layout) and layout.shape != tile.shape:
        raise RuleError(f"layout covers {layout.shape}, tile is {tile}")
    raw = memory.dtype.name == "u8" and memory.rank == 1
    if tile.dtype is not memory.dtype and not raw:
        raise RuleError(f"cannot store {tile} into {memory}")
    request.count(2 + _address(request, 2, len(tile.shape)))
    return ()


def _store_rows(request: Request) -> tuple[Type, ...]:
    memory = request.memory()
    request.writable(memory)
    tile, rows = request.tile(1), request.tile(2)
    if rows.shape != tile.shape[:1] or not rows.dtype.is_integer:
        raise RuleError(f"operand 2 must hold a row number for each row of {tile}, got {rows}")
    if tile.dtype is not memory.dtype:
        raise RuleError(f"cannot store {tile} into {memory}")
    request.count(2 + memory.rank)
    for index in range(3, 2 + memory.rank):
        request.integer(index)
    return ()


def _mma(request: Request) -> tuple[Type, ...]:
    request.count(3)
    request.one_of("signature", MMA_SIGNATURES)
    a, b, accumulator = request.tile(0), request.tile(1), request.tile(2)
    if not len(a.shape) == len(b.shape) == len(accumulator.shape) == 2:
        raise RuleError(f"takes tiles of rank 2, got {a}, {b}, {accumulator}")
    if a.shape[1] != b.shape[0] or (a.shape[0], b.shape[1]) != accumulator.shape:
        raise RuleError(f"shapes must be (M, K), (K, N), (M, N), got {a}, {b}, {accumulator}")
    expected = _MMA_INPUTS.get((a.dtype.name, b.dtype.name))
    if expected != accumulator.dtype.name:
        raise RuleError(
            f"no product of {a.dtype.name} and {b.dtype.name} adds into {accumulator.dtype.name}"
        )
    return (accumulator,)


def broadcast_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that tiles of one rank broadcast to (extents equal or 1).

    Raises:
        RuleError: If they do not fit.
    """
    if len({len(shape) for shape in shapes}) != 1:
        raise RuleError(f"tiles must have one rank, got shapes {shapes}")
    result: list[int] = []
    for extents in zip(*shapes, strict=True):
        wide = {extent for extent in extents if extent != 1}
        if len(wide) > 1:
            raise RuleError(f"shapes {shapes} do not broadcast")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _map(request: Request) -> tuple[Type, ...]:
    request.count(1, 64)
    tiles = [request.tile(index) for index in range(len(request.operands))]
    shape = broadcast_shape([tile.shape for tile in tiles])
    (region,) = request.regions
    expected: list[Type] = [ScalarType(tile.dtype) for tile in tiles]
    if [v.type for v in region.arguments] != expected:
        raise RuleError(f"body arguments must be {expected}")
    results: list[Type] = []
    for value in region.terminator.operands:
        if not isinstance(value.type, ScalarType):
            raise RuleError(f"body must yield scalars, got {value.type}")
        # A result that replaces an accumulator of its own shape and dtype stays one.
        like = tiles[0] if tiles[0].shape == shape and tiles[0].dtype is value.type.dtype else None
        space: Space = "accumulator" if like and like.space == "accumulator" else "private"
        results.append(TileType(shape, value.type.dtype, space))
    if not results:
        raise RuleError("body must yield at least one element")
    return tuple(results)


def _reduce(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.one_of("kind", REDUCE_KINDS)
    request.one_of("order", ("ascending", "tree"))
    tile = request.tile(0)
    axis = request.attribute("axis", int)
    if not 0 <= axis < len(tile.shape):
        raise RuleError(f"axis {axis} is outside of {tile}")
    shape = tuple(1 if i == axis else extent for i, extent in enumerate(tile.shape))
    return (TileType(shape, tile.dtype),)


def _tile_convert(request: Request) -> tuple[Type, ...]:
    request.count(1)
    return (TileType(request.tile(0).shape, request.attribute("dtype", DType)),)


def _tile_move(request: Request) -> tuple[Type, ...]:
    request.count(1)
    tile = request.tile(0)
    return (TileType(tile.shape, tile.dtype, _space(request)),)


def _broadcast(request: Request) -> tuple[Type, ...]:
    request.count(1)
    tile, shape = request.tile(0), _shape(request)
    if broadcast_shape([tile.shape, shape]) != shape:
        raise RuleError(f"{tile} does not broadcast to {shape}")
    return (TileType(shape, tile.dtype),)


def _transpose(request: Request) -> tuple[Type, ...]:
    request.count(1)
    tile, order = request.tile(0), request.integers("permutation")
    if sorted(order) != list(range(len(tile.shape))):
        raise RuleError(f"{order} is no permutation of the axes of {tile}")
    return (TileType(tuple(tile.shape[axis] for axis in order), tile.dtype, tile.space),)


def _reshape(request: Request) -> tuple[Type, ...]:
    request.count(1)
    tile, shape = request.tile(0), _shape(request)
    if math.prod(shape) != tile.size:
        raise RuleError(f"{tile} has not the size of {shape}")
    return (TileType(shape, tile.dtype, tile.space),)


def _slice(request: Request) -> tuple[Type, ...]:
    request.count(1)
    tile, starts, shape = request.tile(0), request.integers("starts"), _shape(request)
    fits = len(starts) == len(shape) == len(tile.shape) and all(
        start >= 0 and start + extent <= whole
        for start, extent, whole in zip(starts, shape, tile.shape, strict=True)
    )
    if not fits:
        raise RuleError(f"slice {starts} + {shape} is outside of {tile}")
    return (TileType(shape, tile.dtype, tile.space),)


def _interleave(request: Request) -> tuple[Type, ...]:
    request.count(1, 64)
    first, axis, block = (
        request.tile(0),
        request.attribute("axis", int),
        request.attribute("block", int),
    )
    if any(request.tile(i) != first for i in range(len(request.operands))):
        raise RuleError("tiles differ in type")
    if not 0 <= axis < len(first.shape) or block < 1 or first.shape[axis] % block:
        raise RuleError(f"blocks of {block} do not divide axis {axis} of {first}")
    shape = tuple(
        extent * len(request.operands) if i == axis else extent
        for i, extent in enumerate(first.shape)
    )
    return (TileType(shape, first.dtype, first.space),)


def _tile_element(request: Request) -> tuple[Type, ...]:
    request.count(1)
    tile, indices = request.tile(0), request.integers("indices")
    inside = len(indices) == len(tile.shape) and all(
        0 <= i < extent for i, extent in zip(indices, tile.shape, strict=True)
    )
    if not inside:
        raise RuleError(f"element {indices} is outside of {tile}")
    return (ScalarType(tile.dtype),)


def _tile(
    name: str,
    operands: str,
    rule: Rule,
    effect: Effect,
    doc: str,
    attributes: dict[str, Attribute | None] | None = None,
    regions: int = 0,
) -> OpSpec:
    return OpSpec(
        name=name,
        level="tile",
        operands=operands,
        rule=rule,
        attributes=attributes or {},
        num_regions=regions,
        effect=effect,
        needs_uniform=True,
        doc=doc,
    )


_COPY: dict[str, Attribute | None] = {
    "shape": False, "space": "private", "layout": False, "dtype": False, "bounds": "full",
    "alignment": 0,
}  # fmt: skip

TILE_OPS: tuple[OpSpec, ...] = (
    _tile("tile_full", "scalar", _tile_full, "pure", "a tile of equal elements",
          {"shape": None, "space": "private"}),
    _tile("tile_iota", "", _tile_iota, "pure", "coordinates along an axis",
          {"shape": None, "axis": None, "dtype": None}),
    _tile("copy", "memory, indices..., strides...", _copy, "read",
          "tile whose axes are the last of the array's, from the given indices; or, with a layout, "
          "from a base offset. masked bounds read zero outside of the array", _COPY),
    _tile("copy_async", "memory, indices..., strides...", _copy_async, "read",
          "copy that gives a token at once", _COPY),
    _tile("copy_rows", "memory, rows, indices...", _copy_rows, "read",
          "row r of the tile is row rows[r] of the array's first axis; indices start the others",
          {"row_shape": None, "space": "private"}),
    _tile("wait", "token", _wait, "sync", "the tile, once it has arrived"),
    _tile("store_tile", "memory, tile, indices..., strides...", _store_tile, "write",
          "write a tile as copy reads it; masked bounds drop elements outside of the array",
          {"layout": False, "bounds": "full", "alignment": 0}),
    _tile("store_rows", "memory, tile, rows, indices...", _store_rows, "write",
          "write row r to row rows[r]; negative rows are dropped"),
    _tile("mma", "a: (M, K), b: (K, N), acc: (M, N)", _mma, "pure",
          "acc + a @ b in the combine order that signature names", {"signature": "native"}),
    _tile("map", "tiles...", _map, "pure",
          "elements of tiles, broadcast along extents of 1, through a body of element operations; "
          "the body may use uniform scalars from outside", regions=1),
    _tile("reduce", "tile", _reduce, "pure", "combine along an axis, which keeps extent 1",
          {"axis": None, "kind": None, "order": "ascending"}),
    _tile("tile_convert", "tile", _tile_convert, "pure", "convert every element", {"dtype": None}),
    _tile("tile_move", "tile", _tile_move, "pure", "the same tile in another space",
          {"space": None}),
    _tile("broadcast", "tile", _broadcast, "pure", "repeat along extents of 1", {"shape": None}),
    _tile("transpose", "tile", _transpose, "pure", "a view with axes permuted",
          {"permutation": None}),
    _tile("reshape", "tile", _reshape, "pure", "a view in row-major order", {"shape": None}),
    _tile("slice", "tile", _slice, "pure", "a static box", {"starts": None, "shape": None}),
    _tile("interleave", "tiles...", _interleave, "pure",
          "join along an axis, dealing blocks of each tile in turn; block = extent concatenates",
          {"axis": None, "block": None}),
    _tile("tile_element", "tile", _tile_element, "pure", "one element as a uniform scalar",
          {"indices": None}),
)  # fmt: skip
