"""Prepared sequences: launch tables in the form that the compiled runtime walks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, ShapeError
from poot_cpu_device import _layout
from poot_cpu_device._kernel import CpuKernel
from poot_cpu_device._memory import CpuBuffer
from poot_executor import (
    Argument,
    BufferArgument,
    GridArgument,
    GridDim,
    Launch,
    ScalarArgument,
    SymbolArgument,
)

__all__ = ["CpuSequence"]

Words = NDArray[np.int64]

_AXES = 3


class CpuSequence:
    """Launches with all addresses settled; holds their buffers and code alive.

    Attributes:
        symbols: Symbols that a step gives values for.
        labels: One for each launch.
        scratch_bytes: Largest private scratch that a launch needs.
        address: Of the record that the runtime takes.
    """

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.labels = tuple(launch.label or launch.kernel.entry for launch in launches)
        self.symbols = _symbols(launches)
        self.scratch_bytes = max((launch.scratch_bytes for launch in launches), default=0)
        self._index = {name: 1 + i for i, name in enumerate(self.symbols)}
        self._values: Words = np.ones(1 + len(self.symbols), np.int64)
        self._keep_alive: list[object] = []
        self._table: Words = np.zeros((len(launches), _layout.LAUNCH_WORDS), np.int64)
        slots = sum(len(launch.arguments) for launch in launches)
        self._slots: Words = np.zeros(slots, np.int64)
        patches: list[tuple[int, int]] = []
        resizes: list[list[int]] = []
        used = 0
        for number, launch in enumerate(launches):
            used = self._add(number, launch, used, patches, resizes)
        self._patches: Words = np.array(patches, np.int64).reshape(-1, 2)
        self._resizes: Words = np.array(resizes, np.int64).reshape(-1, _layout.RESIZE_WORDS)
        self._stamps: Words = np.zeros(len(launches) + 1, np.int64)
        self._record: Words = np.zeros(8, np.int64)
        record = _layout.Prepared
        for offset, value in (
            (record.TABLE, _address(self._table)),
            (record.NUM_LAUNCHES, len(launches)),
            (record.RESIZES, _address(self._resizes)),
            (record.NUM_RESIZES, len(resizes)),
            (record.PATCHES, _address(self._patches)),
            (record.NUM_PATCHES, len(patches)),
            (record.VALUES, _address(self._values)),
        ):
            self._record[offset // 8] = value
        self.address = _address(self._record)

    def bind(self, sizes: Mapping[str, int]) -> None:
        """Set the symbols' values for the next step.

        Raises:
            DeviceError: If a symbol has no value or a negative one.
        """
        values = self._values
        for name, index in self._index.items():
            value = sizes.get(name)
            if value is None or value < 0:
                raise DeviceError(f"symbol {name!r} has value {value} in this step, got {sizes}")
            values[index] = value

    def record_stamps(self, *, enabled: bool) -> None:
        """Make steps record when each launch starts, or stop that."""
        self._record[_layout.Prepared.STAMPS // 8] = _address(self._stamps) if enabled else 0

    def stamps(self) -> Words:
        """Return (num_launches + 1,) ticks at which launches of the last recorded step began."""
        return self._stamps.copy()

    def durations(self, stamps: Words) -> Words:
        """Return (repeats, num_launches) ticks that each launch took.

        The barrier after a launch counts to it, also across launches without tiles.

        Args:
            stamps: (repeats, num_launches + 1) stamps of steps with the sizes of the last one.
        """
        began = stamps[:, :-1].copy()
        full = np.flatnonzero(self._table[:, _layout.Launch.TILES // 8])
        ended = np.concatenate([stamps[:, full[1:]], stamps[:, -1:]], axis=1)
        ticks = np.zeros_like(began)
        ticks[:, full] = ended[:, : len(full)] - began[:, full]
        return ticks

    def tiles(self) -> Words:
        """Return (num_launches,) tiles of the last step."""
        return self._table[:, _layout.Launch.TILES // 8].copy()

    def _add(
        self,
        number: int,
        launch: Launch,
        used: int,
        patches: list[tuple[int, int]],
        resizes: list[list[int]],
    ) -> int:
        if not 1 <= len(launch.grid) <= _AXES:
            raise ShapeError(
                f"launch {launch.label!r} has {len(launch.grid)} grid axes, not 1 to 3"
            )
        if launch.grain < 1:
            raise ShapeError(f"launch {launch.label!r} has grain {launch.grain}, not 1 or more")
        kernel = cast("CpuKernel", launch.kernel)
        self._keep_alive.append(kernel)
        first = _address(self._slots) + 8 * used
        axis_slots = [0] * _AXES
        for position, argument in enumerate(launch.arguments):
            slot = first + 8 * position
            if isinstance(argument, SymbolArgument):
                patches.append((slot, self._index[argument.symbol]))
            elif isinstance(argument, GridArgument):
                if not 0 <= argument.axis < len(launch.grid) or axis_slots[argument.axis]:
                    raise ShapeError(
                        f"launch {launch.label!r} asks for axis {argument.axis} of a grid of "
                        f"{len(launch.grid)} axes, or asks twice"
                    )
                axis_slots[argument.axis] = slot
                constant = launch.grid[argument.axis]
                if constant.symbol is None:
                    self._slots[used + position] = constant.count({})
            else:
                self._slots[used + position] = self._constant(argument, launch)
        row = self._table[number]
        row[_layout.Launch.KERNEL // 8] = kernel.address
        row[_layout.Launch.ARGUMENTS // 8] = first
        row[_layout.Launch.GRAIN // 8] = launch.grain
        if any(dim.symbol is not None for dim in launch.grid):
            resizes.append(self._resize(number, launch.grid, axis_slots))
        else:
            tiles = math.prod(dim.count({}) for dim in launch.grid)
            if tiles >= _layout.CLOSED:
                raise ShapeError(f"launch {launch.label!r} has {tiles} tiles, more than 2^32 - 2")
            row[_layout.Launch.TILES // 8] = tiles
        return used + len(launch.arguments)

    def _constant(self, argument: Argument, launch: Launch) -> int:
        if isinstance(argument, ScalarArgument):
            return _slot_bits(argument)
        assert isinstance(argument, BufferArgument)
        buffer = cast("CpuBuffer", argument.buffer)
        if not 0 <= argument.offset <= buffer.nbytes:
            raise ShapeError(f"launch {launch.label!r} takes byte {argument.offset} of {buffer!r}")
        self._keep_alive.append(buffer.data)
        return buffer.address + argument.offset

    def _resize(self, number: int, grid: Sequence[GridDim], slots: Sequence[int]) -> list[int]:
        row = [number]
        for axis in range(_AXES):
            dim = grid[axis] if axis < len(grid) else GridDim()
            symbol = 0 if dim.symbol is None else self._index[dim.symbol]
            row += [dim.coefficient, symbol, dim.divisor, slots[axis]]
        return row


def _symbols(launches: Sequence[Launch]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for launch in launches:
        for dim in launch.grid:
            if dim.divisor < 1 or dim.coefficient < 0:
                raise ShapeError(f"launch {launch.label!r} has the grid axis {dim}")
            if dim.symbol is not None:
                names[dim.symbol] = None
        for argument in launch.arguments:
            if isinstance(argument, SymbolArgument):
                names[argument.symbol] = None
    return tuple(names)


def _address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _slot_bits(argument: ScalarArgument) -> int:
    """Return the 8-byte slot of a scalar: its own bytes first, zeros above."""
    encoded = np.array([argument.value], argument.dtype.numpy).tobytes()
    return int.from_bytes(encoded.ljust(8, b"\0"), "little", signed=True)
