"""One AMD GPU behind the device protocol."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import CompileError, DeviceCaps, DeviceError, Settings, ShapeError, Target
from poot_executor import Buffer, Launch, PreparedSequence
from poot_kernel.compile import CompiledObject, CompileService, KernelPackage
from poot_kernel.targets.amdgcn import target_features
from poot_rocm_device._driver import Driver
from poot_rocm_device._linker import Linker
from poot_rocm_device._machine import MachineFacts, open_machine
from poot_rocm_device._memory import RocmBuffer, UploadRing, allocate_memory
from poot_rocm_device._modules import ModuleLoader, RocmKernel
from poot_rocm_device._sequence import RocmSequence

__all__ = ["RocmDevice", "open_device"]

Bytes = NDArray[np.uint8]

_UPLOAD_BYTES = 32 << 20
_OWN_STREAM = 1  # does not wait for the default stream
_MAX_GRAPHS = 128  # of one sequence; the oldest goes first


def open_device(
    settings: Settings,
    threads: int | None = None,
    *,
    driver: Driver | None = None,
    linker: Linker | None = None,
    service: CompileService | None = None,
) -> RocmDevice:
    """Return an AMD GPU as a device: the one that ``settings.device`` names, else the first.

    Args:
        settings: The kernel cache, and which GPU.
        threads: Of no use here; part of the entry point's signature.
        driver: What stands in for HIP, for tests.
        linker: What links kernels; comgr or ``ld.lld`` without.
        service: Compile service to share; by default one of the device's own.

    Raises:
        DeviceError: If there is no binding, no runtime, no such GPU, or none that is covered.
    """
    del threads
    return RocmDevice(settings, driver or Driver(), linker or Linker(), service=service)


class RocmDevice:
    """Implements ``poot_executor.Device``; a context manager. Used from one thread at a time.

    Attributes:
        target: What kernels for it are compiled for.
        caps: What was found of it.
        service: Compiles for it; holds the kernel cache.
    """

    def __init__(
        self, settings: Settings, driver: Driver, linker: Linker, *, service: CompileService | None
    ) -> None:
        self._driver = driver
        self._closed = True  # until it is open
        self._facts: MachineFacts = open_machine(driver, settings.device)
        self._thread = threading.get_ident()
        self._owns_service = service is None
        self.service = service if service is not None else CompileService(settings)
        facts = self._facts
        self.target = Target("rocm", facts.arch, target_features(facts.arch))
        self.caps = DeviceCaps(
            name=facts.name,
            vector_bytes=16,
            subgroup_size=facts.subgroup_size,
            num_workers=facts.num_processors,
            shared_bytes=facts.shared_bytes,
            memory_bytes=facts.memory_bytes,
            max_workgroup=facts.max_threads,
        )
        self._stream: Any = driver.call("hipStreamCreateWithFlags", _OWN_STREAM)
        self._ring = UploadRing(driver, self._stream, _UPLOAD_BYTES)
        self._loader = ModuleLoader(driver, self.service.cache, linker, facts.arch)
        self._graphs: list[Any] = []
        self._closed = False

    # ---- memory

    def allocate(self, nbytes: int, label: str) -> RocmBuffer:
        """Return zeroed device memory, aligned to 256 bytes.

        Raises:
            OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
        """
        self._enter()
        if nbytes < 0:
            raise ShapeError(f"buffer {label!r} of {nbytes} bytes")
        memory = allocate_memory(self._driver, nbytes, label)
        if nbytes:
            self._driver.call("hipMemsetAsync", memory.address, 0, nbytes, self._stream)
        return RocmBuffer(memory, nbytes, label)

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
            self._driver.call("hipMemcpyDtoHAsync", target, address, length, self._stream)
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
        return cast("RocmBuffer", buffer).address + offset

    # ---- code

    def load(self, objects: Sequence[CompiledObject]) -> tuple[Mapping[str, RocmKernel], ...]:
        """Link and load packaged objects: one kernel each.

        Raises:
            CompileError: If an object is of another target, or the linker or HIP refuses it.
            DeviceError: If there is no linker.
        """
        self._enter()
        packages: list[KernelPackage] = []
        for compiled in objects:
            if compiled.target.api != "rocm" or compiled.target.arch != self.target.arch:
                raise CompileError(
                    f"{compiled.kind} for {compiled.target} cannot be loaded on {self.target}"
                )
            package = KernelPackage.decode(compiled.data)
            if missing := [name for name in compiled.entries if name != package.name]:
                raise CompileError(f"object {compiled.key[:16]} has no entry {', '.join(missing)}")
            packages.append(package)
        return tuple({kernel.entry: kernel} for kernel in self._loader.load(packages))

    # ---- running

    def prepare(self, launches: Sequence[Launch]) -> RocmSequence:
        """Settle the arguments of a sequence.

        Raises:
            ShapeError: If a grid, an offset or the number of arguments makes no sense.
        """
        self._enter()
        return RocmSequence(launches, self._driver, self._stream)

    def capture(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> bool:
        """Record the sequence for these sizes as a graph, which ``run`` with the same replays."""
        self._enter()
        sequence, driver = cast("RocmSequence", prepared), self._driver
        key = sequence.key(sizes)
        if key in sequence.graphs:
            return True
        sequence.bind(key)
        mode = driver.binding.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
        driver.call("hipStreamBeginCapture", self._stream, mode)
        try:
            sequence.launch_all()
        except DeviceError:
            with contextlib.suppress(DeviceError):
                driver.call("hipGraphDestroy", driver.call("hipStreamEndCapture", self._stream))
            raise
        graph = driver.call("hipStreamEndCapture", self._stream)
        try:
            executable = driver.call("hipGraphInstantiateWithFlags", graph, 0)
        finally:
            driver.call("hipGraphDestroy", graph)
        driver.call("hipGraphUpload", executable, self._stream)
        if len(sequence.graphs) >= _MAX_GRAPHS:
            oldest = sequence.graphs.pop(next(iter(sequence.graphs)))
            self.synchronize()  # it may still run
            self._graphs.remove(oldest)
            driver.call("hipGraphExecDestroy", oldest)
        sequence.graphs[key] = executable
        self._graphs.append(executable)
        return True

    def run(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> None:
        """Queue the sequence: its graph if one was captured for these sizes, else its launches."""
        self._enter()
        sequence = cast("RocmSequence", prepared)
        key = sequence.key(sizes)
        graph = sequence.graphs.get(key)
        if graph is not None:
            self._driver.call("hipGraphLaunch", graph, self._stream)
            return
        sequence.bind(key)
        sequence.launch_all()

    def synchronize(self) -> None:
        """Wait until all work that was handed over is done.

        Raises:
            DeviceError: If a kernel failed; the device is lost then.
        """
        self._driver.call("hipStreamSynchronize", self._stream)

    def time_sequence(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 5
    ) -> NDArray[np.float64]:
        """Run the sequence ``repeat`` times and return (num_launches,) median seconds of each.

        Events stand between the launches, so that each is timed alone.
        """
        self._enter()
        sequence, driver = cast("RocmSequence", prepared), self._driver
        count = len(sequence.labels)
        sequence.bind(sequence.key(sizes))
        events = [driver.call("hipEventCreate") for _ in range(count + 1)]
        times = np.zeros((repeat, count))
        try:
            sequence.launch_all()
            for turn in range(repeat):
                driver.call("hipEventRecord", events[0], self._stream)
                for number in range(count):
                    sequence.launch(number)
                    driver.call("hipEventRecord", events[number + 1], self._stream)
                self.synchronize()
                for number in range(count):
                    pair = events[number], events[number + 1]
                    times[turn, number] = driver.call("hipEventElapsedTime", *pair) / 1e3
        finally:
            with contextlib.suppress(DeviceError):
                for event in events:
                    driver.call("hipEventDestroy", event)
        return np.median(times, axis=0)

    def read_bandwidth_gb_s(self, nbytes: int, *, repeat: int = 5) -> float:
        """Return how fast a kernel reads ``nbytes`` (rounded up) of random data, GB/s."""
        from poot_rocm_device._probe import probe_launch  # needs the code generator

        launch, size = probe_launch(self, nbytes)
        sequence = self.prepare([launch])
        self.run(sequence, {})  # the first touch of every page
        seconds = self.time_sequence(sequence, {}, repeat=repeat)
        return float(size / seconds[0] / 1e9)

    # ---- the end

    def close(self) -> None:
        """Wait for the device, then give back graphs, code and pinned memory."""
        if self._closed:
            return
        self._enter()
        self._closed = True
        driver = self._driver
        # A lost device refuses all of this; the process keeps running.
        with contextlib.suppress(DeviceError):
            self.synchronize()
            for graph in self._graphs:
                driver.call("hipGraphExecDestroy", graph)
            self._ring.close()
            self._loader.close()
            driver.call("hipStreamDestroy", self._stream)
        if self._owns_service:
            self.service.close()

    def _enter(self) -> None:
        if self._closed:
            raise DeviceError("the device is closed")
        thread = threading.get_ident()
        if thread != self._thread:  # HIP keeps the current device for each thread
            with contextlib.suppress(DeviceError):
                self._driver.call("hipSetDevice", self._facts.index)
            self._thread = thread

    def __enter__(self) -> RocmDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # opening failed half-way
            self.close()
