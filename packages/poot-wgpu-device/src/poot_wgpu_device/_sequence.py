"""Prepared sequences: bind groups and arguments settled, grids by the symbols' values."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, ShapeError, UnsupportedError, f32
from poot_executor import (
    BufferArgument,
    GridArgument,
    GridDim,
    Launch,
    ScalarArgument,
    SymbolArgument,
)
from poot_kernel import Size
from poot_wgpu_device._binding import BoundArrays, BufferLimits, bind_buffers
from poot_wgpu_device._gpu import Gpu
from poot_wgpu_device._kernel import PipelineMaker, WgpuKernel
from poot_wgpu_device._memory import WgpuBuffer
from poot_wgpu_device._native import Flags

__all__ = ["Dispatch", "WgpuSequence"]

Words = NDArray[np.uint32]
Dispatch = tuple[Any, Any, int, int]
"""Pipeline, bind group, workgroups on x and on y."""

_MAX_STEPS = 128  # sets of sizes whose grids are kept


class WgpuSequence:
    """Launches whose memory is bound; holds buffers, kernels and bind groups alive.

    Attributes:
        symbols: Symbols that a step gives values for.
        labels: One for each launch.
    """

    def __init__(
        self, launches: Sequence[Launch], gpu: Gpu, maker: PipelineMaker, limits: BufferLimits
    ) -> None:
        self.labels = tuple(launch.label or launch.kernel.entry for launch in launches)
        self.symbols = _symbols(launches)
        self._gpu = gpu
        self._max_workgroups = int(gpu.adapter.limits.maxComputeWorkgroupsPerDimension)
        self._launches = [_Prepared(launch, limits) for launch in launches]
        self._steps: OrderedDict[tuple[int, ...], list[Dispatch | None]] = OrderedDict()
        self._bound: tuple[int, ...] | None = None
        alignment = int(gpu.adapter.limits.minUniformBufferOffsetAlignment)
        sizes = [-(-4 * x.num_words // alignment) * alignment for x in self._launches]
        self._starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self._words: Words = np.zeros(max(4, sum(sizes) // 4), np.uint32)
        self._places: list[int] = []
        self._sources: list[int] = []
        self._grid_places: list[tuple[int, GridDim]] = []
        self._groups: list[Any] = []
        self._uniform: Any = None
        if launches:
            self._bind(maker)

    def _bind(self, maker: PipelineMaker) -> None:
        gpu = self._gpu
        maker.make([(x.kernel, x.arrays.pattern) for x in self._launches])
        usage = Flags.UNIFORM | Flags.COPY_TARGET
        self._uniform = gpu.buffer(4 * len(self._words), usage, "arguments")
        for launch, start in zip(self._launches, self._starts, strict=True):
            launch.pipeline, layout = launch.kernel.pipelines[launch.arrays.pattern]
            ranges = [(self._uniform, start, 4 * launch.num_words), *launch.arrays.ranges]
            launch.group = gpu.group(layout, ranges)
            self._groups.append(launch.group)
            first = start // 4
            self._words[first : first + len(launch.words)] = launch.words
            for number, _, source in launch.open:
                if isinstance(source, GridDim):
                    self._grid_places.append((first + number, source))
                else:
                    self._places.append(first + number)
                    self._sources.append(self.symbols.index(source))

    def key(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the symbols' values.

        Raises:
            DeviceError: If a symbol has no value, or one that does not fit.
        """
        try:
            found = tuple([sizes[name] for name in self.symbols])
        except KeyError as error:
            raise DeviceError(f"symbol {error} has no value in this step, got {sizes}") from None
        if found and not 0 <= min(found) <= max(found) < 1 << 31:
            raise DeviceError(f"a symbol is negative or does not fit 31 bits in this step: {sizes}")
        return found

    def bind(self, key: tuple[int, ...]) -> list[Dispatch | None]:
        """Write the arguments that follow from the symbols' values; return the dispatches.

        A launch without workgroups is None.
        """
        steps = self._steps.get(key)
        if steps is None:
            values = dict(zip(self.symbols, key, strict=True))
            steps = [launch.dispatch(values, self._max_workgroups) for launch in self._launches]
            self._steps[key] = steps
            if len(self._steps) > _MAX_STEPS:
                self._steps.popitem(last=False)
        if key != self._bound:
            if self._places:
                self._words[self._places] = np.array(key, np.uint32)[self._sources]
            for place, dim in self._grid_places:
                self._words[place] = dim.count(dict(zip(self.symbols, key, strict=True)))
            if self._launches:
                self._gpu.write(self._uniform, 0, self._words.view(np.uint8))
            self._bound = key
        return steps

    def release(self) -> None:
        """Give bind groups and arguments back."""
        lib = self._gpu.native.lib
        groups, self._groups = self._groups, []
        for group in groups:
            lib.wgpuBindGroupRelease(group)
        if self._uniform is not None:
            lib.wgpuBufferRelease(self._uniform)
            self._uniform = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # preparing failed half-way
            self.release()


