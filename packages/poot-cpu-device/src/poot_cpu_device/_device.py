"""The host CPU behind the device protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import CompileError, DeviceCaps, DeviceError, Settings, ShapeError, Target
from poot_cpu_device._kernel import CpuKernel
from poot_cpu_device._memory import Bytes, CpuBuffer, allocate_bytes
from poot_cpu_device._runtime import load_runtime
from poot_cpu_device._runtime_ir import READ_TILE_BYTES
from poot_cpu_device._sequence import CpuSequence
from poot_cpu_device._team import ThreadTeam
from poot_cpu_device._topology import (
    available_memory_bytes,
    cache_bytes,
    processor_name,
    team_size,
)
from poot_executor import Buffer, BufferArgument, GridDim, Launch, PreparedSequence
from poot_kernel.compile import CompiledObject, CompileService, host_target, load_objects

__all__ = ["CpuDevice", "open_device"]

_READ_GRAIN = 8  # tiles of READ_TILE_BYTES


def open_device(
    settings: Settings, threads: int | None = None, *, service: CompileService | None = None
) -> CpuDevice:
    """Return the host CPU as a device.

    Args:
        settings: Feature mask, kernel cache and team size.
        threads: Team size; by default ``settings.threads``, then the physical cores that affinity
            and cgroup quota leave.
        service: Compile service to share; by default one of the device's own.

    Raises:
        DeviceError: If ``threads`` is less than 1.
        UnsupportedError: On a processor that poot has no kernels for.
    """
    return CpuDevice(settings, threads, service=service)


class CpuDevice:
    """Implements ``poot_executor.Device``; a context manager. Steps of one device exclude each other.

    Attributes:
        target: What kernels for it are compiled for.
        caps: What was found of it.
        service: Compiles for it; holds the kernel cache.
    """

    def __init__(
        self, settings: Settings, threads: int | None, *, service: CompileService | None
    ) -> None:
        asked = settings.threads if threads is None else threads
        num_threads = team_size() if asked is None else asked
        if num_threads < 1:
            raise DeviceError(f"a host device needs 1 thread at least, got {num_threads}")
        self.target: Target = host_target(settings)
        self._owns_service = service is None
        self.service = service if service is not None else CompileService(settings)
        self._runtime = load_runtime(self.service, self.target)
        self._team = ThreadTeam(self._runtime, num_threads)
        self._closed = False
        vector_bytes = _vector_bytes(self.target)
        self.caps = DeviceCaps(
            name=processor_name(),
            vector_bytes=vector_bytes,
            subgroup_size=vector_bytes // 4,
            num_workers=num_threads,
            shared_bytes=cache_bytes(2) or 1 << 20,
            memory_bytes=available_memory_bytes() or 0,
        )

    @property
    def num_threads(self) -> int:
        """Size of the thread team."""
        return self._team.num_threads

    def allocate(self, nbytes: int, label: str) -> CpuBuffer:
        """Return zeroed memory, page-aligned, on huge pages from 2 MiB on."""
        return CpuBuffer(allocate_bytes(nbytes, label), label)

    def import_host(self, array: NDArray[Any], label: str) -> CpuBuffer:
        """Return a buffer over the array itself (a memory-mapped file, say)."""
        return CpuBuffer(_flat(array), label)

    def upload(self, buffer: Buffer, data: NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array into the buffer."""
        source = _flat(data)
        self._span(buffer, offset, source.nbytes)[:] = source

    def download(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> Bytes:
        """Return a copy of the buffer's bytes."""
        length = buffer.nbytes - offset if nbytes is None else nbytes
        return self._span(buffer, offset, length).copy()

    def start_download(self, pieces: Sequence[tuple[Buffer, int, int]]) -> None:
        """Return None: work is done when it was handed over."""
        del pieces

    def view(self, buffer: Buffer) -> Bytes:
        """Return the buffer's bytes themselves."""
        return cast("CpuBuffer", buffer).data

    def load(self, objects: Sequence[CompiledObject]) -> tuple[Mapping[str, CpuKernel], ...]:
        """Load objects into one mapping and return their entries."""
        for compiled in objects:
            if compiled.kind != "llvm-host-object" or compiled.target.arch != self.target.arch:
                raise CompileError(
                    f"{compiled.kind} for {compiled.target} cannot be loaded on {self.target}"
                )
        code = load_objects([compiled.data for compiled in objects], self.target.arch)
        loaded: list[Mapping[str, CpuKernel]] = []
        for compiled, symbols in zip(objects, code.symbols, strict=True):
            if missing := [name for name in compiled.entries if name not in symbols]:
                raise CompileError(f"object {compiled.key[:16]} has no entry {', '.join(missing)}")
            loaded.append(
                {
                    name: CpuKernel(entry=name, address=symbols[name], code=code)
                    for name in compiled.entries
                }
            )
        return tuple(loaded)

    def prepare(self, launches: Sequence[Launch]) -> CpuSequence:
        """Settle the launch table of a sequence.

        Raises:
            ShapeError: If a grid, a grain or an offset makes no sense.
        """
        sequence = CpuSequence(launches)
        self._team.reserve_scratch(sequence.scratch_bytes)
        return sequence

    def capture(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> bool:
        """Return False: a step is one call for any sizes."""
        del prepared, sizes
        return False

    def run(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> None:
        """Run the sequence; it is done on return."""
        if self._closed:
            raise DeviceError("the host device is closed")
        sequence = cast("CpuSequence", prepared)
        sequence.bind(sizes)
        self._team.step(sequence.address)

    def synchronize(self) -> None:
        """Do nothing: ``run`` waits."""

    def time_sequence(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 5
    ) -> NDArray[np.float64]:
        """Run the sequence ``repeat`` times and return (num_launches,) median seconds of each."""
        sequence = cast("CpuSequence", prepared)
        self.run(sequence, sizes)
        sequence.record_stamps(enabled=True)
        try:
            stamps: list[NDArray[np.int64]] = []
            for _ in range(repeat):
                self.run(sequence, sizes)
                stamps.append(sequence.stamps())
        finally:
            sequence.record_stamps(enabled=False)
        return self._team.seconds(np.median(sequence.durations(np.stack(stamps)), axis=0))

    def read_bandwidth_gb_s(self, nbytes: int, *, repeat: int = 5) -> float:
        """Return how fast the team reads ``nbytes`` (rounded up to 32 KiB) of random data, GB/s."""
        tiles = max(1, -(-nbytes // READ_TILE_BYTES))
        buffer = self.allocate(tiles * READ_TILE_BYTES, "read probe")
        words = buffer.data.view(np.uint64)
        # One random MiB, varied: zeros or repeated pages could be merged or compressed.
        pattern = np.random.default_rng(0).integers(0, 1 << 63, 1 << 17, np.uint64)
        for start in range(0, len(words), len(pattern)):
            part = words[start : start + len(pattern)]
            np.bitwise_xor(pattern[: len(part)], np.uint64(start), out=part)
        read = CpuKernel(
            entry="poot_read", address=self._runtime.read_address, code=self._runtime.code
        )
        launch = Launch(
            kernel=read,
            arguments=(BufferArgument(buffer),),
            grid=(GridDim(coefficient=tiles),),
            grain=_READ_GRAIN,
            label="read",
        )
        seconds = self.time_sequence(self.prepare([launch]), {}, repeat=repeat)
        return float(buffer.nbytes / seconds[0] / 1e9)

    def close(self) -> None:
        """End the team and, if it is the device's own, the compile service."""
        if self._closed:
            return
        self._closed = True
        self._team.close()
        if self._owns_service:
            self.service.close()

    def __enter__(self) -> CpuDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # opening failed half-way
            self.close()

    def _span(self, buffer: Buffer, offset: int, nbytes: int) -> Bytes:
        if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
            raise ShapeError(
                f"bytes {offset}..{offset + nbytes} lie outside buffer {buffer.label!r} of "
                f"{buffer.nbytes} bytes"
            )
        return cast("CpuBuffer", buffer).data[offset : offset + nbytes]


def _vector_bytes(target: Target) -> int:
    if "avx512f" in target.features:
        return 64
    return 32 if "avx2" in target.features else 16


def _flat(array: NDArray[Any]) -> Bytes:
    if not array.flags.c_contiguous:
        raise ShapeError(f"a device takes C-contiguous arrays, got strides {array.strides}")
    return array.reshape(-1).view(np.uint8)
