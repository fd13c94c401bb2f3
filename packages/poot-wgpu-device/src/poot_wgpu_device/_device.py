"""One WebGPU adapter behind the device protocol."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import CompileError, DeviceCaps, DeviceError, Settings, ShapeError, Target, i64
from poot_executor import Buffer, BufferArgument, GridDim, Launch, PreparedSequence, ScalarArgument
from poot_kernel.compile import CompiledObject, CompileService, KernelPackage
from poot_wgpu_device._adapter import choose_adapter, list_adapters
from poot_wgpu_device._binding import BufferLimits
from poot_wgpu_device._download import DownloadPair, WgpuDownload
from poot_wgpu_device._gpu import Gpu
from poot_wgpu_device._kernel import PipelineMaker, WgpuKernel
from poot_wgpu_device._memory import Memory, WgpuBuffer
from poot_wgpu_device._probe import AdapterHabits, known_habits
from poot_wgpu_device._read import READ_WORDS, read_kernel
from poot_wgpu_device._sequence import WgpuSequence
from poot_wgpu_device._steps import StepEncoder

__all__ = ["WgpuDevice", "open_device"]

Bytes = NDArray[np.uint8]

_GPU_WORKERS = 64  # WebGPU does not tell how many multiprocessors there are
_READ_BYTES = 1 << 20


def open_device(
    settings: Settings, threads: int | None = None, *, service: CompileService | None = None
) -> WgpuDevice:
    """Return a WebGPU adapter as a device.

    Args:
        settings: The kernel cache, which adapter to open, and whether shaders check accesses.
        threads: Of no use here; part of the entry point's signature.
        service: Compile service to share; by default one of the device's own.

    Raises:
        DeviceError: If there is no library, no adapter, no such one, or it does not open.
    """
    del threads
    return WgpuDevice(settings, service=service)


class WgpuDevice:
    """Implements ``poot_executor.Device``; a context manager. Used from one thread at a time.

    Attributes:
        target: What kernels for it are compiled for.
        caps: What was found of it.
        habits: What was measured of its arithmetic.
        service: Holds the kernel cache.
    """

    def __init__(self, settings: Settings, *, service: CompileService | None) -> None:
        self._closed = True  # until it is open
        adapter = choose_adapter(list_adapters(), settings.device)
        self._gpu = Gpu(adapter)
        self._owns_service = service is None
        self.service = service if service is not None else CompileService(settings)
        self.habits: AdapterHabits = known_habits(self._gpu, self.service.cache)
        self._memory = Memory(self._gpu)
        self._downloads = DownloadPair(self._gpu)
        limits = adapter.limits
        self._limits = BufferLimits(
            max_bindings=int(limits.maxStorageBuffersPerShaderStage),
            max_bytes=int(limits.maxStorageBufferBindingSize) // 256 * 256,
            alignment=int(limits.minStorageBufferOffsetAlignment),
        )
        self.target = Target("wgpu", "wgsl", self.habits.features)
        self.caps = DeviceCaps(
            name=adapter.name,
            vector_bytes=16,
            subgroup_size=self.habits.subgroup_size,
            num_workers=(os.cpu_count() or 1) if adapter.is_software else _GPU_WORKERS,
            shared_bytes=int(limits.maxComputeWorkgroupStorageSize),
            memory_bytes=self._memory.total_bytes,
            max_workgroup=min(
                int(limits.maxComputeInvocationsPerWorkgroup),
                int(limits.maxComputeWorkgroupSizeX),
            ),
            max_binding_bytes=self._limits.max_bytes,
            may_contract=self.habits.may_contract,
            is_software=adapter.is_software,
        )
        self._maker = PipelineMaker(self._gpu, self.service.cache, is_checked=settings.check)
        self._encoder = StepEncoder(self._gpu)
        self._closed = False

    # ---- memory

    def allocate(self, nbytes: int, label: str) -> WgpuBuffer:
        """Return zeroed memory, aligned to every offset that an adapter asks for.

        Raises:
            OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
        """
        self._check_open()
        return self._memory.allocate(nbytes, label)

    def import_host(self, array: NDArray[Any], label: str) -> None:
        """Return None: shaders read device memory."""
        del array, label

    def upload(self, buffer: Buffer, data: NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array into the buffer; the array may be changed on return."""
        self._check_open()
        if not data.flags.c_contiguous:
            raise ShapeError(f"a device takes C-contiguous arrays, got strides {data.strides}")
        self._memory.upload(cast("WgpuBuffer", buffer), data.reshape(-1).view(np.uint8), offset)

    def download(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> Bytes:
        """Return a copy of the buffer's bytes, once all work that was handed over is done."""
        self._check_open()
        length = buffer.nbytes - offset if nbytes is None else nbytes
        return self._memory.download(cast("WgpuBuffer", buffer), offset, length)

    def start_download(self, pieces: Sequence[tuple[Buffer, int, int]]) -> WgpuDownload:
        """Queue a copy of (buffer, offset, bytes) each; later work may be queued before it is read."""
        self._check_open()
        found: list[tuple[Any, int, int]] = []
        for buffer, offset, nbytes in pieces:
            self._memory.check_span(cast("WgpuBuffer", buffer), offset, nbytes)
            found.append((cast("WgpuBuffer", buffer).handle, offset, nbytes))
        return self._downloads.start(found)

    def view(self, buffer: Buffer) -> None:
        """Return None: the host does not see device memory."""
        del buffer

    # ---- code

    def load(self, objects: Sequence[CompiledObject]) -> tuple[Mapping[str, WgpuKernel], ...]:
        """Return the kernels of shaders; pipelines are made when sequences are prepared."""
        self._check_open()
        loaded: list[Mapping[str, WgpuKernel]] = []
        for compiled in objects:
            if compiled.kind != "gpu-package" or compiled.target.api != "wgpu":
                raise CompileError(
                    f"{compiled.kind} for {compiled.target} cannot be loaded on {self.target}"
                )
            kernel = WgpuKernel(KernelPackage.decode(compiled.data))
            if missing := set(compiled.entries) - {kernel.entry}:
                raise CompileError(f"object {compiled.key[:16]} has no entry {', '.join(missing)}")
            loaded.append({kernel.entry: kernel})
        return tuple(loaded)

    def prepare(self, launches: Sequence[Launch]) -> WgpuSequence:
        """Settle bindings, arguments and pipelines of a sequence.

        Raises:
            ShapeError: If a launch does not fit its kernel or its buffers.
            CompileError: If the adapter refuses a shader; names where its source is kept.
        """
        self._check_open()
        return WgpuSequence(launches, self._gpu, self._maker, self._limits)

    # ---- running

    def capture(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> bool:
        """Settle the dispatches for these sizes; commands themselves can be used only once."""
        self._check_open()
        sequence = cast("WgpuSequence", prepared)
        sequence.bind(sequence.key(sizes))
        return True

    def run(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> None:
        """Encode and queue the sequence; returns before it is done.

        Raises:
            DeviceError: If the device is closed or was lost, or a symbol has no value.
        """
        self._check_open()
        sequence = cast("WgpuSequence", prepared)
        self._encoder.run(sequence.bind(sequence.key(sizes)))

    def synchronize(self) -> None:
        """Wait until all work that was handed over is done."""
        self._check_open()
        self._gpu.wait()

    def time_sequence(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 5
    ) -> NDArray[np.float64]:
        """Run the sequence ``repeat`` times and return (num_launches,) median seconds of each."""
        self._check_open()
        sequence = cast("WgpuSequence", prepared)
        dispatches = sequence.bind(sequence.key(sizes))
        self._encoder.run(dispatches)
        self._gpu.wait()
        taken = [self._encoder.timed(dispatches) for _ in range(repeat)]
        return np.median(np.stack(taken), axis=0)

    def read_bandwidth_gb_s(self, nbytes: int, *, repeat: int = 5) -> float:
        """Return how fast a shader reads ``nbytes`` of random data, GB/s.

        More than one binding holds is read piece by piece.
        """
        self._check_open()
        piece = min(self._limits.max_bytes, max(nbytes, 1 << 16)) // (1 << 16) << 16
        sizes = [piece] * max(1, nbytes // piece)
        kernel = read_kernel()
        result = self.allocate(1 << 20, "read result")
        pattern = np.random.default_rng(0).integers(0, 256, _READ_BYTES, np.uint8)
        launches: list[Launch] = []
        buffers = [result]
        for size in sizes:
            buffer = self.allocate(size, "read probe")
            buffers.append(buffer)
            for start in range(0, size, _READ_BYTES):
                part = pattern[: min(_READ_BYTES, size - start)] ^ np.uint8(start >> 20 & 255)
                self.upload(buffer, part, start)
            groups = size // 4 // READ_WORDS
            arguments = (
                BufferArgument(buffer),
                BufferArgument(result),
                ScalarArgument(groups, i64),
            )
            launches.append(
                Launch(kernel=kernel, arguments=arguments, grid=(GridDim(groups),), label="read")
            )
        seconds = self.time_sequence(self.prepare(launches), {}, repeat=repeat)
        for buffer in buffers:
            buffer.free()
        return float(sum(sizes) / seconds.sum() / 1e9)

    def close(self) -> None:
        """Give the device back and, if it is the device's own, the compile service."""
        if self._closed:
            return
        self._closed = True
        self._encoder.close()
        self._downloads.close()
        self._memory.close()
        self._gpu.close()
        if self._owns_service:
            self.service.close()

    def __enter__(self) -> WgpuDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # opening failed half-way
            self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the WebGPU device is closed")