class _Prepared:
    """One launch: its words, and what depends on symbols."""

    def __init__(self, launch: Launch, limits: BufferLimits) -> None:
        kernel = self.kernel = cast("WgpuKernel", launch.kernel)
        package = kernel.package
        self._label = launch.label or kernel.entry
        if len(package.parameters) != len(launch.arguments):
            raise ShapeError(
                f"launch {self._label!r} of {kernel.entry!r} passes {len(launch.arguments)} "
                f"arguments, the kernel takes {len(package.parameters)}"
            )
        if not 1 <= len(launch.grid) <= 3:
            raise ShapeError(f"launch {self._label!r} has {len(launch.grid)} grid axes, not 1 to 3")
        self.pipeline: Any = None
        self.group: Any = None
        count = -(-(len(package.parameters) + 1) // 4) * 4
        self.num_words = count + len(kernel.tables)
        self.words: Words = np.zeros(self.num_words, np.uint32)
        self.words[count:] = kernel.tables
        self._grid = tuple(Size.parse(text) for text in package.grid)
        self._dims = launch.grid
        self._known: dict[str, int] = {}
        self.open: list[tuple[int, str, str | GridDim]] = []
        self._dispatches: dict[tuple[int, ...], Dispatch | None] = {}
        self._buffers: list[WgpuBuffer] = []
        self.arrays: BoundArrays = self._settle(launch, limits)
        self._grid_symbols = self._symbols_of_grid()

    def _settle(self, launch: Launch, limits: BufferLimits) -> BoundArrays:
        places: dict[int, tuple[WgpuBuffer, int]] = {}
        parameters = self.kernel.package.parameters
        for number, (argument, (name, kind)) in enumerate(
            zip(launch.arguments, parameters, strict=True)
        ):
            if isinstance(argument, BufferArgument) != (kind == "pointer"):
                raise ShapeError(
                    f"launch {self._label!r} passes {argument} for parameter {name!r}, a {kind}"
                )
            match argument:
                case BufferArgument(buffer, offset):
                    places[number] = (cast("WgpuBuffer", buffer), offset)
                    self._buffers.append(cast("WgpuBuffer", buffer))
                case SymbolArgument(symbol):
                    self.open.append((number, name, symbol))
                case GridArgument(axis):
                    self.open.append((number, name, launch.grid[axis]))
                case ScalarArgument():
                    self.words[number] = self._scalar(name, argument)
                    if argument.dtype.is_integer:
                        self._known[name] = int(argument.value)
        arrays = bind_buffers(self.kernel.arrays, places, limits, self._label)
        for number, offset in arrays.offsets.items():
            self.words[number] = offset
        return arrays

    def _symbols_of_grid(self) -> tuple[str, ...]:
        """Return the symbols on which the number of workgroups depends."""
        found = [dim.symbol for dim in self._dims]
        needed: frozenset[str] = frozenset().union(*(size.parameters() for size in self._grid))
        for _, name, source in self.open:
            if name in needed:
                found.append(source.symbol if isinstance(source, GridDim) else source)
        return tuple(dict.fromkeys(symbol for symbol in found if symbol is not None))

    def _scalar(self, name: str, argument: ScalarArgument) -> int:
        if argument.dtype is f32:
            return int(np.float32(argument.value).view(np.uint32))
        value = int(argument.value)
        if not -(1 << 31) <= value < 1 << 32:
            raise UnsupportedError(
                f"launch {self._label!r} passes {name} = {value}; WGSL integers have 32 bits"
            )
        return value & 0xFFFFFFFF

    def dispatch(self, values: Mapping[str, int], most: int) -> Dispatch | None:
        """Return the dispatch for the symbols' values; most launches see few of them change."""
        key = tuple([values[name] for name in self._grid_symbols])
        if key not in self._dispatches:
            if len(self._dispatches) >= _MAX_STEPS:
                self._dispatches.clear()
            self._dispatches[key] = self._dispatch(values, most)
        return self._dispatches[key]

    def _dispatch(self, values: Mapping[str, int], most: int) -> Dispatch | None:
        if any(dim.count(values) == 0 for dim in self._dims):
            return None
        scalars = dict(self._known)
        for _, name, source in self.open:
            known = isinstance(source, GridDim)
            scalars[name] = source.count(values) if known else values[source]
        total = math.prod(size.evaluate(scalars) for size in self._grid)
        if total <= 0:
            return None
        rows = -(-total // most)
        if rows > most:
            raise UnsupportedError(
                f"launch {self._label!r} has {total} workgroups, the adapter takes {most * most}"
            )
        return self.pipeline, self.group, -(-total // rows), rows


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
