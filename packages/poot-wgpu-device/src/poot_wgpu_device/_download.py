"""Results on their way to the host while later work runs: two staging buffers that alternate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError
from poot_wgpu_device._gpu import Gpu
from poot_wgpu_device._native import Flags

__all__ = ["DownloadPair", "WgpuDownload"]

Bytes = NDArray[np.uint8]
_LEAST_BYTES = 1 << 16
_WORD = 4  # copies take whole words
_POLLS = 1000


class _Slot:
    """A staging buffer, and what has become of mapping it."""

    def __init__(self, gpu: Gpu) -> None:
        ffi, lib = gpu.native.ffi, gpu.native.lib
        self.buffer: Any = None
        self.capacity, self.nbytes = 0, 0  # of the buffer; of what is mapped
        self.use = 0  # how often it was filled
        self.is_mapping = False
        self.status: int | None = None
        self.index = ffi.new("WGPUSubmissionIndex *")

        @ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)")
        def mapped(status: int, _message: Any, _a: Any, _b: Any) -> None:
            self.status = int(status)

        self.callback = mapped  # lives as long as the slot
        self.info = ffi.new("WGPUBufferMapCallbackInfo *")
        self.info.mode, self.info.callback = lib.WGPUCallbackMode_AllowProcessEvents, mapped


class WgpuDownload:
    """Implements ``poot_executor.PendingBytes``."""

    def __init__(self, pair: DownloadPair, slot: _Slot, spans: Sequence[tuple[int, int]]) -> None:
        self._pair, self._slot, self._spans = pair, slot, spans
        self._use = slot.use

    def wait(self) -> tuple[Bytes, ...]:
        """Return a copy of each piece.

        Raises:
            DeviceError: If two later ones were started, or the device was lost.
        """
        if self._slot.use != self._use:
            raise DeviceError("two later downloads were started; these bytes are gone")
        if not self._spans:
            return ()
        data = self._pair.take(self._slot)
        self._slot.use += 1  # it was asked for once
        return tuple(data[start : start + nbytes].copy() for start, nbytes in self._spans)


class DownloadPair:
    """Copies to the host that are queued like dispatches, two under way at most.

    Args:
        gpu: Where.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._slots: list[_Slot] = []
        self._turn = 0

    def start(self, pieces: Sequence[tuple[Any, int, int]]) -> WgpuDownload:
        """Queue copies of (buffer's handle, offset, bytes) and return what waits for them."""
        if not self._slots:
            self._slots = [_Slot(self._gpu), _Slot(self._gpu)]
        slot = self._slots[self._turn]
        self._turn = 1 - self._turn
        if slot.is_mapping:  # nobody asked for what it held
            self.take(slot)
        slot.use += 1
        spans: list[tuple[int, int]] = []
        copies: list[tuple[Any, int, int, int]] = []
        total = 0
        for handle, offset, nbytes in pieces:
            first = offset % _WORD
            size = -(-(first + nbytes) // _WORD) * _WORD
            spans.append((total + first, nbytes))
            if nbytes:
                copies.append((handle, offset - first, total, size))
            total += size
        if copies:
            self._copy(slot, copies, total)
        return WgpuDownload(self, slot, spans if copies else [])

    def _copy(self, slot: _Slot, copies: Sequence[tuple[Any, int, int, int]], total: int) -> None:
        lib = self._gpu.native.lib
        self._reserve(slot, total)
        slot.nbytes = total
        encoder = self._gpu.encoder()
        for handle, offset, target, size in copies:
            lib.wgpuCommandEncoderCopyBufferToBuffer(
                encoder, handle, offset, slot.buffer, target, size
            )
        slot.index[0] = self._gpu.submit(encoder)
        slot.status, slot.is_mapping = None, True
        lib.wgpuBufferMapAsync(slot.buffer, Flags.MAP_MODE_READ, 0, total, slot.info[0])
        self._gpu.check()

    def take(self, slot: _Slot) -> Bytes:
        """Return a copy of a slot's bytes once the work before it is done, and free the slot."""
        gpu, lib = self._gpu, self._gpu.native.lib
        for _ in range(_POLLS):
            if slot.status is not None:
                break
            lib.wgpuDevicePoll(gpu.device, True, slot.index)
            gpu.check()
        slot.is_mapping = False
        if slot.status != lib.WGPUMapAsyncStatus_Success:
            raise DeviceError(f"{gpu.adapter} does not give a result back")
        memory = lib.wgpuBufferGetConstMappedRange(slot.buffer, 0, slot.nbytes)
        found = np.frombuffer(gpu.native.ffi.buffer(memory, slot.nbytes), np.uint8).copy()
        lib.wgpuBufferUnmap(slot.buffer)
        return found

    def _reserve(self, slot: _Slot, nbytes: int) -> None:
        if nbytes <= slot.capacity:
            return
        lib = self._gpu.native.lib
        if slot.buffer is not None:
            lib.wgpuBufferRelease(slot.buffer)
            slot.buffer = None
        usage = Flags.MAP_READ | Flags.COPY_TARGET
        slot.capacity = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
        slot.buffer = self._gpu.buffer(slot.capacity, usage, "results")

    def close(self) -> None:
        """Give the staging memory back."""
        for slot in self._slots:
            if slot.buffer is not None:
                self._gpu.native.lib.wgpuBufferRelease(slot.buffer)
        self._slots = []
