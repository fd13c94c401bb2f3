"""Host memory as device buffers: anonymous pages, huge where they pay."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, OutOfMemoryError
from poot_cpu_device._topology import available_memory_bytes

__all__ = ["CpuBuffer", "allocate_bytes"]

Bytes = NDArray[np.uint8]

_HUGE_BYTES = 2 << 20
_CHECKED_BYTES = 64 << 20  # below it, asking the kernel how much is free costs more than it saves


class CpuBuffer:
    """Bytes of this process. Freed when ``free`` was called and no view or sequence is left."""

    def __init__(self, data: Bytes, label: str) -> None:
        self._data: Bytes | None = data
        self.nbytes = data.nbytes
        self.label = label
        self.address = int(data.ctypes.data)

    @property
    def data(self) -> Bytes:
        """The bytes, a view.

        Raises:
            DeviceError: If the buffer was freed.
        """
        if self._data is None:
            raise DeviceError(f"buffer {self.label!r} was freed")
        return self._data

    def free(self) -> None:
        """Drop the buffer's own hold on its memory; freeing twice is allowed."""
        self._data = None

    def __repr__(self) -> str:
        return f"CpuBuffer({self.label!r}, {self.nbytes} bytes)"


def allocate_bytes(nbytes: int, label: str) -> Bytes:
    """Return zeroed bytes, page-aligned; from 2 MiB on aligned to and backed by huge pages.

    Raises:
        OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
    """
    if nbytes < 0:
        raise ValueError(f"buffer {label!r} of {nbytes} bytes")
    if nbytes >= _CHECKED_BYTES:
        free = available_memory_bytes()
        if free is not None and nbytes > free:
            raise _out_of_memory(nbytes, free, label)
    is_huge = nbytes >= _HUGE_BYTES
    length = max(nbytes, 1) + (_HUGE_BYTES if is_huge else 0)
    try:
        if hasattr(mmap, "MAP_ANONYMOUS"):
            memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            memory = mmap.mmap(-1, length)
    except (OSError, OverflowError, ValueError):
        raise _out_of_memory(nbytes, available_memory_bytes(), label) from None
    whole: NDArray[Any] = np.frombuffer(memory, np.uint8)
    if not is_huge:
        return whole[:nbytes]
    skip = -int(whole.ctypes.data) % _HUGE_BYTES
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages = nbytes // _HUGE_BYTES * _HUGE_BYTES  # a huge page for the tail would waste memory
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            memory.madvise(mmap.MADV_HUGEPAGE, skip, pages)
    return whole[skip : skip + nbytes]


def _out_of_memory(nbytes: int, free: int | None, label: str) -> OutOfMemoryError:
    available = "an unknown number of" if free is None else str(free)
    return OutOfMemoryError(
        f"buffer {label!r} needs {nbytes} bytes of host memory, {available} bytes are free; "
        "use a smaller context or model",
        bytes_asked=nbytes,
        bytes_free=free,
    )
