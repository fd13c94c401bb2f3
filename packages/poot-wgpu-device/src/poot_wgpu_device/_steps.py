"""The step path: commands encoded by raw calls and queued, several steps ahead of the device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError
from poot_wgpu_device._gpu import Gpu, GpuError
from poot_wgpu_device._native import Flags
from poot_wgpu_device._sequence import Dispatch

__all__ = ["StepEncoder"]

_TIMED = 2048  # launches of one query set
_AHEAD = 64  # submissions after which finished ones are collected


class StepEncoder:
    """Encodes lists of dispatches.

    Args:
        gpu: Where.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._num_queued = 0
        self._queries: Any = None
        self._resolved: Any = None
        self._staging: Any = None

    def run(self, dispatches: Sequence[Dispatch | None]) -> None:
        """Queue dispatches, each seeing what those before it wrote.

        Raises:
            DeviceError: If the device was lost.
        """
        lib, null = self._gpu.native.lib, self._gpu.native.ffi.NULL
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_group = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        encoder = lib.wgpuDeviceCreateCommandEncoder(self._gpu.device, null)
        compute = lib.wgpuCommandEncoderBeginComputePass(encoder, null)
        last: Any = None
        for each in dispatches:
            if each is None:
                continue
            pipeline, group, columns, rows = each
            if pipeline is not last:
                set_pipeline(compute, pipeline)
                last = pipeline
            set_group(compute, 0, group, 0, null)
            dispatch(compute, columns, rows, 1)
        lib.wgpuComputePassEncoderEnd(compute)
        lib.wgpuComputePassEncoderRelease(compute)
        try:
            self._gpu.submit(encoder)
        except GpuError as error:
            raise DeviceError(f"{self._gpu.adapter} refuses a step: {error}") from error
        self._num_queued += 1
        if self._num_queued >= _AHEAD:
            self._num_queued = 0
            lib.wgpuDevicePoll(self._gpu.device, False, null)

    def timed(self, dispatches: Sequence[Dispatch | None]) -> NDArray[np.float64]:
        """Run dispatches and return the seconds that each took; 0 for those without workgroups."""
        seconds = np.zeros(len(dispatches))
        for start in range(0, len(dispatches), _TIMED):
            part = dispatches[start : start + _TIMED]
            measure = self._stamped if self._gpu.has_timestamps else self._clocked
            seconds[start : start + len(part)] = measure(part)
        return seconds

    def _clocked(self, dispatches: Sequence[Dispatch | None]) -> NDArray[np.float64]:
        seconds = np.zeros(len(dispatches))
        for number, each in enumerate(dispatches):
            if each is not None:
                begin = time.perf_counter()
                self.run([each])
                self._gpu.wait()
                seconds[number] = time.perf_counter() - begin
        return seconds

    def _stamped(self, dispatches: Sequence[Dispatch | None]) -> NDArray[np.float64]:
        gpu = self._gpu
        lib, ffi = gpu.native.lib, gpu.native.ffi
        self._make_queries()
        writes = ffi.new("WGPUPassTimestampWrites *")
        writes.querySet = self._queries
        descriptor = ffi.new("WGPUComputePassDescriptor *")
        descriptor.timestampWrites = writes
        encoder = gpu.encoder()
        used = [number for number, each in enumerate(dispatches) if each is not None]
        for number in used:
            each = dispatches[number]
            assert each is not None
            writes.beginningOfPassWriteIndex = 2 * number
            writes.endOfPassWriteIndex = 2 * number + 1
            compute = lib.wgpuCommandEncoderBeginComputePass(encoder, descriptor)
            lib.wgpuComputePassEncoderSetPipeline(compute, each[0])
            lib.wgpuComputePassEncoderSetBindGroup(compute, 0, each[1], 0, ffi.NULL)
            lib.wgpuComputePassEncoderDispatchWorkgroups(compute, each[2], each[3], 1)
            lib.wgpuComputePassEncoderEnd(compute)
            lib.wgpuComputePassEncoderRelease(compute)
        size = 16 * len(dispatches)
        lib.wgpuCommandEncoderResolveQuerySet(
            encoder, self._queries, 0, 2 * len(dispatches), self._resolved, 0
        )
        lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, self._resolved, 0, self._staging, 0, size)
        gpu.submit(encoder)
        stamps = gpu.read(self._staging, size).view(np.uint64).reshape(-1, 2)
        period = float(lib.wgpuQueueGetTimestampPeriod(gpu.queue)) * 1e-9
        seconds = np.zeros(len(dispatches))
        seconds[used] = (stamps[used, 1] - stamps[used, 0]).astype(np.float64) * period
        return seconds

    def _make_queries(self) -> None:
        if self._queries is not None:
            return
        lib, ffi = self._gpu.native.lib, self._gpu.native.ffi
        descriptor = ffi.new("WGPUQuerySetDescriptor *")
        descriptor.type, descriptor.count = lib.WGPUQueryType_Timestamp, 2 * _TIMED
        self._queries = lib.wgpuDeviceCreateQuerySet(self._gpu.device, descriptor)
        usage = Flags.QUERY_RESOLVE | Flags.COPY_SOURCE
        self._resolved = self._gpu.buffer(16 * _TIMED, usage, "timestamps")
        usage = Flags.MAP_READ | Flags.COPY_TARGET
        self._staging = self._gpu.buffer(16 * _TIMED, usage, "timestamps")

    def close(self) -> None:
        """Give queries back."""
        if self._queries is not None:
            lib = self._gpu.native.lib
            lib.wgpuBufferRelease(self._staging)
            lib.wgpuBufferRelease(self._resolved)
            lib.wgpuQuerySetRelease(self._queries)
            self._queries = None
