"""The operations that kernels call by name; each handler emits into the importer's builder."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from poot_core import DType, PootError
from poot_kernel.ir import Layout, SizeLike, TileType, Value
from poot_kernel.ir.types import Space
from poot_kernel.language._values import Closure, Inline, Intrinsic, Place, is_tile

if TYPE_CHECKING:
    from poot_kernel.language._calls import CallImporter

__all__ = [
    "absolute",
    "assume_multiple",
    "atomic",
    "barrier",
    "bitcast",
    "broadcast",
    "ceil",
    "ceildiv",
    "clamp_index",
    "concatenate",
    "convert",
    "copy",
    "copy_async",
    "copy_rows",
    "cos",
    "count_ones",
    "dot2",
    "dot4",
    "erf",
    "exp",
    "exp2",
    "floor",
    "fma",
    "foreach",
    "full",
    "grid_size",
    "insert",
    "interleave",
    "iota",
    "load",
    "load_part",
    "local_id",
    "local_size",
    "log",
    "log2",
    "loop",
    "lut16",
    "map",
    "maximum",
    "minimum",
    "mma",
    "move",
    "mul_high",
    "num_subgroups",
    "pipeline",
    "prefetch",
    "reduce",
    "reshape",
    "rint",
    "rsqrt",
    "shared",
    "sin",
    "splat",
    "sqrt",
    "static_range",
    "status_set",
    "store",
    "store_rows",
    "subgroup_broadcast",
    "subgroup_id",
    "subgroup_lane",
    "subgroup_reduce",
    "subgroup_scan",
    "subgroup_shuffle",
    "subgroup_shuffle_xor",
    "subgroup_size",
    "subgroup_vote",
    "tanh",
    "transpose",
    "trunc",
    "vector",
    "vector_reduce",
    "wait",
    "where",
    "workgroup_id",
    "workgroup_reduce",
    "zeros",
]


def _intrinsic(handler: Callable[..., object]) -> Intrinsic:
    return Intrinsic(handler.__name__.strip("_"), handler)


def _on_places(handler: Callable[..., object]) -> Intrinsic:
    return Intrinsic(handler.__name__.strip("_"), handler, places=True)


# ---- element operations: on scalars and vectors at once, on tiles as part of a map


def _unary(name: str, opcode: str = "") -> Intrinsic:
    def handler(k: CallImporter, node: ast.Call, x: object, /) -> object:
        return k.element(node, partial(k.b.unary, opcode or name), x)

    return Intrinsic(name, handler)


def _folded(name: str, opcode: str) -> Intrinsic:
    def handler(k: CallImporter, node: ast.Call, *items: object) -> object:
        if len(items) < 2:
            raise PootError(f"{name}() takes two values or more")
        result, *rest = items
        for item in rest:
            result = k.element(node, partial(k.b.binary, opcode), result, item)
        return result

    return Intrinsic(name, handler)


exp = _unary("exp")
exp2 = _unary("exp2")
log = _unary("log")
log2 = _unary("log2")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
sin = _unary("sin")
cos = _unary("cos")
tanh = _unary("tanh")
erf = _unary("erf")
floor = _unary("floor")
ceil = _unary("ceil")
trunc = _unary("trunc")
rint = _unary("rint")
absolute = _unary("abs")
count_ones = _unary("count_ones")
minimum = _folded("minimum", "min")
maximum = _folded("maximum", "max")
mul_high = _folded("mul_high", "mul_high")


@_intrinsic
def fma(k: CallImporter, node: ast.Call, a: object, b: object, c: object) -> object:
    """The product of a and b plus c, rounded once."""
    return k.element(node, k.b.fma, a, b, c)


@_intrinsic
def where(k: CallImporter, node: ast.Call, condition: object, a: object, b: object) -> object:
    """A where the condition holds, else b."""

    def emit(test: Any, x: Any, y: Any) -> Value:
        if not isinstance(x, Value) and not isinstance(y, Value):
            x = k.value(x)
        return k.b.select(k.value(test), x, y)

    return k.element(node, emit, condition, a, b)


@_intrinsic
def convert(
    k: CallImporter, node: ast.Call, x: object, dtype: DType, *, saturate: bool = False
) -> object:
    """X in another dtype; calling a dtype is the short form."""
    if isinstance(x, Value) and is_tile(x) and not saturate:
        return k.b.tile_convert(x, dtype)
    return k.element(node, partial(k.b.convert, dtype=dtype, saturate=saturate), x)


@_intrinsic
def bitcast(k: CallImporter, node: ast.Call, x: object, dtype: DType) -> object:
    """The same bits as another dtype."""
    return k.element(node, partial(k.b.bitcast, dtype=dtype), x)


@_intrinsic
def dot4(
    k: CallImporter,
    node: ast.Call,
    a: object,
    b: object,
    acc: object,
    *,
    a_signed: bool = True,
    b_signed: bool = True,
) -> object:
    """Acc plus four byte products."""
    emit = partial(k.b.dot4, a_signed=a_signed, b_signed=b_signed)
    return k.element(node, emit, a, b, acc)


@_intrinsic
def dot2(
    k: CallImporter, node: ast.Call, a: object, b: object, acc: object, dtype: DType
) -> object:
    """Acc plus two 16-bit float products."""
    return k.element(node, partial(k.b.dot2, dtype=dtype), a, b, acc)


@_intrinsic
def lut16(
    k: CallImporter, node: ast.Call, index: object, table: Sequence[int], dtype: DType
) -> object:
    """An entry of a table of 16, by the low four bits of the index."""
    return k.element(node, partial(k.b.lut16, table=tuple(table), dtype=dtype), index)


@_intrinsic
def vector(k: CallImporter, node: ast.Call, *items: object) -> object:
    """A vector of scalars."""
    return k.b.vector_build(*(k.value(item) for item in items))


@_intrinsic
def splat(k: CallImporter, node: ast.Call, x: object, count: int) -> object:
    """A vector of equal elements."""
    return k.b.splat(k.value(x), count)


@_intrinsic
def insert(k: CallImporter, node: ast.Call, v: Value, x: object, index: int) -> object:
    """A vector with one element replaced."""
    return k.b.insert(v, k.value(x), index)


@_intrinsic
def vector_reduce(k: CallImporter, node: ast.Call, v: object, kind: str) -> object:
    """A vector's elements combined in ascending order."""
    return k.element(node, partial(k.b.vector_reduce, kind=kind), v)


