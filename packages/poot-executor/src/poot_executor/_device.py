"""The device protocol: memory, code, and launch sequences that are prepared once and run per step.

A device package implements ``Device`` and registers a function
``open_device(settings: Settings, threads: int | None = None) -> Device`` in the entry-point group
``poot.devices``. The planner turns a program into ``Launch`` records; nothing above a device knows
how they reach the hardware.

Order: launches of a sequence run one after the other, each seeing all writes of those before it.
``run`` may return before the work is done; ``download``, ``synchronize`` and ``view`` wait for it. A
device that queues also uploads brings bytes back while later work runs: ``start_download``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceCaps, DType, Target
from poot_kernel.compile import CompiledObject

__all__ = [
    "Argument",
    "Buffer",
    "BufferArgument",
    "Device",
    "GridArgument",
    "GridDim",
    "KernelHandle",
    "Launch",
    "PendingBytes",
    "PreparedSequence",
    "ScalarArgument",
    "SymbolArgument",
]

Bytes = NDArray[np.uint8]


class Buffer(Protocol):
    """Memory of one device."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...

    @property
    def label(self) -> str:
        """What it holds, for messages and profiles."""
        ...

    def free(self) -> None:
        """Give the memory back; prepared sequences and views that use it keep it alive.

        Freeing twice is allowed.
        """
        ...


class KernelHandle(Protocol):
    """A loaded kernel, ready to be launched."""

    @property
    def entry(self) -> str:
        """Name of the function."""
        ...


@dataclass(frozen=True, slots=True)
class BufferArgument:
    """The address of a buffer's byte ``offset``."""

    buffer: Buffer
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SymbolArgument:
    """The value that a symbol (``T``, ``R``, ``L``) has in the step, as i64."""

    symbol: str


@dataclass(frozen=True, slots=True)
class GridArgument:
    """The number of tiles that the launch has along ``axis`` of its grid in the step, as i64."""

    axis: int


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A constant of ``dtype``; narrow types stand in the low bytes of an 8-byte slot."""

    value: int | float
    dtype: DType


Argument = BufferArgument | SymbolArgument | GridArgument | ScalarArgument


@dataclass(frozen=True, slots=True)
class GridDim:
    """One axis of a grid: ceil(coefficient * symbol / divisor) tiles, symbol None meaning 1.

    >>> GridDim(coefficient=3, symbol="T", divisor=4).count({"T": 5})
    4
    """

    coefficient: int = 1
    symbol: str | None = None
    divisor: int = 1

    def count(self, sizes: Mapping[str, int]) -> int:
        """Return the number of tiles for given symbol values."""
        value = self.coefficient * (1 if self.symbol is None else sizes[self.symbol])
        return -(-value // self.divisor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel over a grid of tiles.

    Attributes:
        kernel: What ``Device.load`` returned.
        arguments: In the order of the kernel's parameters.
        grid: One to three axes; tiles are numbered with the last axis fastest. Any axis of 0 tiles
            makes the launch do nothing.
        grain: Fewest tiles worth handing to a worker at once; host only.
        scratch_bytes: Private scratch of each worker (host) that the kernel needs.
        workgroup: Invocations of a workgroup; GPUs only.
        shared_bytes: Dynamic workgroup memory; GPUs only.
        label: For profiles.
    """

    kernel: KernelHandle
    arguments: tuple[Argument, ...]
    grid: tuple[GridDim, ...]
    grain: int = 1
    scratch_bytes: int = 0
    workgroup: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    label: str = ""


class PreparedSequence(Protocol):
    """Launches whose addresses and tables are settled; only symbol values are open."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols that ``run`` needs values for."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the launches, in order."""
        ...


class PendingBytes(Protocol):
    """Bytes on their way to the host."""

    def wait(self) -> tuple[Bytes, ...]:
        """Return a copy of each piece once the work before it is done; what came later may still run.

        Raises:
            DeviceError: If the device was lost.
        """
        ...


class Device(Protocol):
    """One opened device. Used from one thread at a time."""

    @property
    def target(self) -> Target:
        """What kernels for it are compiled for."""
        ...

    @property
    def caps(self) -> DeviceCaps:
        """What was measured of it."""
        ...

    def allocate(self, nbytes: int, label: str) -> Buffer:
        """Return zeroed memory, aligned to 64 bytes at least.

        Raises:
            OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
        """
        ...

    def import_host(self, array: NDArray[Any], label: str) -> Buffer | None:
        """Return a buffer over a C-contiguous host array without a copy, or None if it cannot.

        The buffer keeps the array alive; kernels may write to it if it is writable.
        """
        ...

    def upload(self, buffer: Buffer, data: NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array into the buffer, ``offset`` in bytes."""
        ...

    def download(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> Bytes:
        """Return a copy of the buffer's bytes (by default all from ``offset``)."""
        ...

    def start_download(self, pieces: Sequence[tuple[Buffer, int, int]]) -> PendingBytes | None:
        """Queue a copy of pieces of buffers: (buffer, offset, bytes) each.

        Two may be under way; to start a third ends the first, which cannot be read any more.

        Returns:
            What waits for them, or None where nothing is queued: work is done when it was handed over,
            or uploads wait for it.
        """
        ...

    def view(self, buffer: Buffer) -> Bytes | None:
        """Return the buffer's bytes as a writable host view, or None if the host cannot see them.

        A later ``run`` changes what the view shows.
        """
        ...

    def load(self, objects: Sequence[CompiledObject]) -> tuple[Mapping[str, KernelHandle], ...]:
        """Return for each object its kernels by entry name.

        Raises:
            CompileError: If an object cannot be loaded on this device.
        """
        ...

    def prepare(self, launches: Sequence[Launch]) -> PreparedSequence:
        """Settle everything of a sequence that does not depend on symbol values."""
        ...

    def capture(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> bool:
        """Record the sequence for these sizes so that ``run`` replays it; False if of no use here."""
        ...

    def run(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> None:
        """Run the sequence with these symbol values.

        Raises:
            DeviceError: If the device is closed or was lost, or a symbol has no value.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all work that was handed over is done."""
        ...

    def time_sequence(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 5
    ) -> NDArray[np.float64]:
        """Run the sequence ``repeat`` times and return (num_launches,) median seconds of each."""
        ...

    def read_bandwidth_gb_s(self, nbytes: int, *, repeat: int = 5) -> float:
        """Return how fast kernels read ``nbytes`` of random data (median of ``repeat``), GB/s."""
        ...

    def close(self) -> None:
        """Give back threads, memory and the driver; closing twice is allowed."""
        ...
