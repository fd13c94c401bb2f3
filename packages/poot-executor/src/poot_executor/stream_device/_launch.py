"""One prepared launch: its arguments in host memory, and what of them depends on symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import ShapeError
from poot_executor._device import (
    Argument,
    BufferArgument,
    GridArgument,
    GridDim,
    Launch,
    ScalarArgument,
    SymbolArgument,
)
from poot_executor.stream_device._kernel import StreamKernel
from poot_executor.stream_device._memory import StreamBuffer
from poot_kernel import Size

__all__ = ["Grid", "PreparedLaunch", "symbols_of"]

Grid = tuple[int, int, int]
_MOST_GROUPS = (2**31 - 1, 65535, 65535)  # of CUDA and HIP


class PreparedLaunch:
    """Slots of 8 bytes for the arguments, pointers to them, and the grid as it is bound.

    Args:
        launch: What is launched.
        more: Addresses of further arguments, behind those of the launch.

    Attributes:
        kernel: The kernel.
        address: Where the pointers to the arguments lie.
        grid: Workgroups along each axis; with an axis of 0 nothing is launched.
        is_open: Whether anything depends on symbols.
        max_invocations: Most along the first axis.

    Raises:
        ShapeError: If an offset, the number of arguments or of axes makes no sense.
    """

    max_invocations: ClassVar[int] = (2**31 - 1) * 1024  # CUDA counts workgroups alone

    def __init__(self, launch: Launch, more: Sequence[int] = ()) -> None:
        self.kernel = cast("StreamKernel", launch.kernel)
        package = self.kernel.package
        if len(package.parameters) != len(launch.arguments):
            raise ShapeError(
                f"launch {launch.label!r} of {package.name!r} passes {len(launch.arguments)} "
                f"arguments, the kernel takes {len(package.parameters)}"
            )
        if not 1 <= len(launch.grid) <= 3:
            raise ShapeError(
                f"launch {launch.label!r} has {len(launch.grid)} grid axes, not 1 to 3"
            )
        self._source = launch
        self._names = [name for name, _ in package.parameters]
        self._sizes = [Size.parse(text) for text in package.grid]
        self._keep: list[object] = [self.kernel]
        self.slots: NDArray[np.int64] = np.array(
            [self._constant(argument) for argument in launch.arguments], np.int64
        )
        base = int(self.slots.ctypes.data)
        places = [*range(base, base + 8 * len(self.slots), 8), *more]
        self._pointers: NDArray[np.int64] = np.array(places, np.int64)
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
        buffer = cast("StreamBuffer", argument.buffer)
        if not 0 <= argument.offset <= buffer.nbytes:
            raise ShapeError(
                f"launch {self._source.label!r} takes byte {argument.offset} of {buffer!r}"
            )
        self._keep.append(buffer.memory)
        return buffer.address + argument.offset

    def bind(self, values: Mapping[str, int]) -> None:
        """Write what follows from the symbols' values."""
        source = self._source
        dims = [dim.count(values) for dim in source.grid]
        for place, argument in enumerate(source.arguments):
            if isinstance(argument, SymbolArgument):
                self.slots[place] = values[argument.symbol]
            elif isinstance(argument, GridArgument):
                self.slots[place] = dims[argument.axis]
        scalars = {
            name: int(slot)
            for name, argument, slot in zip(self._names, source.arguments, self.slots, strict=True)
            if not isinstance(argument, BufferArgument)
        }
        # The kernel's own grid, which its code reads back; the plan's may be folded.
        sizes = [size.evaluate(scalars) for size in self._sizes] or dims
        if 0 in dims or 0 in sizes:
            self.grid = (0, 0, 0)
            return
        x, y, z = (*sizes, 1, 1)[:3]
        self.settle((x, y, z), scalars)

    def settle(self, grid: Grid, scalars: Mapping[str, int]) -> None:
        """Take the kernel's grid, none of whose axes is empty, and what follows from scalars.

        Raises:
            ShapeError: If the driver does not take such a grid.
        """
        del scalars
        threads = self.kernel.package.threads
        fits = all(size <= most for size, most in zip(grid, _MOST_GROUPS, strict=True))
        if not fits or grid[0] * threads > self.max_invocations:
            raise ShapeError(
                f"launch {self._source.label!r} has a grid of {grid} workgroups of {threads}; the "
                f"driver takes {_MOST_GROUPS} and {self.max_invocations} invocations along the "
                "first axis; lower the tokens of a step"
            )
        self.grid = grid


def symbols_of(launches: Sequence[Launch]) -> tuple[str, ...]:
    """Return the symbols that launches need values for.

    Raises:
        ShapeError: If a grid makes no sense.
    """
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