@_intrinsic
def assume_multiple(k: CallImporter, node: ast.Call, x: Value, factor: int) -> object:
    """X, promised to be a multiple of factor."""
    return k.b.assume_multiple(x, factor)


@_intrinsic
def ceildiv(k: CallImporter, node: ast.Call, a: object, b: object) -> object:
    """The quotient rounded up."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return -(-cast("int", a) // cast("int", b))
    total = k.b.add(cast("Value", a), k.b.sub(b, 1) if isinstance(b, Value) else cast("int", b) - 1)
    return k.b.floordiv(total, cast("Value", b))


# ---- memory, element by element


def _indices(place: Place) -> list[Value | int]:
    return [cast("Value | int", index) for index in place.indices]


@_on_places
def load(
    k: CallImporter,
    node: ast.Call,
    place: object,
    *,
    mask: object = None,
    other: object = None,
    count: int = 1,
    dtype: DType | None = None,
    alignment: int = 0,
) -> object:
    """x[i] with a mask, as a vector of count elements, or as a dtype out of raw bytes."""
    at = k.place(place)
    chosen = None
    if other is not None:
        found = dtype or getattr(at.memory.type, "dtype", None)
        chosen = k.value(other, found)
    return k.b.load(
        at.memory,
        _indices(at),
        mask=None if mask is None else k.value(mask),
        other=chosen,
        count=count,
        dtype=dtype,
        alignment=alignment,
    )


@_on_places
def store(
    k: CallImporter,
    node: ast.Call,
    place: object,
    value: object,
    *,
    mask: object = None,
    masked: bool = False,
    layout: Layout | None = None,
    strides: Sequence[object] = (),
    alignment: int = 0,
) -> None:
    """Write an element or vector (with a mask), or a tile (masked at the array's edges)."""
    k.write(
        k.place(place),
        value,
        mask=mask,
        masked=masked,
        layout=layout,
        strides=strides,
        alignment=alignment,
    )


@_on_places
def prefetch(k: CallImporter, node: ast.Call, place: object) -> None:
    """Ask for a cache line; may address past the end."""
    at = k.place(place)
    k.b.prefetch(at.memory, _indices(at))


@_on_places
def atomic(
    k: CallImporter, node: ast.Call, kind: str, place: object, value: object, *, mask: object = None
) -> object:
    """Combine a value into memory; returns the old value."""
    at = k.place(place)
    dtype = getattr(at.memory.type, "dtype", None)
    return k.b.atomic(
        kind,
        at.memory,
        _indices(at),
        k.value(value, dtype),
        mask=None if mask is None else k.value(mask),
    )


@_intrinsic
def shared(k: CallImporter, node: ast.Call, dtype: DType, *shape: SizeLike) -> object:
    """Uninitialised memory of the workgroup."""
    return k.b.shared_alloc(dtype, [k.size(size) for size in shape])


@_intrinsic
def clamp_index(
    k: CallImporter, node: ast.Call, status: Value, index: Any, extent: Any, row: Any, *, bit: int
) -> object:
    """Index inside of [0, extent); out of range marks row in the status word."""
    return k.b.clamp_index(status, index, extent, row, bit=bit)


@_intrinsic
def status_set(
    k: CallImporter, node: ast.Call, status: Value, row: Any, *, bit: int, mask: Any = None
) -> None:
    """Mark row in the status word."""
    k.b.status_set(status, row, bit=bit, mask=mask)


# ---- where an invocation stands, and talking to others


def _query(name: str) -> Intrinsic:
    def handler(k: CallImporter, node: ast.Call) -> object:
        return k.b.query(name)

    return Intrinsic(name, handler)


local_id = _query("local_id")
local_size = _query("local_size")
subgroup_id = _query("subgroup_id")
num_subgroups = _query("num_subgroups")
subgroup_lane = _query("subgroup_lane")
subgroup_size = _query("subgroup_size")


@_intrinsic
def workgroup_id(k: CallImporter, node: ast.Call, axis: int = 0) -> object:
    """The workgroup's coordinate."""
    return k.b.workgroup_id(axis)


@_intrinsic
def grid_size(k: CallImporter, node: ast.Call, axis: int = 0) -> object:
    """Workgroups along an axis."""
    return k.b.grid_size(axis)


@_intrinsic
def subgroup_reduce(k: CallImporter, node: ast.Call, x: object, kind: str) -> object:
    """Active lanes combined."""
    return k.b.subgroup_reduce(k.value(x), kind)


@_intrinsic
def subgroup_scan(
    k: CallImporter, node: ast.Call, x: object, kind: str, *, exclusive: bool = False
) -> object:
    """Prefix combinations by ascending lane."""
    return k.b.subgroup_scan(k.value(x), kind, exclusive=exclusive)


@_intrinsic
def subgroup_shuffle(k: CallImporter, node: ast.Call, x: object, lane: Any) -> object:
    """X of another lane."""
    return k.b.subgroup_shuffle(k.value(x), lane)


@_intrinsic
def subgroup_shuffle_xor(k: CallImporter, node: ast.Call, x: object, lane_mask: int) -> object:
    """X of lane ^ lane_mask."""
    return k.b.subgroup_shuffle_xor(k.value(x), lane_mask)


@_intrinsic
def subgroup_broadcast(k: CallImporter, node: ast.Call, x: object, lane: Any) -> object:
    """X of one lane, uniform in the subgroup."""
    return k.b.subgroup_broadcast(k.value(x), lane)


@_intrinsic
def subgroup_vote(k: CallImporter, node: ast.Call, x: object, kind: str) -> object:
    """Whether any or all active lanes hold true."""
    return k.b.subgroup_vote(k.value(x), kind)


@_intrinsic
def workgroup_reduce(k: CallImporter, node: ast.Call, x: object, kind: str) -> object:
    """All invocations combined, uniform."""
    return k.b.workgroup_reduce(k.value(x), kind)


@_intrinsic
def barrier(k: CallImporter, node: ast.Call, scope: str = "workgroup") -> None:
    """Order memory among the scope's invocations."""
    k.b.barrier(scope)


# ---- tiles


@_intrinsic
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


@_intrinsic
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


@_intrinsic
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
        _indices(at),
        None if layout is not None else at.shape,
        layout=layout,
        strides=strides,
        dtype=dtype,
        space=space,
        bounds="masked" if masked else "full",
        alignment=alignment,
        asynchronous=asynchronous,
    )


