"""Tiles made of tiles: maps, reductions, conversions and views."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from poot_core import DType, UnsupportedError
from poot_kernel.ir.core import Op
from poot_kernel.ir.types import TileType
from poot_kernel.targets.common.fragments import Bit, Fragment, bits_along, log2
from poot_kernel.targets.common.lowering import Handler, Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.packed_maps import map_words
from poot_kernel.targets.common.tiles import (
    FragmentTile,
    IotaTile,
    MemoryTile,
    Stride,
    Tile,
    UniformTile,
    shared_bytes,
    shared_tile,
)

__all__ = ["MAP_HANDLERS"]


def tile_of(low: Lowering, op: Op, index: int = 0) -> Tile:
    """Return a tile operand."""
    return cast(Tile, low.get(op.operands[index]))


def _map_layout(low: Lowering, op: Op, tiles: list[Tile], shape: tuple[int, ...]) -> Fragment:
    solved = next((low.layouts[r] for r in op.results if r in low.layouts), None)
    if solved is not None:
        return solved
    held = (t.layout for t in tiles if isinstance(t, FragmentTile) and t.shape == shape)
    return next(held, None) or low.default_layout(shape)


def _map(low: Lowering, op: Op) -> None:
    tiles = [tile_of(low, op, i) for i in range(len(op.operands))]
    found = op.results[0].type
    assert isinstance(found, TileType)
    (body,) = op.regions
    if all(isinstance(tile, UniformTile) for tile in tiles):
        arguments = [cast(UniformTile, tile).value for tile in tiles]
        for value, runtime in zip(op.results, low.region(body, arguments), strict=True):
            low.set(value, UniformTile(found.shape, cast(Register, runtime)))
        return
    layout = _map_layout(low, op, tiles, found.shape)
    packed = map_words(low, op, tiles, layout)
    if packed is not None:
        low.set(op.result, packed)
        return
    operands: list[dict[tuple[int, ...], Register]] = []
    for tile in tiles:
        operands.append(tile.fragment(low, layout).by_coordinates(low))
    shapes = [tile.shape for tile in tiles]
    results: list[list[Register]] = [[] for _ in op.results]
    for where in layout.coordinates():
        arguments = [
            held[tuple(c if extent != 1 else 0 for c, extent in zip(where, shape, strict=True))]
            for held, shape in zip(operands, shapes, strict=True)
        ]
        for values, runtime in zip(results, low.region(body, arguments), strict=True):
            values.append(cast(Register, runtime))
    for value, values in zip(op.results, results, strict=True):
        assert isinstance(value.type, TileType)
        low.set(value, FragmentTile(layout, value.type.dtype, values))


def _reduce(low: Lowering, op: Op) -> None:
    """Combine registers, then lanes by halving, then subgroups through shared memory.

    NOTE: sums of floats are combined in this order whatever ``order`` says, as ``native`` products
    are: elements of a fragment do not lie in ascending order.
    """
    axis, kind = op.attributes["axis"], op.attributes["kind"]
    assert isinstance(axis, int)
    assert isinstance(kind, str)
    tile = tile_of(low, op)
    held = (
        tile
        if isinstance(tile, FragmentTile)
        else tile.fragment(low, low.layout_of(op.operands[0], tile.shape))
    )
    shape = tuple(1 if i == axis else extent for i, extent in enumerate(tile.shape))
    kept = held.layout.restricted(shape)
    sums: dict[tuple[int, ...], Register] = {}
    for where, value in held.by_coordinates(low).items():
        place = tuple(0 if i == axis else c for i, c in enumerate(where))
        old = sums.get(place)
        sums[place] = value if old is None else low.arithmetic.combine(kind, old, value)
    values = [sums[c] for c in kept.coordinates()]
    for number, bit in enumerate(held.layout.lanes):
        if bit is not None and bit.axis == axis:
            moved = [low.machine.shuffle_xor(x, 1 << number) for x in values]
            values = [
                low.arithmetic.combine(kind, x, y) for x, y in zip(values, moved, strict=True)
            ]
    result = FragmentTile(kept, tile.dtype, values)
    if any(bit is not None and bit.axis == axis for bit in held.layout.subgroups):
        result = _across_subgroups(low, result, held.layout, axis, kind)
    low.set(op.result, result)


def _across_subgroups(
    low: Lowering, part: FragmentTile, layout: Fragment, axis: int, kind: str
) -> FragmentTile:
    """Combine partial results of subgroups: each writes its own plane, all read every plane."""
    bits = [b for b in layout.subgroups if b is not None and b.axis == axis]
    numbers = {bit: Bit(0, 1 << i) for i, bit in enumerate(bits)}
    planes = 1 << len(bits)
    kept = part.layout

    def shifted(bit: Bit | None) -> Bit | None:
        return bit and Bit(bit.axis + 1, bit.step)

    shape = (planes, *kept.shape)
    registers = tuple(Bit(b.axis + 1, b.step) for b in kept.registers)
    lanes = tuple(shifted(b) for b in kept.lanes)
    kept_groups = tuple(shifted(b) for b in kept.subgroups)
    groups = tuple(
        numbers.get(o, k) if o is not None else k
        for o, k in zip(layout.subgroups, kept_groups, strict=True)
    )
    num_bytes = shared_bytes(shape, part.dtype)
    start = low.allocate(("planes", num_bytes), num_bytes)
    memory = shared_tile(shape, part.dtype, start)
    low.barrier()
    memory.store(
        low, FragmentTile(Fragment(shape, registers, lanes, groups), part.dtype, part.values)
    )
    low.barrier()
    extra = tuple(Bit(0, 1 << i) for i in range(len(bits)))
    wide = Fragment(shape, (*registers, *extra), lanes, kept_groups)
    found = memory.fragment(low, wide).by_coordinates(low)
    values: list[Register] = []
    for where in kept.coordinates():
        total = found[0, *where]
        for plane in range(1, planes):
            total = low.arithmetic.combine(kind, total, found[plane, *where])
        values.append(total)
    return FragmentTile(kept, part.dtype, values)


def _tile_convert(low: Lowering, op: Op) -> None:
    tile, dtype = tile_of(low, op), op.attributes["dtype"]
    assert isinstance(dtype, DType)
    if isinstance(tile, UniformTile):
        low.set(op.result, UniformTile(tile.shape, low.arithmetic.convert(tile.value, dtype)))
        return
    held = tile.fragment(low, low.layout_of(op.result, tile.shape))
    values = [low.arithmetic.convert(x, dtype) for x in held.elements(low)]
    low.set(op.result, FragmentTile(held.layout, dtype, values))


def _tile_full(low: Lowering, op: Op) -> None:
    assert isinstance(op.result.type, TileType)
    low.set(op.result, UniformTile(op.result.type.shape, low.scalar(op.operands[0])))


def _tile_iota(low: Lowering, op: Op) -> None:
    found, axis = op.result.type, op.attributes["axis"]
    assert isinstance(found, TileType)
    assert isinstance(axis, int)
    dtype = low.index_dtype if found.dtype.bits == 64 else found.dtype
    low.set(op.result, IotaTile(found.shape, axis, dtype))


def _tile_move(low: Lowering, op: Op) -> None:
    tile = tile_of(low, op)
    if op.attributes["space"] == "shared" and isinstance(tile, FragmentTile):
        tile = tile.in_shared(low)
    low.set(op.result, tile)


def _broadcast(low: Lowering, op: Op) -> None:
    tile, found = tile_of(low, op), op.result.type
    assert isinstance(found, TileType)
    if isinstance(tile, UniformTile):
        low.set(op.result, UniformTile(found.shape, tile.value))
        return
    if isinstance(tile, MemoryTile) and tile.space == "shared":  # repeated where it lies
        strides = tuple(
            own if extent == wide else tuple(Stride(0) for _ in bits_along(axis, 1, wide))
            for axis, (own, extent, wide) in enumerate(
                zip(tile.strides, tile.shape, found.shape, strict=True)
            )
        )
        low.set(op.result, replace(tile, shape=found.shape, strides=strides))
        return
    layout = low.layout_of(op.result, found.shape)
    held = tile.fragment(low, layout).by_coordinates(low)
    keep = [extent != 1 for extent in tile.shape]
    values = [
        held[tuple(c if k else 0 for c, k in zip(where, keep, strict=True))]
        for where in layout.coordinates()
    ]
    low.set(op.result, FragmentTile(layout, tile.dtype, values))


def _transpose(low: Lowering, op: Op) -> None:
    tile, order = tile_of(low, op), cast("tuple[int, ...]", op.attributes["permutation"])
    if isinstance(tile, MemoryTile):
        low.set(op.result, tile.transposed(order))
        return
    shape = tuple(tile.shape[axis] for axis in order)
    if isinstance(tile, UniformTile):
        low.set(op.result, UniformTile(shape, tile.value))
        return
    names = {
        Bit(axis, 1 << i): Bit(order.index(axis), 1 << i)
        for axis, extent in enumerate(tile.shape)
        for i in range(log2(extent))
    }
    low.set(op.result, _renamed(low, tile, shape, names))


def _reshape(low: Lowering, op: Op) -> None:
    tile, shape = tile_of(low, op), cast("tuple[int, ...]", op.attributes["shape"])
    if isinstance(tile, MemoryTile):
        low.set(op.result, tile.reshaped(shape))
        return
    if isinstance(tile, UniformTile):
        low.set(op.result, UniformTile(shape, tile.value))
        return
    names = dict(zip(_flat_bits(tile.shape), _flat_bits(shape), strict=True))
    low.set(op.result, _renamed(low, tile, shape, names))


def _renamed(
    low: Lowering, tile: Tile, shape: tuple[int, ...], names: dict[Bit, Bit]
) -> FragmentTile:
    held = (
        tile
        if isinstance(tile, FragmentTile)
        else tile.fragment(low, low.default_layout(tile.shape))
    )
    return FragmentTile(held.layout.renamed(shape, names), held.dtype, held.elements(low))


def _flat_bits(shape: tuple[int, ...]) -> list[Bit]:
    order = range(len(shape) - 1, -1, -1)
    return [Bit(axis, 1 << i) for axis in order for i in range(log2(shape[axis]))]


def _slice(low: Lowering, op: Op) -> None:
    tile = tile_of(low, op)
    starts = cast("tuple[int, ...]", op.attributes["starts"])
    shape = cast("tuple[int, ...]", op.attributes["shape"])
    if isinstance(tile, UniformTile):
        low.set(op.result, UniformTile(shape, tile.value))
        return
    if isinstance(tile, FragmentTile):
        found = _slice_registers(low, tile, starts, shape)
        if found is not None:
            low.set(op.result, found)
            return
        tile = tile.in_shared(low)
    if not isinstance(tile, MemoryTile):
        raise UnsupportedError("a slice of coordinates has no lowering for GPUs yet")
    low.set(op.result, tile.sliced(low, starts, shape))


def _slice_registers(
    low: Lowering, tile: FragmentTile, starts: tuple[int, ...], shape: tuple[int, ...]
) -> FragmentTile | None:
    """Return a slice that only picks registers; None if lanes would move."""
    kept = tile.layout.narrowed(shape)
    if kept is None:
        return None
    if any(start % extent for start, extent in zip(starts, shape, strict=True)):
        return None
    held = tile.by_coordinates(low)
    values = [
        held[tuple(c + s for c, s in zip(where, starts, strict=True))]
        for where in kept.coordinates()
    ]
    return FragmentTile(kept, tile.dtype, values)


def _interleave(low: Lowering, op: Op) -> None:
    tiles = [tile_of(low, op, i) for i in range(len(op.operands))]
    axis, block = op.attributes["axis"], op.attributes["block"]
    assert isinstance(axis, int)
    assert isinstance(block, int)
    layout = next((t.layout for t in tiles if isinstance(t, FragmentTile)), None)
    layout = layout or low.default_layout(tiles[0].shape)
    held = [tile.fragment(low, layout).elements(low) for tile in tiles]
    shape = list(layout.shape)
    shape[axis] *= len(tiles)
    names = {
        Bit(a, 1 << i): Bit(a, (1 << i) * (len(tiles) if a == axis and 1 << i >= block else 1))
        for a, extent in enumerate(layout.shape)
        for i in range(log2(extent))
    }
    wide = layout.renamed(tuple(shape), names)
    extra = tuple(Bit(axis, block << i) for i in range(log2(len(tiles))))
    wide = wide.with_registers((*wide.registers, *extra))
    low.set(op.result, FragmentTile(wide, tiles[0].dtype, [x for part in held for x in part]))


def _tile_element(low: Lowering, op: Op) -> None:
    tile = tile_of(low, op)
    if isinstance(tile, UniformTile):
        low.set(op.result, tile.value)
        return
    memory = tile if isinstance(tile, MemoryTile) else _in_shared(low, tile)
    where = cast("tuple[int, ...]", op.attributes["indices"])
    address, constant = memory.moved(low, memory.base, where)
    low.set(op.result, low.machine.load(memory.space, address, constant, memory.dtype, 1)[0])


def _in_shared(low: Lowering, tile: Tile) -> MemoryTile:
    held = (
        tile
        if isinstance(tile, FragmentTile)
        else tile.fragment(low, low.default_layout(tile.shape))
    )
    return held.in_shared(low)


MAP_HANDLERS: dict[str, Handler] = {
    "map": _map, "reduce": _reduce, "tile_convert": _tile_convert, "tile_full": _tile_full,
    "tile_iota": _tile_iota, "tile_move": _tile_move, "broadcast": _broadcast,
    "transpose": _transpose, "reshape": _reshape, "slice": _slice, "interleave": _interleave,
    "tile_element": _tile_element,
}  # fmt: skip
