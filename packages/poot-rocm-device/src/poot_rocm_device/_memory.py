"""Device memory, and pinned host memory that uploads stream through."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, OutOfMemoryError
from poot_rocm_device._driver import Driver, DriverError

__all__ = ["DeviceMemory", "PinnedMemory", "RocmBuffer", "UploadRing", "allocate_memory"]

Bytes = NDArray[np.uint8]
_NO_TIMING = 2  # events without a time are cheaper


class _Block:
    """Memory that is given back when nothing refers to it, unless the device is gone by then."""

    def __init__(self, driver: Driver, pointer: Any, free: str) -> None:
        self.address = int(pointer)
        self._finalizer = weakref.finalize(self, _release, driver, free, self.address)
        self._finalizer.atexit = False  # the runtime takes everything back with the process

    def release(self) -> None:
        """Give it back now; a second time does nothing."""
        self._finalizer()


def _release(driver: Driver, free: str, address: int) -> None:
    with suppress(DeviceError):  # a lost device has no memory to give back
        driver.call(free, address)


class DeviceMemory(_Block):
    """Memory of the device."""


class PinnedMemory(_Block):
    """Memory of the host that the device reads without a copy; ``data`` are its bytes."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        super().__init__(driver, driver.call("hipHostMalloc", nbytes, 0), "hipHostFree")
        self.data: Bytes = host_view(self.address, nbytes)


def host_view(address: int, nbytes: int) -> Bytes:
    """Return host memory as an array; whoever allocated it keeps it alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class RocmBuffer:
    """Memory of one device; implements ``poot_executor.Buffer``."""

    def __init__(self, memory: DeviceMemory, nbytes: int, label: str) -> None:
        self._memory: DeviceMemory | None = memory
        self.nbytes = nbytes
        self.label = label

    @property
    def memory(self) -> DeviceMemory:
        """The memory.

        Raises:
            DeviceError: If the buffer was freed.
        """
        if self._memory is None:
            raise DeviceError(f"buffer {self.label!r} was freed")
        return self._memory

    @property
    def address(self) -> int:
        """Where it lies on the device."""
        return self.memory.address

    def free(self) -> None:
        """Drop the buffer's hold; prepared sequences keep the memory. Twice is allowed."""
        self._memory = None

    def __repr__(self) -> str:
        return f"RocmBuffer({self.label!r}, {self.nbytes} bytes)"


def allocate_memory(driver: Driver, nbytes: int, label: str) -> DeviceMemory:
    """Return device memory (not zeroed).

    Raises:
        OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
    """
    try:
        pointer = driver.call("hipMalloc", max(nbytes, 1))
    except DriverError as error:
        if error.code != "hipErrorOutOfMemory":
            raise
        free, total = driver.call("hipMemGetInfo")
        raise OutOfMemoryError(
            f"buffer {label!r} needs {nbytes} bytes of device memory, {free} of {total} bytes are "
            "free; lower the number of KV blocks, sequences or step tokens, or use a smaller model",
            bytes_asked=nbytes,
            bytes_free=int(free),
        ) from None
    return DeviceMemory(driver, pointer, "hipFree")


class UploadRing:
    """Two pinned blocks: the host fills one while the device reads the other.

    Args:
        driver: HIP.
        stream: Where copies are queued.
        nbytes: Size of a block.
    """

    def __init__(self, driver: Driver, stream: Any, nbytes: int) -> None:
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
        driver = self._driver
        if not self._blocks:
            self._blocks = [PinnedMemory(driver, self._nbytes) for _ in range(2)]
            self._events = [driver.call("hipEventCreateWithFlags", _NO_TIMING) for _ in range(2)]
        if self._used + part.nbytes > self._nbytes:
            # All copies out of this block are queued: mark their end, then take the other.
            driver.call("hipEventRecord", self._events[self._turn], self._stream)
            self._turn, self._used = 1 - self._turn, 0
            driver.call("hipEventSynchronize", self._events[self._turn])
        block = self._blocks[self._turn]
        block.data[self._used : self._used + part.nbytes] = part
        source = block.address + self._used
        driver.call("hipMemcpyHtoDAsync", address, source, part.nbytes, self._stream)
        self._used += -(-part.nbytes // 64) * 64

    def close(self) -> None:
        """Give the blocks back; the stream must be idle."""
        for event in self._events:
            self._driver.call("hipEventDestroy", event)
        for block in self._blocks:
            block.release()
        self._blocks, self._events = [], []
