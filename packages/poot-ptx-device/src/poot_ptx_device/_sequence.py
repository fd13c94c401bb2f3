"""Prepared sequences: launches whose argument blocks lie in host memory, and their graphs."""

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
from poot_kernel.compile import PackagedMap
from poot_ptx_device._driver import Driver
from poot_ptx_device._memory import PtxBuffer
from poot_ptx_device._modules import PtxKernel
from poot_ptx_device._tensor_map import MAP_BYTES, MapEncoder, aligned_words

__all__ = ["PtxSequence"]

Grid = tuple[int, int, int]
_LIMITS = (2**31 - 1, 65535, 65535)


class PtxSequence:
    """Launches with all addresses settled; holds their memory and code alive.

    Attributes:
        symbols: Symbols that a step gives values for.
        labels: One for each launch.
        graphs: Executable graphs by the symbols' values.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        driver: Driver,
        stream: Any,
        *,
        encoder: MapEncoder,
        num_multiprocessors: int,
        shared_bytes: int,
        overlaps: bool,
    ) -> None:
        self.labels = tuple(launch.label or launch.kernel.entry for launch in launches)
        self.symbols = _symbols(launches)
        self.graphs: dict[tuple[int, ...], Any] = {}
        self._driver = driver
        self._bound: tuple[int, ...] | None = None
        self._launches: list[_Prepared] = []
        for number, launch in enumerate(launches):
            kernel = cast("PtxKernel", launch.kernel)
            early = overlaps and number > 0 and kernel.package.is_overlapping
            config = _config(driver.binding, kernel, stream, early=early)
            self._launches.append(
                _Prepared(launch, config, encoder, num_multiprocessors, shared_bytes)
            )

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
        """Write what follows from the symbols' values into the argument blocks."""
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
        if launch.is_empty:
            return
        self._driver.call("cuLaunchKernelEx", launch.config, launch.function, launch.address, 0)

    def launch_all(self) -> None:
        """Queue all launches."""
        for number in range(len(self._launches)):
            self.launch(number)

    def grids(self) -> list[Grid]:
        """Return the grid of each launch as it is bound."""
        return [launch.grid for launch in self._launches]


class _Prepared:
    """One launch: slots, pointers to them, and what depends on symbols."""

    def __init__(
        self,
        launch: Launch,
        config: Any,
        encoder: MapEncoder,
        num_multiprocessors: int,
        shared_bytes: int,
    ) -> None:
        kernel = cast("PtxKernel", launch.kernel)
        package = kernel.package
        if package.parameters and len(package.parameters) != len(launch.arguments):
            raise ShapeError(
                f"launch {launch.label!r} of {kernel.entry!r} passes {len(launch.arguments)} "
                f"arguments, the kernel takes {len(package.parameters)}"
            )
        if not 1 <= len(launch.grid) <= 3:
            raise ShapeError(
                f"launch {launch.label!r} has {len(launch.grid)} grid axes, not 1 to 3"
            )
        self._source, self.config, self.function = launch, config, kernel.function
        self._package, self._encoder = package, encoder
        self._multiprocessors, self._shared_limit = num_multiprocessors, shared_bytes
        split = package.split
        self._chunks = None if split is None else Size.parse(split.chunks)
        self._keep: list[object] = [kernel]
        count = len(launch.arguments)
        self._slots: NDArray[np.int64] = np.zeros(count, np.int64)
        words = MAP_BYTES // 8
        self._maps = aligned_words(words * len(package.tensor_maps)).reshape(-1, words)
        base = int(self._slots.ctypes.data)
        places = [base + 8 * i for i in range(count)]
        places += [int(row.ctypes.data) for row in self._maps]
        self._pointers: NDArray[np.int64] = np.array(places, np.int64)
        self.address = int(self._pointers.ctypes.data)
        self._names = [name for name, _ in package.parameters]
        self._grid = tuple(Size.parse(text) for text in package.grid)
        self._shapes = [tuple(Size.parse(text) for text in m.shape) for m in package.tensor_maps]
        self.grid: Grid = (0, 0, 0)
        self.is_empty = True
        self.is_open = any(
            isinstance(a, SymbolArgument | GridArgument) for a in launch.arguments
        ) or any(dim.symbol is not None for dim in launch.grid)
        for place, argument in enumerate(launch.arguments):
            self._slots[place] = self._constant(argument)

    def _constant(self, argument: Argument) -> int:
        if isinstance(argument, ScalarArgument):
            encoded = np.array([argument.value], argument.dtype.numpy).tobytes()
            return int.from_bytes(encoded.ljust(8, b"\0"), "little", signed=True)
        if not isinstance(argument, BufferArgument):
            return 0
        buffer = cast("PtxBuffer", argument.buffer)
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
        scalars = self._scalars()
        grid = self._grid_of(dims, scalars)
        self.is_empty = 0 in grid or 0 in dims
        if self.is_empty:
            self.grid = (0, 0, 0)
            return
        for row, found, shape in zip(
            self._maps, self._package.tensor_maps, self._shapes, strict=True
        ):
            self._describe(row, found, tuple(size.evaluate(scalars) for size in shape))
        self.grid = grid
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = grid
        split = self._package.split
        if split is not None and self._chunks is not None:
            chunks = self._chunks.evaluate(scalars)
            count, shared = split.launch(chunks, self._package.shared_bytes, self._shared_limit)
            self.config.blockDimX, self.config.sharedMemBytes = 32 * count, shared

    def _scalars(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, argument, slot in zip(
            self._names, self._source.arguments, self._slots, strict=False
        ):
            if not isinstance(argument, BufferArgument):
                found[name] = int(slot)
        return found

    def _grid_of(self, dims: Sequence[int], scalars: Mapping[str, int]) -> Grid:
        sizes = [size.evaluate(scalars) for size in self._grid] if self._grid else list(dims)
        sizes += [1] * (3 - len(sizes))
        if self._package.is_persistent:
            total = sizes[0] * sizes[1] * sizes[2]
            by = self._package.cluster
            return (min(-(-total // by) * by, self._multiprocessors // by * by), 1, 1)
        if any(size > limit for size, limit in zip(sizes, _LIMITS, strict=True)):
            raise ShapeError(
                f"launch {self._source.label!r} has a grid of {tuple(sizes)} workgroups, the "
                f"device takes {_LIMITS}; lower the tokens of a step"
            )
        return (sizes[0], sizes[1], sizes[2])

    def _describe(self, row: NDArray[np.int64], found: PackagedMap, shape: tuple[int, ...]) -> None:
        address = int(self._slots[found.parameter])
        self._encoder.encode(row, address, shape, found.box, found.itemsize)


def _config(binding: Any, kernel: PtxKernel, stream: Any, *, early: bool) -> Any:
    config = binding.CUlaunchConfig()
    config.blockDimX, config.blockDimY, config.blockDimZ = kernel.package.threads, 1, 1
    config.sharedMemBytes = kernel.package.shared_bytes
    config.hStream = stream
    if early:
        attribute = binding.CUlaunchAttribute()
        ids = binding.CUlaunchAttributeID
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
    return config


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
