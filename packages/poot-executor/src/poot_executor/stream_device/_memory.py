"""Device memory, and pinned host memory that uploads stream through."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, OutOfMemoryError
from poot_executor.stream_device._driver import DriverError, StreamDriver

__all__ = ["NO_TIMING", "PinnedMemory", "StreamBuffer", "UploadRing", "allocate_memory"]

Bytes = NDArray[np.uint8]
NO_TIMING = 2  # events without a time are cheaper; both vendors number this flag alike


class _Block:
    """Memory that is given back when nothing refers to it, unless the device is gone by then."""

    def __init__(self, driver: StreamDriver, pointer: Any, free: str) -> None:
        self.address = int(pointer)
        self._finalizer = weakref.finalize(self, _release, driver, free, self.address)
        self._finalizer.atexit = False  # the driver takes everything back with the process

    def release(self) -> None:
        """Give it back now; a second time does nothing."""
        self._finalizer()


def _release(driver: StreamDriver, free: str, address: int) -> None:
    with suppress(DeviceError):  # a lost device has no memory to give back
        driver.call(free, address)


class DeviceMemory(_Block):
    """Memory of the device."""


class PinnedMemory(_Block):
    """Memory of the host that the device reads without a copy; ``data`` are its bytes."""

    def __init__(self, driver: StreamDriver, nbytes: int) -> None:
        names = driver.dialect
        super().__init__(driver, driver.call(names.pin, nbytes, 0), names.unpin)
        raw = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.data: Bytes = np.ctypeslib.as_array(raw)


class StreamBuffer:
    """Memory of one device; implements ``poot_executor.Buffer``."""

    def __init__(self, memory: DeviceMemory, nbytes: int, label: str) -> None:
        self._memory: DeviceMemory | None = memory
        self.nbytes = nbytes
        self.label = label

    @property
    def memory(self) -> object:
        """The memory: whoever refers to it keeps it alive.

        Raises:
            DeviceError: If the buffer was freed.
        """
        return self._held()

    @property
    def address(self) -> int:
        """Where it lies on the device."""
        return self._held().address

    def _held(self) -> DeviceMemory:
        if self._memory is None:
            raise DeviceError(f"buffer {self.label!r} was freed")
        return self._memory

    def free(self) -> None:
        """Drop the buffer's hold; prepared sequences keep the memory. Twice is allowed."""
        self._memory = None

    def __repr__(self) -> str:
        return f"StreamBuffer({self.label!r}, {self.nbytes} bytes)"


def allocate_memory(driver: StreamDriver, nbytes: int, label: str) -> DeviceMemory:
    """Return device memory (not zeroed).

    Raises:
        OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
    """
    names = driver.dialect
    try:
        pointer = driver.call(names.allocate, max(nbytes, 1))
    except DriverError as error:
        if error.code != names.no_memory:
            raise
        free, total = driver.call(names.memory_info)
        raise OutOfMemoryError(
            f"buffer {label!r} needs {nbytes} bytes of device memory, {free} of {total} bytes are "
            "free; lower the number of KV blocks, sequences or step tokens, or use a smaller model",
            bytes_asked=nbytes,
            bytes_free=int(free),
        ) from None
    return DeviceMemory(driver, pointer, names.free)


class UploadRing:
    """Two pinned blocks: the host fills one while the device reads the other.

    Args:
        driver: The driver.
        stream: Where copies are queued.
        nbytes: Size of a block.
    """

    def __init__(self, driver: StreamDriver, stream: Any, nbytes: int) -> None:
        self._driver, self._stream, self._nbytes = driver, stream, nbytes
        self._blocks: list[PinnedMemory] = []
        self._events: list[Any] = []
        self._turn = 0
        self._used = 0

    def upload(self, address: int, source: Bytes) -> None:
        """Queue a copy of host bytes; they may be changed on return."""
        for start in range(0, source.nbytes, self._nbytes):
            self._upload(address + start, source[start : start + self._nbytes])

    def _upload(self, address: int, part: Bytes) -> None:
        driver, names = self._driver, self._driver.dialect
        while len(self._blocks) < 2:
            self._blocks.append(PinnedMemory(driver, self._nbytes))
        while len(self._events) < 2:
            self._events.append(driver.call(names.create_event, NO_TIMING))
        if self._used + part.nbytes > self._nbytes:
            # All copies out of this block are queued: mark their end, then take the other.
            driver.call(names.record, self._events[self._turn], self._stream)
            self._turn, self._used = 1 - self._turn, 0
            driver.call(names.await_event, self._events[self._turn])
        block = self._blocks[self._turn]
        block.data[self._used : self._used + part.nbytes] = part
        source = block.address + self._used
        driver.call(names.copy_in, address, source, part.nbytes, self._stream)
        self._used += -(-part.nbytes // 64) * 64

    def close(self) -> None:
        """Give the blocks back; the stream must be idle."""
        for event in self._events:
            self._driver.call(self._driver.dialect.destroy_event, event)
        for block in self._blocks:
            block.release()
        self._blocks, self._events = [], []