@_on_places
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


@_on_places
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


@_intrinsic
def wait(k: CallImporter, node: ast.Call, token: Value) -> object:
    """The tile of a token."""
    return k.b.wait(token)


@_intrinsic
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


@_intrinsic
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


@_intrinsic
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


@_intrinsic
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


@_intrinsic
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


@_intrinsic
def move(k: CallImporter, node: ast.Call, tile: object, space: Space) -> object:
    """A tile in another space."""
    return k.b.tile_move(k.tile(tile), space)


@_intrinsic
def broadcast(k: CallImporter, node: ast.Call, tile: object, shape: Sequence[int]) -> object:
    """A tile repeated along extents of 1."""
    return k.b.broadcast(k.tile(tile), tuple(shape))


@_intrinsic
def transpose(
    k: CallImporter, node: ast.Call, tile: object, permutation: Sequence[int] = (1, 0)
) -> object:
    """A view with axes permuted."""
    return k.b.transpose(k.tile(tile), tuple(permutation))


@_intrinsic
def reshape(k: CallImporter, node: ast.Call, tile: object, shape: Sequence[int]) -> object:
    """A view of another shape."""
    return k.b.reshape(k.tile(tile), tuple(shape))


@_intrinsic
def interleave(k: CallImporter, node: ast.Call, *tiles: object, axis: int, block: int) -> object:
    """Tiles joined along an axis, dealing blocks of each in turn."""
    return k.b.interleave(*(k.tile(tile) for tile in tiles), axis=axis, block=block)


