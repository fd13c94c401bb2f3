"""Tiles on the host: functions from coordinates to registers.

A tile has no layout of its own. Whoever consumes it (a product, a store, a reduction) asks for the
elements that it wants in the lanes of one register, as an array of coordinates (lanes, rank), and
the tile finds the cheapest way to them: a vector load, a broadcast, a renamed register, a map's body
over the same lanes of its operands. What was emitted once is remembered for as long as it is in
scope, so decoding a weight tile happens where its registers are used, in the order of use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DType
from poot_kernel.ir.core import Op, Region, Value
from poot_kernel.ir.types import TileType
from poot_kernel.targets.host.emitter import Val
from poot_kernel.targets.host.lowering import Lowering

__all__ = [
    "Coordinates",
    "IotaTile",
    "MapTile",
    "RegisterTile",
    "SplatTile",
    "Tile",
    "ViewTile",
    "default_blocks",
    "grid_coordinates",
]

Coordinates = NDArray[np.int64]


def grid_coordinates(shape: Sequence[int]) -> Coordinates:
    """Return all coordinates of a shape in row-major order, (size, rank)."""
    return np.stack(np.unravel_index(np.arange(int(np.prod(shape))), tuple(shape)), axis=1)


def default_blocks(lowering: Lowering, found: TileType) -> list[Coordinates]:
    """Return how a tile of a type is cut into registers where nobody asks for particular lanes.

    Lanes lie along the last axis; a register holds as many as the vector width and the extent allow.
    """
    lanes = lowering.machine.lanes(found.dtype.bits)
    last = found.shape[-1]
    while last % lanes:
        lanes //= 2
    coordinates = grid_coordinates(found.shape)
    return [coordinates[at : at + lanes] for at in range(0, len(coordinates), lanes)]


class Tile:
    """A tile; subclasses say where its elements come from.

    Attributes:
        type: Shape and dtype.
    """

    def __init__(self, found: TileType) -> None:
        self.type = found
        self._known: dict[bytes, tuple[int, Val]] = {}

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    def get(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        """Return the elements at (lanes, rank) coordinates in one register; a scalar for one."""
        lanes = len(coordinates)
        if lanes > 1 and (coordinates == coordinates[0]).all():
            return lowering.emitter.splat(self.get(lowering, coordinates[:1]), lanes)
        key = coordinates.tobytes()
        known = self._known.get(key)
        if known is not None and lowering.is_open(known[0]):
            return known[1]
        value = self.fetch(lowering, coordinates)
        self._known[key] = (lowering.scope, value)
        return value

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        """Emit what ``get`` returns; never asked for a splat of several lanes."""
        raise NotImplementedError

    # ---- Bundle

    def count(self, lowering: Lowering) -> int:
        """Return the number of default registers."""
        return len(default_blocks(lowering, self.type))

    def parts(self, lowering: Lowering) -> list[Val]:
        """Return the default registers."""
        return [self.get(lowering, block) for block in default_blocks(lowering, self.type)]

    def rebuilt(self, lowering: Lowering, parts: list[Val]) -> Tile:
        """Return a tile held in the given default registers."""
        return RegisterTile(self.type, default_blocks(lowering, self.type), parts, lowering.scope)


class RegisterTile(Tile):
    """A tile held in registers; other arrangements of lanes are shuffled out of them."""

    def __init__(
        self, found: TileType, blocks: list[Coordinates], values: list[Val], scope: int
    ) -> None:
        super().__init__(found)
        self._values = values
        self._where: dict[tuple[int, ...], tuple[int, int]] | None = None
        self._blocks = blocks
        for block, value in zip(blocks, values, strict=True):
            self._known[block.tobytes()] = (scope, value)

    def _places(self) -> dict[tuple[int, ...], tuple[int, int]]:
        if self._where is None:
            self._where = {
                tuple(int(i) for i in row): (register, lane)
                for register, block in enumerate(self._blocks)
                for lane, row in enumerate(block)
            }
        return self._where

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        """Shuffle one register, or insert element by element."""
        e, places = lowering.emitter, self._places()
        found = [places[tuple(int(i) for i in row)] for row in coordinates]
        registers = {register for register, _lane in found}
        if len(found) == 1:
            register, lane = found[0]
            value = self._values[register]
            return e.extract(value, lane) if value.lanes else value
        if len(registers) == 1 and self._values[found[0][0]].lanes:
            return e.shuffle(self._values[found[0][0]], None, [lane for _r, lane in found])
        result = e.undefined(self.dtype, len(found))
        for at, (register, lane) in enumerate(found):
            value = self._values[register]
            result = e.insert(result, e.extract(value, lane) if value.lanes else value, at)
        return result


class SplatTile(Tile):
    """Equal elements."""

    def __init__(self, found: TileType, value: Val) -> None:
        super().__init__(found)
        self._value = value

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        """Return the element in every lane."""
        lanes = len(coordinates)
        return lowering.emitter.splat(self._value, lanes) if lanes > 1 else self._value


class IotaTile(Tile):
    """Coordinates along one axis."""

    def __init__(self, found: TileType, axis: int) -> None:
        super().__init__(found)
        self._axis = axis

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        """Return constants."""
        numbers = [int(i) for i in coordinates[:, self._axis]]
        e = lowering.emitter
        if len(numbers) == 1:
            return e.const(numbers[0], self.dtype)
        element = e.const(0, self.dtype).type
        texts = ", ".join(f"{element} {e.const(n, self.dtype).name}" for n in numbers)
        return Val(f"<{texts}>", self.dtype, len(numbers), None, max(numbers))


class ViewTile(Tile):
    """Elements of one or several tiles, found by a function on coordinates."""

    def __init__(self, found: TileType, sources: list[Tile], where: Any) -> None:
        """Make a view.

        Args:
            found: The view's type.
            sources: Tiles that it shows.
            where: Maps coordinates to (number of the source of each lane, coordinates there).
        """
        super().__init__(found)
        self._sources = sources
        self._where = where

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        """Ask the source; lanes of several sources are blended."""
        e = lowering.emitter
        which, inner = self._where(coordinates)
        present = sorted({int(w) for w in which})
        result = self._sources[present[0]].get(lowering, inner)
        for number in present[1:]:
            other = self._sources[number].get(lowering, inner)
            lanes = [i + len(which) if w == number else i for i, w in enumerate(which)]
            result = e.shuffle(result, other, lanes)
        return result


class MapTile(Tile):
    """One result of a ``map``: its body, run over the lanes that are asked for."""

    def __init__(self, op: Op, number: int, sources: list[Tile], family: dict[str, Any]) -> None:
        found = op.results[number].type
        assert isinstance(found, TileType)
        super().__init__(found)
        self._op = op
        self._number = number
        self._sources = sources
        self._family = family  # the results of one map share what its body computed

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        """Run the body, or take what another result's body run left."""
        key = coordinates.tobytes().hex()
        known = self._family.get(key)
        if known is None or not lowering.is_open(known[0]):
            known = (lowering.scope, self._run(lowering, coordinates))
            self._family[key] = known
        return known[1][self._number]

    def _run(self, lowering: Lowering, coordinates: Coordinates) -> list[Val]:
        region: Region = self._op.regions[0]
        inside: dict[Value, Val] = {}
        for argument, source in zip(region.arguments, self._sources, strict=True):
            own = np.minimum(coordinates, np.array(source.type.shape) - 1)
            inside[argument] = source.get(lowering, own)

        def value(v: Value) -> Val:
            return inside[v] if v in inside else lowering.val(v)

        for op in region.operations[:-1]:
            inside[op.result] = lowering.element(op, [value(v) for v in op.operands])
        lanes = len(coordinates) if len(coordinates) > 1 else 0
        found = [value(v) for v in region.terminator.operands]
        return [lowering.emitter.splat(x, lanes) if lanes else x for x in found]
