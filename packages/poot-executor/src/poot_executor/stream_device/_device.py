"""The device over a stream: everything of the protocol but finding the machine and loading code."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import CompileError, DeviceCaps, DeviceError, ShapeError, Target
from poot_executor._device import Buffer, Launch, PreparedSequence
from poot_executor.stream_device._download import DownloadPair, StreamDownload
from poot_executor.stream_device._driver import StreamDriver
from poot_executor.stream_device._graphs import GraphTable
from poot_executor.stream_device._kernel import StreamKernel
from poot_executor.stream_device._launch import PreparedLaunch
from poot_executor.stream_device._memory import StreamBuffer, UploadRing, allocate_memory
from poot_executor.stream_device._sequence import StreamSequence
from poot_kernel.compile import CompiledObject, CompileService, KernelPackage

__all__ = ["StreamDevice"]

Bytes = NDArray[np.uint8]

_UPLOAD_BYTES = 32 << 20
_OWN_STREAM = 1  # does not wait for the default stream; both vendors number this flag alike


class StreamDevice(ABC):
    """Implements ``poot_executor.Device``; a context manager. Used from one thread at a time.

    Args:
        driver: The driver, whose machine was found and is current in this thread.
        target: What kernels for it are compiled for.
        caps: What was found of it.
        service: Compiles for it and holds the kernel cache.
        owns_service: Whether it is closed with the device.

    Attributes:
        target: As given.
        caps: As given.
        service: As given.
        driver: As given.
        stream: Where all work is queued.
    """

    def __init__(
        self,
        driver: StreamDriver,
        target: Target,
        caps: DeviceCaps,
        service: CompileService,
        *,
        owns_service: bool,
    ) -> None:
        self._closed = True  # until it is open
        self.driver = driver
        self.target = target
        self.caps = caps
        self.service = service
        self._owns_service = owns_service
        self._thread = threading.get_ident()
        self.stream: Any = driver.call(driver.dialect.create_stream, _OWN_STREAM)
        self._ring = UploadRing(driver, self.stream, _UPLOAD_BYTES)
        self._downloads = DownloadPair(driver, self.stream, self._enter)
        self._graphs = GraphTable(driver, self.stream)
        self._closed = False

    # ---- what a vendor brings

    @abstractmethod
    def make_current(self) -> None:
        """Make the machine current in this thread: drivers keep that for each of them."""

    @abstractmethod
    def load_packages(self, packages: Sequence[KernelPackage]) -> list[StreamKernel]:
        """Return the kernels of packages that are for this target.

        Raises:
            CompileError: If the driver refuses one.
        """

    @abstractmethod
    def prepare_launch(self, launch: Launch, number: int) -> PreparedLaunch:
        """Return a launch with its arguments settled; ``number`` is its place in the sequence."""

    @abstractmethod
    def submit(self, launch: PreparedLaunch) -> None:
        """Queue a launch, none of whose axes is empty."""

    @abstractmethod
    def unload(self) -> None:
        """Give back the code of all kernels."""

    # ---- memory

    def allocate(self, nbytes: int, label: str) -> StreamBuffer:
        """Return zeroed device memory, aligned to 256 bytes.

        Raises:
            OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
        """
        self._enter()
        if nbytes < 0:
            raise ShapeError(f"buffer {label!r} of {nbytes} bytes")
        memory = allocate_memory(self.driver, nbytes, label)
        if nbytes:
            fill = self.driver.dialect.fill
            self.driver.call(fill, memory.address, 0, nbytes, self.stream)
        return StreamBuffer(memory, nbytes, label)

    def import_host(self, array: NDArray[Any], label: str) -> None:
        """Return None: kernels read device memory."""
        del array, label

    def upload(self, buffer: Buffer, data: NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array into the buffer; the array may be changed on return."""
        self._enter()
        if not data.flags.c_contiguous:
            raise ShapeError(f"a device takes C-contiguous arrays, got strides {data.strides}")
        source = data.reshape(-1).view(np.uint8)
        address = self._address(buffer, offset, source.nbytes)
        if source.nbytes:
            self._ring.upload(address, source)

    def download(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> Bytes:
        """Return a copy of the buffer's bytes, once all work that was handed over is done."""
        self._enter()
        length = buffer.nbytes - offset if nbytes is None else nbytes
        address = self._address(buffer, offset, length)
        found: Bytes = np.empty(length, np.uint8)
        if length:
            target = int(found.ctypes.data)
            self.driver.call(self.driver.dialect.copy_out, target, address, length, self.stream)
        self.synchronize()
        return found

    def start_download(self, pieces: Sequence[tuple[Buffer, int, int]]) -> StreamDownload:
        """Queue a copy of (buffer, offset, bytes) each; later work may be queued before it is read."""
        self._enter()
        found = [(self._address(*piece), piece[2]) for piece in pieces]
        return self._downloads.start(found)

    def view(self, buffer: Buffer) -> None:
        """Return None: the host does not see device memory."""
        del buffer

    def _address(self, buffer: Buffer, offset: int, nbytes: int) -> int:
        if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
            raise ShapeError(
                f"bytes {offset}..{offset + nbytes} lie outside buffer {buffer.label!r} of "
                f"{buffer.nbytes} bytes"
            )
        return cast("StreamBuffer", buffer).address + offset

    # ---- code

    def load(self, objects: Sequence[CompiledObject]) -> tuple[Mapping[str, StreamKernel], ...]:
        """Load packaged kernels: one an object.

        Raises:
            CompileError: If an object is of another kind or target, or the driver refuses it.
        """
        self._enter()
        packages: list[KernelPackage] = []
        for compiled in objects:
            if (compiled.target.api, compiled.target.arch) != (self.target.api, self.target.arch):
                raise CompileError(
                    f"{compiled.kind} for {compiled.target} cannot be loaded on {self.target}"
                )
            package = KernelPackage.decode(compiled.data)
            if missing := [name for name in compiled.entries if name != package.name]:
                raise CompileError(f"object {compiled.key[:16]} has no entry {', '.join(missing)}")
            packages.append(package)
        return tuple({kernel.entry: kernel} for kernel in self.load_packages(packages))

    # ---- running

    def prepare(self, launches: Sequence[Launch]) -> StreamSequence:
        """Settle the arguments of a sequence.

        Raises:
            ShapeError: If a grid, an offset or the number of arguments makes no sense.
        """
        self._enter()
        return StreamSequence(launches, self.prepare_launch, self.submit)

    def capture(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> bool:
        """Record the sequence for these sizes as a graph, which ``run`` with the same replays."""
        self._enter()
        sequence = cast("StreamSequence", prepared)
        self._graphs.capture(sequence, sequence.key(sizes))
        return True

    def run(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> None:
        """Queue the sequence: its graph if one was captured for these sizes, else its launches."""
        self._enter()
        sequence = cast("StreamSequence", prepared)
        key = sequence.key(sizes)
        graph = sequence.graphs.get(key)
        if graph is not None:
            self._graphs.replay(graph)
            return
        sequence.bind(key)
        sequence.launch_all()

    def synchronize(self) -> None:
        """Wait until all work that was handed over is done.

        Raises:
            DeviceError: If a kernel failed; the device is lost then.
        """
        self.driver.call(self.driver.dialect.synchronize, self.stream)

    # ---- time

    def time_sequence(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 5
    ) -> NDArray[np.float64]:
        """Run the sequence ``repeat`` times and return (num_launches,) median seconds of each.

        Events stand between the launches, so that none starts before the last one ends.
        """
        self._enter()
        sequence = cast("StreamSequence", prepared)
        count = len(sequence.labels)
        sequence.bind(sequence.key(sizes))
        times = np.zeros((repeat, count))
        events = self._events(count + 1)
        try:
            sequence.launch_all()
            for turn in range(repeat):
                self._record(events[0])
                for number in range(count):
                    sequence.launch(number)
                    self._record(events[number + 1])
                self.synchronize()
                for number in range(count):
                    times[turn, number] = self._seconds(*events[number : number + 2])
        finally:
            self._destroy(events)
        return np.median(times, axis=0)

    def time_replay(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 20
    ) -> float:
        """Return the median seconds that the whole sequence takes as ``run`` runs it."""
        self._enter()
        begin, end = events = self._events(2)
        times: list[float] = []
        try:
            self.run(prepared, sizes)
            for _ in range(repeat):
                self._record(begin)
                self.run(prepared, sizes)
                self._record(end)
                self.synchronize()
                times.append(self._seconds(begin, end))
        finally:
            self._destroy(events)
        return float(np.median(times))

    def read_bandwidth_gb_s(self, nbytes: int, *, repeat: int = 5) -> float:
        """Return how fast a kernel reads ``nbytes`` (rounded up) of random data, GB/s."""
        from poot_executor.stream_device._probe import probe_launch  # needs the code generator

        launch, size = probe_launch(self, self.service, nbytes)
        sequence = self.prepare([launch])
        self.run(sequence, {})  # the first touch of every page
        seconds = self.time_sequence(sequence, {}, repeat=repeat)
        return float(size / seconds[0] / 1e9)

    def _events(self, count: int) -> list[Any]:
        return [self.driver.call(self.driver.dialect.create_event, 0) for _ in range(count)]

    def _record(self, event: Any) -> None:
        self.driver.call(self.driver.dialect.record, event, self.stream)

    def _seconds(self, begin: Any, end: Any) -> float:
        return self.driver.call(self.driver.dialect.elapsed_ms, begin, end) / 1e3

    def _destroy(self, events: Sequence[Any]) -> None:
        with suppress(DeviceError):  # of a device that was lost in between
            for event in events:
                self.driver.call(self.driver.dialect.destroy_event, event)

    # ---- the end

    def close(self) -> None:
        """Wait for the device, then give back graphs, code, pinned memory and the stream."""
        if self._closed:
            return
        self._enter()
        self._closed = True
        # A lost device refuses all of this; the process keeps running.
        with suppress(DeviceError):
            self.synchronize()
            self._graphs.close()
            self._ring.close()
            self._downloads.close()
            self.unload()
            self.driver.call(self.driver.dialect.destroy_stream, self.stream)
        if self._owns_service:
            self.service.close()

    def _enter(self) -> None:
        if self._closed:
            raise DeviceError("the device is closed")
        thread = threading.get_ident()
        if thread != self._thread:
            with suppress(DeviceError):  # the call that follows says what is wrong
                self.make_current()
            self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # opening failed half-way
            self.close()