@_intrinsic
def concatenate(k: CallImporter, node: ast.Call, *tiles: object, axis: int) -> object:
    """Tiles joined along an axis."""
    found = [k.tile(tile) for tile in tiles]
    assert isinstance(found[0].type, TileType)
    return k.b.interleave(*found, axis=axis, block=found[0].type.shape[axis])


# ---- loops; read by the statement importer


def _loop_only(name: str, form: str) -> Intrinsic:
    def handler(k: CallImporter, node: ast.Call, *items: object, **named: object) -> object:
        raise PootError(f"{name}() stands only in '{form}'")

    return Intrinsic(name, handler)


loop = _loop_only("loop", "for i in loop(lower, upper, step, unroll=, static=)")
foreach = _loop_only("foreach", "for i in foreach(lower, upper, scope=, unroll=)")
pipeline = _loop_only("pipeline", "for k in pipeline(lower, upper, step, stages=)")
load_part = _loop_only("load_part", "with load_part():' first in a pipeline loop, '")


@_intrinsic
def static_range(k: CallImporter, node: ast.Call, *bounds: object) -> object:
    """A range that is unrolled at import."""
    if not all(isinstance(bound, int) for bound in bounds):
        raise PootError("static_range() needs bounds that are known at import time")
    return range(*cast("tuple[int, ...]", bounds))
