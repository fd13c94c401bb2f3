"""Rules of tiles: ndarrays of the tile's shape, whatever its space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from poot_core import DType
from poot_kernel.interpreter._elements import combine, convert, element_dtype
from poot_kernel.interpreter._lanes import raw_dtype, spread_out
from poot_kernel.interpreter._machine import Array, Machine, Rule
from poot_kernel.interpreter._memory import Memory
from poot_kernel.interpreter._products import PRODUCTS
from poot_kernel.interpreter.errors import KernelFault
from poot_kernel.ir import Layout, Op, TileType, TokenType, Value

__all__ = ["TILE_RULES"]


def _tile_type(value: Value) -> TileType:
    found = value.type.tile if isinstance(value.type, TokenType) else value.type
    assert isinstance(found, TileType)
    return found


def _operand(machine: Machine, op: Op, index: int = 0) -> Array:
    return machine.array(op.operands[index])


def _integers(op: Op, name: str) -> tuple[int, ...]:
    return cast("tuple[int, ...]", op.attributes[name])


# ---- where a tile stands in memory


def _coordinates(
    machine: Machine, op: Op, memory: Memory, first: int, shape: tuple[int, ...]
) -> list[Array]:
    """Return the index along each axis of the array, spread over the tile."""
    operands = op.operands[first:]
    bases = [machine.array(operand).astype(np.int64) for operand in operands]
    layout = op.attributes.get("layout")
    if isinstance(layout, Layout):
        base, *strides = bases
        # ``offset`` is arithmetic alone, so it takes arrays of coordinates too.
        offset = layout.offset(cast("Any", tuple(np.indices(shape))), cast("Any", tuple(strides)))
        return [base + np.asarray(offset)]
    lead = len(memory.shape) - len(shape)
    ranges = np.ogrid[tuple(slice(extent) for extent in shape)]
    steps = [np.zeros((), np.int64)] * lead + list(ranges)
    return [base + step for base, step in zip(bases, steps, strict=True)]


def _active(op: Op, memory: Memory, indices: Sequence[Array], shape: tuple[int, ...], size: int
            ) -> Array:  # fmt: skip
    """Return the elements to touch: all, or with masked bounds those inside of the array."""
    if op.attributes.get("bounds") != "masked":
        return np.ones(shape, np.bool_)
    inside = memory.inside(indices)
    if size > 1:
        inside = inside & memory.inside([indices[0] + (size - 1)])
    return np.broadcast_to(inside, shape)


def _aligned(machine: Machine, op: Op, memory: Memory, first: int) -> None:
    alignment = cast("int", op.attributes.get("alignment", 0))
    if not (machine.check and alignment):
        return
    bases = [machine.array(operand).astype(np.int64) for operand in op.operands[first:]]
    at = sum(int(base) * stride for base, stride in zip(bases, memory.strides, strict=False))
    if at * memory.dtype.itemsize % alignment:
        raise KernelFault(f"promises addresses aligned to {alignment} bytes, got element {at}")


def _read(machine: Machine, op: Op, memory: Memory, indices: list[Array], tile: TileType) -> Array:
    dtype = tile.dtype
    if raw_dtype(memory, dtype):
        active = _active(op, memory, indices, tile.shape, dtype.itemsize)
        at = memory.byte_address(indices[0], active, dtype.itemsize)
        spread, wide = spread_out(at, active, dtype.itemsize)
        found = memory.read(spread, wide, machine.accessors(spread.shape))
        found = found.view(dtype.numpy)[..., 0]
    else:
        active = _active(op, memory, indices, tile.shape, 1)
        at = memory.address(indices, active)
        found = memory.read(at, active, machine.accessors(at.shape))
    return np.where(active, found, np.zeros((), found.dtype))


def _copy(machine: Machine, op: Op) -> Sequence[Any]:
    memory, tile = machine.memory(op.operands[0]), _tile_type(op.result)
    _aligned(machine, op, memory, 1)
    indices = _coordinates(machine, op, memory, 1, tile.shape)
    return (_read(machine, op, memory, indices, tile),)


def _copy_rows(machine: Machine, op: Op) -> Sequence[Any]:
    memory, tile = machine.memory(op.operands[0]), _tile_type(op.result)
    indices = _row_indices(machine, op, memory, machine.array(op.operands[1]), 2, tile.shape)
    return (_read(machine, op, memory, indices, tile),)


def _row_indices(
    machine: Machine, op: Op, memory: Memory, rows: Array, first: int, shape: tuple[int, ...]
) -> list[Array]:
    bases = [machine.array(operand).astype(np.int64) for operand in op.operands[first:]]
    ranges = np.ogrid[tuple(slice(extent) for extent in shape)][1:]
    lead = len(bases) - len(ranges)
    steps = [np.zeros((), np.int64)] * lead + list(ranges)
    column = rows.astype(np.int64).reshape(-1, *(1,) * (len(shape) - 1))
    others = [base + step for base, step in zip(bases, steps, strict=True)]
    return [np.broadcast_to(column, shape), *others]


def _write(
    machine: Machine, op: Op, memory: Memory, indices: list[Array], tile: Array, active: Array
) -> None:
    dtype = element_dtype(op.operands[1])
    if raw_dtype(memory, dtype):
        at = memory.byte_address(indices[0], active, dtype.itemsize)
        wide = np.ascontiguousarray(tile)[..., None].view(np.uint8)
        spread, mask = spread_out(at, active, dtype.itemsize)
        memory.write(spread, wide, mask, machine.accessors(spread.shape), _all(spread))
        return
    at = memory.address(indices, active)
    memory.write(at, tile, active, machine.accessors(at.shape), _all(at))


def _all(at: Array) -> Array:
    return np.arange(at.shape[0])


def _store_tile(machine: Machine, op: Op) -> Sequence[Any]:
    memory, tile = machine.memory(op.operands[0]), machine.array(op.operands[1])
    _aligned(machine, op, memory, 2)
    indices = _coordinates(machine, op, memory, 2, tile.shape)
    dtype = element_dtype(op.operands[1])
    size = dtype.itemsize if raw_dtype(memory, dtype) else 1
    _write(machine, op, memory, indices, tile, _active(op, memory, indices, tile.shape, size))
    return ()


def _store_rows(machine: Machine, op: Op) -> Sequence[Any]:
    memory, tile = machine.memory(op.operands[0]), machine.array(op.operands[1])
    rows = machine.array(op.operands[2])
    indices = _row_indices(machine, op, memory, rows, 3, tile.shape)
    active = np.broadcast_to(indices[0] >= 0, tile.shape)
    _write(machine, op, memory, indices, tile, active)
    return ()


def _wait(machine: Machine, op: Op) -> Sequence[Any]:
    return (_operand(machine, op),)


# ---- arithmetic


def _mma(machine: Machine, op: Op) -> Sequence[Any]:
    a, b, acc = (machine.array(operand) for operand in op.operands)
    return (PRODUCTS[str(op.attributes["signature"])](a, b, acc),)


def _map(machine: Machine, op: Op) -> Sequence[Any]:
    results = machine.run(op.regions[0], [machine.array(operand) for operand in op.operands])
    return [
        np.broadcast_to(item, _tile_type(value).shape)
        for item, value in zip(results, op.results, strict=True)
    ]


def _reduce(machine: Machine, op: Op) -> Sequence[Any]:
    axis, kind = cast("int", op.attributes["axis"]), str(op.attributes["kind"])
    items = np.moveaxis(_operand(machine, op), axis, 0)
    if op.attributes["order"] == "ascending":
        total = items[0]
        for item in items[1:]:
            total = combine(kind, total, item)
    else:
        total = _tree(kind, items)
    return (np.expand_dims(total, axis),)


def _tree(kind: str, items: Array) -> Array:
    """Combine element i with i + size / 2; past the end there is nothing to combine with."""
    size = 1 << (len(items) - 1).bit_length()
    while size > 1:
        size //= 2
        pairs = max(len(items) - size, 0)
        head = combine(kind, items[:pairs], items[size : size + pairs])
        items = np.concatenate([head, items[pairs:size]])
    return items[0]


def _tile_convert(machine: Machine, op: Op) -> Sequence[Any]:
    source = element_dtype(op.operands[0])
    return (convert(_operand(machine, op), source, element_dtype(op.result)),)


# ---- forms


def _tile_full(machine: Machine, op: Op) -> Sequence[Any]:
    return (np.broadcast_to(_operand(machine, op), _tile_type(op.result).shape),)


def _tile_iota(machine: Machine, op: Op) -> Sequence[Any]:
    shape, axis = _tile_type(op.result).shape, cast("int", op.attributes["axis"])
    steps = np.arange(shape[axis]).astype(cast("DType", op.attributes["dtype"]).numpy)
    column = steps.reshape(-1, *(1,) * (len(shape) - axis - 1))
    return (np.broadcast_to(column, shape),)


def _same(machine: Machine, op: Op) -> Sequence[Any]:
    return (_operand(machine, op),)


def _broadcast(machine: Machine, op: Op) -> Sequence[Any]:
    return (np.broadcast_to(_operand(machine, op), _integers(op, "shape")),)


def _transpose(machine: Machine, op: Op) -> Sequence[Any]:
    return (np.transpose(_operand(machine, op), _integers(op, "permutation")),)


def _reshape(machine: Machine, op: Op) -> Sequence[Any]:
    return (_operand(machine, op).reshape(_integers(op, "shape")),)


def _slice(machine: Machine, op: Op) -> Sequence[Any]:
    pairs = zip(_integers(op, "starts"), _integers(op, "shape"), strict=True)
    return (_operand(machine, op)[tuple(slice(start, start + size) for start, size in pairs)],)


def _interleave(machine: Machine, op: Op) -> Sequence[Any]:
    axis, block = cast("int", op.attributes["axis"]), cast("int", op.attributes["block"])
    tiles = [machine.array(operand) for operand in op.operands]
    shape = tiles[0].shape
    split = (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
    joined = np.stack([tile.reshape(split) for tile in tiles], axis + 1)
    return (joined.reshape(_tile_type(op.result).shape),)


def _tile_element(machine: Machine, op: Op) -> Sequence[Any]:
    return (_operand(machine, op)[_integers(op, "indices")],)


TILE_RULES: dict[str, Rule] = {
    "tile_full": _tile_full,
    "tile_iota": _tile_iota,
    "copy": _copy,
    "copy_async": _copy,
    "copy_rows": _copy_rows,
    "wait": _wait,
    "store_tile": _store_tile,
    "store_rows": _store_rows,
    "mma": _mma,
    "map": _map,
    "reduce": _reduce,
    "tile_convert": _tile_convert,
    "tile_move": _same,
    "broadcast": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice,
    "interleave": _interleave,
    "tile_element": _tile_element,
}
"""Opcode -> rule."""
