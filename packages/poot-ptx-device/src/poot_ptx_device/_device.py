"""One NVIDIA GPU behind the device protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import CompileError, DeviceCaps, DeviceError, Settings, ShapeError, Target
from poot_executor import Buffer, Launch, PreparedSequence
from poot_kernel.compile import CompiledObject, CompileService, KernelPackage
from poot_ptx_device._driver import Driver
from poot_ptx_device._machine import MachineFacts, open_machine
from poot_ptx_device._memory import PtxBuffer, UploadRing, allocate_memory
from poot_ptx_device._modules import ModuleLoader, PtxKernel
from poot_ptx_device._sequence import PtxSequence
from poot_ptx_device._tensor_map import MapEncoder

__all__ = ["PtxDevice", "open_device"]

Bytes = NDArray[np.uint8]

_UPLOAD_BYTES = 32 << 20
_OWN_STREAM = 1  # does not wait for the default stream
_MAX_GRAPHS = 128  # of one sequence; the oldest goes first


def open_device(
    settings: Settings,
    threads: int | None = None,
    *,
    index: int | None = None,
    driver: Driver | None = None,
    service: CompileService | None = None,
) -> PtxDevice:
    """Return an NVIDIA GPU as a device.

    Args:
        settings: The kernel cache, and which GPU: its number or a part of its name.
        threads: Of no use here; part of the entry point's signature.
        index: Which GPU, as the driver numbers those that it shows; by default the settings' one.
        driver: What stands in for the driver, for tests.
        service: Compile service to share; by default one of the device's own.

    Raises:
        DeviceError: If there is no binding, no driver, no such GPU, or one that is too old.
    """
    del threads
    wanted = settings.device if index is None else str(index)
    return PtxDevice(settings, wanted, driver or Driver(), service=service)


class PtxDevice:
    """Implements ``poot_executor.Device``; a context manager. Used from one thread at a time.

    Attributes:
        target: What kernels for it are compiled for.
        caps: What was found of it.
        service: Holds the kernel cache.
    """

    def __init__(
        self,
        settings: Settings,
        wanted: str | None,
        driver: Driver,
        *,
        service: CompileService | None,
    ) -> None:
        self._driver = driver
        self._closed = True  # until it is open
        self._facts: MachineFacts = open_machine(driver, wanted)
        self._owns_service = service is None
        self.service = service if service is not None else CompileService(settings)
        facts = self._facts
        self.target = Target("ptx", facts.arch, facts.features)
        self.caps = DeviceCaps(
            name=facts.name,
            vector_bytes=16,
            subgroup_size=32,
            num_workers=facts.num_multiprocessors,
            shared_bytes=facts.shared_bytes,
            memory_bytes=facts.memory_bytes,
            max_workgroup=facts.max_threads,
        )
        self._stream: Any = driver.call("cuStreamCreate", _OWN_STREAM)
        self._ring = UploadRing(driver, self._stream, _UPLOAD_BYTES)
        self._encoder = MapEncoder(driver)
        self._loader = ModuleLoader(driver, self.service.cache, facts)
        self._graphs: list[Any] = []
        self._closed = False

    # ---- memory

    def allocate(self, nbytes: int, label: str) -> PtxBuffer:
        """Return zeroed device memory, aligned to 256 bytes.

        Raises:
            OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
        """
        self._check_open()
        if nbytes < 0:
            raise ShapeError(f"buffer {label!r} of {nbytes} bytes")
        memory = allocate_memory(self._driver, nbytes, label)
        if nbytes:
            self._driver.call("cuMemsetD8Async", memory.address, 0, nbytes, self._stream)
        return PtxBuffer(memory, nbytes, label)

    def import_host(self, array: NDArray[Any], label: str) -> None:
        """Return None: kernels read device memory."""
        del array, label

    def upload(self, buffer: Buffer, data: NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array into the buffer; the array may be changed on return."""
        self._check_open()
        if not data.flags.c_contiguous:
            raise ShapeError(f"a device takes C-contiguous arrays, got strides {data.strides}")
        source = data.reshape(-1).view(np.uint8)
        if source.nbytes:
            self._ring.upload(self._address(buffer, offset, source.nbytes), source)

    def download(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> Bytes:
        """Return a copy of the buffer's bytes, once all work that was handed over is done."""
        self._check_open()
        length = buffer.nbytes - offset if nbytes is None else nbytes
        address = self._address(buffer, offset, length)
        found: Bytes = np.empty(length, np.uint8)
        if length:
            target = int(found.ctypes.data)
            self._driver.call("cuMemcpyDtoHAsync", target, address, length, self._stream)
        self.synchronize()
        return found

    def view(self, buffer: Buffer) -> None:
        """Return None: the host does not see device memory."""
        del buffer

    def _address(self, buffer: Buffer, offset: int, nbytes: int) -> int:
        if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
            raise ShapeError(
                f"bytes {offset}..{offset + nbytes} lie outside buffer {buffer.label!r} of "
                f"{buffer.nbytes} bytes"
            )
        return cast("PtxBuffer", buffer).address + offset

    # ---- code

    def load(self, objects: Sequence[CompiledObject]) -> tuple[Mapping[str, PtxKernel], ...]:
        """Load packaged PTX: one kernel an object.

        Raises:
            CompileError: If an object is of another kind or target, or the driver refuses it.
        """
        self._check_open()
        packages: list[KernelPackage] = []
        for compiled in objects:
            if compiled.target.api != "ptx" or compiled.target.arch != self.target.arch:
                raise CompileError(
                    f"{compiled.kind} for {compiled.target} cannot be loaded on {self.target}"
                )
            package = KernelPackage.decode(compiled.data)
            if missing := [name for name in compiled.entries if name != package.name]:
                raise CompileError(f"object {compiled.key[:16]} has no entry {', '.join(missing)}")
            packages.append(package)
        return tuple({kernel.entry: kernel} for kernel in self._loader.load(packages))

    # ---- running

    def prepare(self, launches: Sequence[Launch]) -> PtxSequence:
        """Settle the arguments of a sequence.

        Raises:
            ShapeError: If a grid, an offset or the number of arguments makes no sense.
        """
        self._check_open()
        return PtxSequence(
            launches,
            self._driver,
            self._stream,
            encoder=self._encoder,
            num_multiprocessors=self._facts.num_multiprocessors,
            shared_bytes=self._facts.shared_bytes,
            overlaps=self._facts.can_overlap,
        )

    def capture(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> bool:
        """Record the sequence for these sizes as a graph, which ``run`` with the same replays."""
        self._check_open()
        sequence, driver = cast("PtxSequence", prepared), self._driver
        key = sequence.key(sizes)
        if key in sequence.graphs:
            return True
        sequence.bind(key)
        mode = driver.binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver.call("cuStreamBeginCapture", self._stream, mode)
        try:
            sequence.launch_all()
        except DeviceError:
            with contextlib.suppress(DeviceError):
                driver.call("cuStreamEndCapture", self._stream)
            raise
        graph = driver.call("cuStreamEndCapture", self._stream)
        try:
            executable = driver.call("cuGraphInstantiate", graph, 0)
        finally:
            driver.call("cuGraphDestroy", graph)
        driver.call("cuGraphUpload", executable, self._stream)
        if len(sequence.graphs) >= _MAX_GRAPHS:
            self._drop_graph(sequence.graphs.pop(next(iter(sequence.graphs))))
        sequence.graphs[key] = executable
        self._graphs.append(executable)
        return True

    def _drop_graph(self, executable: Any) -> None:
        self._graphs.remove(executable)
        self._driver.call("cuGraphExecDestroy", executable)

    def run(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> None:
        """Queue the sequence: its graph if one was captured for these sizes, else its launches."""
        self._check_open()
        sequence = cast("PtxSequence", prepared)
        key = sequence.key(sizes)
        graph = sequence.graphs.get(key)
        if graph is not None:
            self._driver.call("cuGraphLaunch", graph, self._stream)
            return
        sequence.bind(key)
        sequence.launch_all()

    def synchronize(self) -> None:
        """Wait until all work that was handed over is done.

        Raises:
            DeviceError: If a kernel failed; the device is lost then.
        """
        self._driver.call("cuStreamSynchronize", self._stream)

    def time_sequence(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 5
    ) -> NDArray[np.float64]:
        """Run the sequence ``repeat`` times and return (num_launches,) median seconds of each.

        Events stand between the launches, so that none starts before the last one ends.
        """
        self._check_open()
        sequence, driver = cast("PtxSequence", prepared), self._driver
        count = len(sequence.labels)
        sequence.bind(sequence.key(sizes))
        events = [driver.call("cuEventCreate", 0) for _ in range(count + 1)]
        times = np.zeros((repeat, count))
        try:
            sequence.launch_all()
            for turn in range(repeat):
                driver.call("cuEventRecord", events[0], self._stream)
                for number in range(count):
                    sequence.launch(number)
                    driver.call("cuEventRecord", events[number + 1], self._stream)
                self.synchronize()
                for number in range(count):
                    pair = events[number : number + 2]
                    times[turn, number] = driver.call("cuEventElapsedTime", *pair) / 1e3
        finally:
            for event in events:
                driver.call("cuEventDestroy", event)
        return np.median(times, axis=0)

    def time_replay(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 20
    ) -> float:
        """Return the median seconds that the device takes for the whole sequence as ``run`` runs it."""
        self._check_open()
        driver = self._driver
        begin, end = driver.call("cuEventCreate", 0), driver.call("cuEventCreate", 0)
        times: list[float] = []
        try:
            self.run(prepared, sizes)
            for _ in range(repeat):
                driver.call("cuEventRecord", begin, self._stream)
                self.run(prepared, sizes)
                driver.call("cuEventRecord", end, self._stream)
                self.synchronize()
                times.append(driver.call("cuEventElapsedTime", begin, end) / 1e3)
        finally:
            driver.call("cuEventDestroy", begin)
            driver.call("cuEventDestroy", end)
        return float(np.median(times))

    def read_bandwidth_gb_s(self, nbytes: int, *, repeat: int = 5) -> float:
        """Return how fast a kernel reads ``nbytes`` (rounded up) of random data, GB/s."""
        from poot_ptx_device._probe import probe_launch  # needs the code generator

        launch, size = probe_launch(self, nbytes)
        sequence = self.prepare([launch])
        self.run(sequence, {})  # the first touch of every page
        seconds = self.time_sequence(sequence, {}, repeat=repeat)
        return float(size / seconds[0] / 1e9)

    # ---- the end

    def close(self) -> None:
        """Wait for the device, then give back graphs, code, pinned memory and the context."""
        if self._closed:
            return
        self._closed = True
        driver = self._driver
        # A lost device refuses all of this; the process keeps running.
        with contextlib.suppress(DeviceError):
            self.synchronize()
            for graph in self._graphs:
                driver.call("cuGraphExecDestroy", graph)
            self._ring.close(lambda event: driver.call("cuEventDestroy", event))
            self._loader.close()
            driver.call("cuStreamDestroy", self._stream)
        if self._owns_service:
            self.service.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the device is closed")

    def __enter__(self) -> PtxDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # opening failed half-way
            self.close()
