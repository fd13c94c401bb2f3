"""Prepared sequences: launches whose arguments lie in host memory, and their graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, ShapeError
from poot_executor import (
    Argument,
    BufferArgument,
    GridArgument,
    GridDim,
    Launch,
    ScalarArgument,
    SymbolArgument,
)
from poot_kernel import Size
from poot_rocm_device._driver import Driver
from poot_rocm_device._memory import RocmBuffer
from poot_rocm_device._modules import RocmKernel

__all__ = ["RocmSequence"]

Grid = tuple[int, int, int]
_MOST_ITEMS = 2**32 - 1  # invocations along one axis
_MOST_GROUPS = (2**31 - 1, 65535, 65535)


class RocmSequence:
    """Launches with all addresses settled; holds their memory and code alive.

    Attributes:
        symbols: Symbols that a step gives values for.
        labels: One for each launch.
        graphs: Executable graphs by the symbols' values.
    """

    def __init__(self, launches: Sequence[Launch], driver: Driver, stream: Any) -> None:
        self.labels = tuple(launch.label or launch.kernel.entry for launch in launches)
        self.symbols = _symbols(launches)
        self.graphs: dict[tuple[int, ...], Any] = {}
        self._driver, self._stream = driver, stream
        self._bound: tuple[int, ...] | None = None
        self._launches = [_Prepared(launch) for launch in launches]

    def key(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the symbols' values.

        Raises:
            DeviceError: If a symbol has no value or a negative one.
        """
        try:
            found = tuple([sizes[name] for name in self.symbols])
        except KeyError as error:
            raise DeviceError(f"symbol {error} has no value in this step, got {sizes}") from None
        if found and min(found) < 0:
            raise DeviceError(f"a symbol has a negative value in this step: {sizes}")
        return found

    def bind(self, key: tuple[int, ...]) -> None:
        """Write what follows from the symbols' values into the arguments."""
        if key == self._bound:
            return
        values = dict(zip(self.symbols, key, strict=True))
        for launch in self._launches:
            if launch.is_open or self._bound is None:
                launch.bind(values)
        self._bound = key

    def launch(self, number: int) -> None:
        """Queue one launch; nothing if its grid is empty."""
        launch = self._launches[number]
        if 0 in launch.grid:
            return
        self._driver.call(
            "hipModuleLaunchKernel", launch.function, *launch.grid, launch.threads, 1, 1,
            launch.shared_bytes, self._stream, launch.address, None,
        )  # fmt: skip

    def launch_all(self) -> None:
        """Queue all launches."""
        for number in range(len(self._launches)):
            self.launch(number)


class _Prepared:
    """One launch: slots, pointers to them, and what depends on symbols."""

    def __init__(self, launch: Launch) -> None:
        kernel = cast("RocmKernel", launch.kernel)
        package = kernel.package
        if len(package.parameters) != len(launch.arguments):
            raise ShapeError(
                f"launch {launch.label!r} of {kernel.entry!r} passes {len(launch.arguments)} "
                f"arguments, the kernel takes {len(package.parameters)}"
            )
        if not 1 <= len(launch.grid) <= 3:
            raise ShapeError(
                f"launch {launch.label!r} has {len(launch.grid)} grid axes, not 1 to 3"
            )
        self._source, self.function = launch, kernel.function
        self.threads, self.shared_bytes = package.threads, package.shared_bytes
        self._names = [name for name, _ in package.parameters]
        self._sizes = [Size.parse(text) for text in package.grid]
        self._keep: list[object] = [kernel]
        self._slots: NDArray[np.int64] = np.array(
            [self._constant(argument) for argument in launch.arguments], np.int64
        )
        base = int(self._slots.ctypes.data)
        self._pointers: NDArray[np.uint64] = base + 8 * np.arange(len(self._slots), dtype=np.uint64)
        self.address = int(self._pointers.ctypes.data)
        self.grid: Grid = (0, 0, 0)
        kinds = (SymbolArgument, GridArgument)
        self.is_open = any(isinstance(a, kinds) for a in launch.arguments) or any(
            dim.symbol is not None for dim in launch.grid
        )

    def _constant(self, argument: Argument) -> int:
        if isinstance(argument, ScalarArgument):
            encoded = np.array([argument.value], argument.dtype.numpy).tobytes()
            return int.from_bytes(encoded.ljust(8, b"\0"), "little", signed=True)
        if not isinstance(argument, BufferArgument):
            return 0
        buffer = cast("RocmBuffer", argument.buffer)
        if not 0 <= argument.offset <= buffer.nbytes:
            raise ShapeError(
                f"launch {self._source.label!r} takes byte {argument.offset} of {buffer!r}"
            )
        self._keep.append(buffer.memory)
        return buffer.address + argument.offset

    def bind(self, values: Mapping[str, int]) -> None:
        source = self._source
        dims = [dim.count(values) for dim in source.grid]
        for place, argument in enumerate(source.arguments):
            if isinstance(argument, SymbolArgument):
                self._slots[place] = values[argument.symbol]
            elif isinstance(argument, GridArgument):
                self._slots[place] = dims[argument.axis]
        self.grid = (0, 0, 0) if 0 in dims else self._grid_of(dims)

    def _grid_of(self, dims: Sequence[int]) -> Grid:
        """Return the kernel's own grid, which its code reads back; the plan's may be folded."""
        scalars = {
            name: int(slot)
            for name, argument, slot in zip(
                self._names, self._source.arguments, self._slots, strict=True
            )
            if not isinstance(argument, BufferArgument)
        }
        sizes = [size.evaluate(scalars) for size in self._sizes] or list(dims)
        sizes += [1] * (3 - len(sizes))
        if (
            any(size > most for size, most in zip(sizes, _MOST_GROUPS, strict=True))
            or sizes[0] * self.threads > _MOST_ITEMS
        ):
            raise ShapeError(
                f"launch {self._source.label!r} has a grid of {tuple(sizes)} workgroups of "
                f"{self.threads}, more than HIP takes; lower the tokens of a step"
            )
        return (sizes[0], sizes[1], sizes[2])


def _symbols(launches: Sequence[Launch]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for launch in launches:
        for dim in launch.grid:
            _check(dim, launch)
            if dim.symbol is not None:
                names[dim.symbol] = None
        for argument in launch.arguments:
            if isinstance(argument, SymbolArgument):
                names[argument.symbol] = None
            if isinstance(argument, GridArgument) and not 0 <= argument.axis < len(launch.grid):
                raise ShapeError(
                    f"launch {launch.label!r} asks for axis {argument.axis} of a grid of "
                    f"{len(launch.grid)} axes"
                )
    return tuple(names)


def _check(dim: GridDim, launch: Launch) -> None:
    if dim.divisor < 1 or dim.coefficient < 0:
        raise ShapeError(f"launch {launch.label!r} has the grid axis {dim}")
