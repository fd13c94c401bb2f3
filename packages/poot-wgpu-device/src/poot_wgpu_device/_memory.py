"""Device memory: storage buffers, uploads by queue writes, downloads through mapped staging."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, OutOfMemoryError, ShapeError
from poot_wgpu_device._gpu import Gpu, GpuError
from poot_wgpu_device._native import Flags

__all__ = ["Memory", "WgpuBuffer"]

Bytes = NDArray[np.uint8]

_ROUND = 256  # no alignment that an adapter may ask of an offset is larger
_WORD = 4  # copies and writes take whole words
_STAGING_BYTES = 16 << 20
_CHUNK_BYTES = 64 << 20
_CHECKED_BYTES = 64 << 20


class WgpuBuffer:
    """Memory of one adapter; implements ``poot_executor.Buffer``.

    Attributes:
        nbytes: Size in bytes.
        label: What it holds.
        size: Bytes that were allocated.
    """

    def __init__(self, memory: Memory, handle: Any, nbytes: int, label: str, size: int) -> None:
        self._memory, self._handle = memory, handle
        self.nbytes, self.label, self.size = nbytes, label, size
        self._is_freed = False

    @property
    def handle(self) -> Any:
        """The library's object.

        Raises:
            DeviceError: If the buffer was freed.
        """
        if self._is_freed:
            raise DeviceError(f"buffer {self.label!r} was freed")
        return self._handle

    def free(self) -> None:
        """Drop the buffer's own hold; bind groups keep the memory. Freeing twice is allowed."""
        if not self._is_freed:
            self._is_freed = True
            self._memory.release(self._handle, self.size)

    def __del__(self) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"WgpuBuffer({self.label!r}, {self.nbytes} bytes)"


class Memory:
    """Allocates, fills and reads the buffers of one device.

    Attributes:
        held_bytes: Bytes of all buffers that are not freed.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.held_bytes = 0
        self._staging: Any = None
        self._staging_bytes = 0

    @property
    def total_bytes(self) -> int:
        """What can be allocated in all as far as it is known: of a software adapter the host's."""
        return _host_bytes("MemTotal") if self._gpu.adapter.is_software else 0

    def allocate(self, nbytes: int, label: str) -> WgpuBuffer:
        """Return zeroed memory.

        Raises:
            OutOfMemoryError: With ``bytes_asked`` and ``bytes_free`` (None if the driver is silent).
        """
        if nbytes < 0:
            raise ShapeError(f"buffer {label!r} of {nbytes} bytes")
        size = max(_ROUND, -(-nbytes // _ROUND) * _ROUND)
        largest = int(self._gpu.adapter.limits.maxBufferSize)
        free = self._free_bytes()
        if size > largest or (free is not None and size >= _CHECKED_BYTES and size > free):
            raise self._out_of_memory(nbytes, label, min(largest, free or largest))
        usage = Flags.STORAGE | Flags.COPY_SOURCE
        try:
            handle = self._gpu.buffer(size, usage | Flags.COPY_TARGET, label)
        except GpuError as error:
            if not error.is_memory:
                raise DeviceError(
                    f"{self._gpu.adapter} refuses buffer {label!r} of {nbytes} bytes: {error}"
                ) from error
            raise self._out_of_memory(nbytes, label, free, str(error)) from error
        self.held_bytes += size
        return WgpuBuffer(self, handle, nbytes, label, size)

    def release(self, handle: Any, size: int) -> None:
        """Give a buffer back."""
        self.held_bytes -= size
        self._gpu.native.lib.wgpuBufferRelease(handle)

    def _free_bytes(self) -> int | None:
        return _host_bytes("MemAvailable") if self._gpu.adapter.is_software else None

    def _out_of_memory(
        self, nbytes: int, label: str, free: int | None, why: str = ""
    ) -> OutOfMemoryError:
        told = "the driver does not tell how many are free" if free is None else f"{free} are free"
        reason = f" ({why.splitlines()[0]})" if why else ""
        return OutOfMemoryError(
            f"buffer {label!r} needs {nbytes} bytes on {self._gpu.adapter}, which holds "
            f"{self.held_bytes}; {told}{reason}; use a smaller context, fewer sequences or a "
            "smaller model",
            bytes_asked=nbytes,
            bytes_free=free,
        )

    # ---- copies

    def upload(self, buffer: WgpuBuffer, data: Bytes, offset: int) -> None:
        """Queue writes of bytes; pieces of words at the ends keep their neighbours."""
        self.check_span(buffer, offset, data.nbytes)
        first, last = offset % _WORD, -(offset + data.nbytes) % _WORD
        if first or (last and offset + data.nbytes != buffer.nbytes):
            begin, end = offset - first, offset + data.nbytes + last
            whole = self.download(buffer, begin, min(end, buffer.nbytes) - begin)
            whole[first : first + data.nbytes] = data
            data, offset = whole, begin
        tail = data.nbytes % _WORD
        body = data.nbytes - tail
        for start in range(0, body, _CHUNK_BYTES):
            part = data[start : min(body, start + _CHUNK_BYTES)]
            self._gpu.write(buffer.handle, offset + start, part)
            if start + _CHUNK_BYTES < body:  # the library holds what is written until it is queued
                self._gpu.flush()
        if tail:
            word = np.zeros(_WORD, np.uint8)
            word[:tail] = data[body:]
            self._gpu.write(buffer.handle, offset + body, word)

    def download(self, buffer: WgpuBuffer, offset: int, nbytes: int) -> Bytes:
        """Return a copy of bytes, once all work that was handed over is done."""
        self.check_span(buffer, offset, nbytes)
        first = offset - offset % _WORD
        end = -(-(offset + nbytes) // _WORD) * _WORD
        parts: list[Bytes] = []
        for start in range(first, end, _STAGING_BYTES):
            size = min(_STAGING_BYTES, end - start)
            self._reserve(size)
            encoder = self._gpu.encoder()
            self._gpu.native.lib.wgpuCommandEncoderCopyBufferToBuffer(
                encoder, buffer.handle, start, self._staging, 0, size
            )
            self._gpu.submit(encoder)
            parts.append(self._gpu.read(self._staging, size))
        whole = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
        return whole[offset - first : offset - first + nbytes]

    def _reserve(self, nbytes: int) -> None:
        if nbytes <= self._staging_bytes:
            return
        lib = self._gpu.native.lib
        if self._staging is not None:
            lib.wgpuBufferRelease(self._staging)
        usage = Flags.MAP_READ | Flags.COPY_TARGET
        size = min(_STAGING_BYTES, max(1 << 16, 1 << (nbytes - 1).bit_length()))
        self._staging = self._gpu.buffer(size, usage, "staging")
        self._staging_bytes = size

    def close(self) -> None:
        """Give the staging memory back."""
        if self._staging is not None:
            self._gpu.native.lib.wgpuBufferRelease(self._staging)
            self._staging, self._staging_bytes = None, 0

    def check_span(self, buffer: WgpuBuffer, offset: int, nbytes: int) -> None:
        """Raise ``ShapeError`` if bytes lie outside a buffer."""
        if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
            raise ShapeError(
                f"bytes {offset}..{offset + nbytes} lie outside buffer {buffer.label!r} of "
                f"{buffer.nbytes} bytes"
            )


def _host_bytes(name: str) -> int:
    """Return a figure of the host's memory; its pages in all where the system tells no more."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
