"""Lowering of tile operations: mostly, which tile object a result is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from poot_kernel.ir.core import Op, Value
from poot_kernel.ir.layouts import Layout
from poot_kernel.ir.types import TileType, TokenType
from poot_kernel.targets.host.convert import convert
from poot_kernel.targets.host.elements import lower_element
from poot_kernel.targets.host.emitter import Val
from poot_kernel.targets.host.lowering import Handler, Lowering
from poot_kernel.targets.host.memory import Memory
from poot_kernel.targets.host.mma import lower_mma
from poot_kernel.targets.host.tile_memory import (
    MemoryTile,
    row_addresses,
    store_elements,
    tile_addresses,
)
from poot_kernel.targets.host.tiles import (
    Coordinates,
    IotaTile,
    MapTile,
    SplatTile,
    Tile,
    ViewTile,
    grid_coordinates,
)

__all__ = ["TILE_HANDLERS"]


def _tile(lowering: Lowering, value: Value) -> Tile:
    return cast("Tile", lowering.get(value))


def _type(op: Op) -> TileType:
    found = op.result.type
    assert isinstance(found, TileType)
    return found


def _tile_full(lowering: Lowering, op: Op) -> None:
    lowering.set(op.result, SplatTile(_type(op), lowering.val(op.operands[0])))


def _tile_iota(lowering: Lowering, op: Op) -> None:
    lowering.set(op.result, IotaTile(_type(op), cast("int", op.attributes["axis"])))


def _copy(lowering: Lowering, op: Op) -> None:
    found = op.result.type
    found = found.tile if isinstance(found, TokenType) else found
    assert isinstance(found, TileType)
    memory = cast("Memory", lowering.get(op.operands[0]))
    addresses = tile_addresses(lowering, op, memory, 1, found.shape)
    lowering.set(op.result, _lazy(lowering, MemoryTile(found, addresses)))


def _lazy(lowering: Lowering, tile: MemoryTile) -> MemoryTile:
    """Have a tile frozen before its memory changes, while it can still be used."""
    scope = lowering.scope

    def changing(memory: object) -> None:
        if memory is tile.memory and lowering.is_open(scope):
            tile.freeze(lowering)

    lowering.before_write.append(changing)
    return tile


def _copy_rows(lowering: Lowering, op: Op) -> None:
    found = _type(op)
    memory = cast("Memory", lowering.get(op.operands[0]))
    rows = _rows(lowering, op.operands[1])
    indices = [lowering.val(v) for v in op.operands[2:]]
    addresses = row_addresses(lowering, memory, rows, indices, found.shape)
    lowering.set(op.result, _lazy(lowering, MemoryTile(found, addresses)))


def _rows(lowering: Lowering, value: Value) -> list[Val]:
    tile = _tile(lowering, value)
    return [tile.get(lowering, np.array([[r]])) for r in range(tile.type.shape[0])]


def _same(lowering: Lowering, op: Op) -> None:
    lowering.set(op.result, lowering.get(op.operands[0]))


def _memory_order(op: Op, tile: Tile) -> Coordinates:
    """Coordinates of a tile, innermost part of its layout fastest."""
    layout = op.attributes.get("layout")
    if not isinstance(layout, Layout):
        return grid_coordinates(tile.type.shape)
    count = tile.type.size
    left, result = np.arange(count), np.zeros((count, len(layout.axes)), np.int64)
    reach = dict.fromkeys(layout.axes, 1)
    for part in layout.parts:
        result[:, layout.axes.index(part.axis)] += left % part.size * reach[part.axis]
        reach[part.axis] *= part.size
        left = left // part.size
    return result


def _store_tile(lowering: Lowering, op: Op) -> None:
    memory = cast("Memory", lowering.get(op.operands[0]))
    tile = _tile(lowering, op.operands[1])
    lowering.announce_write(memory)
    addresses = tile_addresses(lowering, op, memory, 2, tile.type.shape)
    store_elements(lowering, tile, addresses, _memory_order(op, tile))


def _store_rows(lowering: Lowering, op: Op) -> None:
    e = lowering.emitter
    memory = cast("Memory", lowering.get(op.operands[0]))
    tile = _tile(lowering, op.operands[1])
    rows = _rows(lowering, op.operands[2])
    lowering.announce_write(memory)
    indices = [lowering.val(v) for v in op.operands[3:]]
    addresses = row_addresses(lowering, memory, rows, indices, tile.type.shape)
    guards: list[Val | None] = [e.compare("icmp sge", row, e.const(0, row.dtype)) for row in rows]
    store_elements(lowering, tile, addresses, grid_coordinates(tile.type.shape), guards)


def _map(lowering: Lowering, op: Op) -> None:
    sources = [_tile(lowering, v) for v in op.operands]
    family: dict[str, Any] = {}
    for number, result in enumerate(op.results):
        lowering.set(result, MapTile(op, number, sources, family))


class _ConvertedTile(Tile):
    def __init__(self, found: TileType, source: Tile) -> None:
        super().__init__(found)
        self._source = source

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        return convert(lowering.emitter, self._source.get(lowering, coordinates), self.dtype)


def _tile_convert(lowering: Lowering, op: Op) -> None:
    lowering.set(op.result, _ConvertedTile(_type(op), _tile(lowering, op.operands[0])))


class _ReducedTile(Tile):
    """Elements combined along an axis when they are asked for."""

    def __init__(self, found: TileType, source: Tile, axis: int, kind: str, order: str) -> None:
        super().__init__(found)
        self._source, self._axis, self._kind, self._order = source, axis, kind, order

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        extent = self._source.type.shape[self._axis]
        values: list[Val] = []
        for index in range(extent):
            at = coordinates.copy()
            at[:, self._axis] = index
            values.append(self._source.get(lowering, at))
        if self._order == "tree":
            return self._tree(lowering, values)
        total = values[0]
        for value in values[1:]:
            total = self._combine(lowering, total, value)
        return total

    def _tree(self, lowering: Lowering, values: list[Val]) -> Val:
        half = 1
        while half < len(values):
            half *= 2
        while half > 1:
            half //= 2
            # Padding with the identity changes nothing: an element without partner stays.
            values = [
                self._combine(lowering, x, values[i + half]) if i + half < len(values) else x
                for i, x in enumerate(values[:half])
            ]
        return values[0]

    def _combine(self, lowering: Lowering, a: Val, b: Val) -> Val:
        return lower_element(lowering.emitter, lowering.machine, self._kind, {}, [a, b])


def _reduce(lowering: Lowering, op: Op) -> None:
    axis = cast("int", op.attributes["axis"])
    kind, order = str(op.attributes["kind"]), str(op.attributes["order"])
    source = _tile(lowering, op.operands[0])
    lowering.set(op.result, _ReducedTile(_type(op), source, axis, kind, order))


# ---- views: functions on coordinates

Where = Callable[[Coordinates], tuple[Any, Coordinates]]


def _view(lowering: Lowering, op: Op, where: Callable[[Coordinates], Coordinates]) -> None:
    source = _tile(lowering, op.operands[0])

    def only(coordinates: Coordinates) -> tuple[Any, Coordinates]:
        return np.zeros(len(coordinates), np.int64), where(coordinates)

    lowering.set(op.result, ViewTile(_type(op), [source], only))


def _integers(op: Op, name: str) -> Coordinates:
    return np.array(cast("tuple[int, ...]", op.attributes[name]), np.int64)


def _slice(lowering: Lowering, op: Op) -> None:
    starts = _integers(op, "starts")
    _view(lowering, op, lambda c: c + starts)


def _broadcast(lowering: Lowering, op: Op) -> None:
    last = np.array(_tile(lowering, op.operands[0]).type.shape) - 1
    _view(lowering, op, lambda c: np.minimum(c, last))


def _transpose(lowering: Lowering, op: Op) -> None:
    back = np.argsort(_integers(op, "permutation"))
    _view(lowering, op, lambda c: np.ascontiguousarray(c[:, back]))


def _reshape(lowering: Lowering, op: Op) -> None:
    to, source = _type(op).shape, _tile(lowering, op.operands[0]).type.shape

    def where(coordinates: Coordinates) -> Coordinates:
        flat = np.ravel_multi_index(tuple(coordinates.T), to)
        return np.stack(np.unravel_index(flat, source), axis=1).astype(np.int64)

    _view(lowering, op, where)


def _interleave(lowering: Lowering, op: Op) -> None:
    sources = [_tile(lowering, v) for v in op.operands]
    axis, block = cast("int", op.attributes["axis"]), cast("int", op.attributes["block"])

    def where(coordinates: Coordinates) -> tuple[Any, Coordinates]:
        along = coordinates[:, axis]
        inner = coordinates.copy()
        inner[:, axis] = along // (block * len(sources)) * block + along % block
        return along // block % len(sources), inner

    lowering.set(op.result, ViewTile(_type(op), sources, where))


def _tile_element(lowering: Lowering, op: Op) -> None:
    at = _integers(op, "indices")[None, :]
    lowering.set(op.result, _tile(lowering, op.operands[0]).get(lowering, at))


TILE_HANDLERS: dict[str, Handler] = {
    "tile_full": _tile_full,
    "tile_iota": _tile_iota,
    "copy": _copy,
    "copy_async": _copy,
    "copy_rows": _copy_rows,
    "wait": _same,
    "store_tile": _store_tile,
    "store_rows": _store_rows,
    "mma": lower_mma,
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
"""Opcode -> lowering of tile operations."""
