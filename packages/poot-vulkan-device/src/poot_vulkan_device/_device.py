"""A Vulkan device behind the device protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceCaps, DeviceError, Settings, ShapeError, Target
from poot_executor import Buffer, Launch, PreparedSequence
from poot_kernel.compile import CompiledObject, CompileService
from poot_vulkan_device._adapters import choose_adapter, list_adapters
from poot_vulkan_device._api import load_api
from poot_vulkan_device._bandwidth import read_bandwidth_gb_s
from poot_vulkan_device._clock import AwakeCard
from poot_vulkan_device._context import Context
from poot_vulkan_device._instance import Instance
from poot_vulkan_device._kernel import Pipelines, VulkanKernel
from poot_vulkan_device._memory import Memory, VulkanBuffer
from poot_vulkan_device._sequence import VulkanSequence

__all__ = ["VulkanDevice", "open_device"]

Bytes = NDArray[np.uint8]


def open_device(
    settings: Settings, threads: int | None = None, *, service: CompileService | None = None
) -> VulkanDevice:
    """Return a Vulkan device: the one that ``settings.device`` names, else the best.

    Args:
        settings: Which device, kernel cache, and with ``check`` the Khronos validation layer.
        threads: Not used.
        service: Holds the kernel cache; by default one of the device's own.

    Raises:
        DeviceError: If there is no loader, driver or fitting device; says which.
    """
    _ = threads
    return VulkanDevice(settings, service=service)


class VulkanDevice:
    """Implements ``poot_executor.Device``.

    Attributes:
        target: What kernels for it are compiled for.
        caps: What was found of it.
        service: Holds the kernel cache.
    """

    def __init__(self, settings: Settings, *, service: CompileService | None) -> None:
        if settings.hide_devices:
            raise DeviceError("POOT_HIDE_DEVICES hides Vulkan devices")
        api = load_api()
        self._instance = Instance(api, validate=settings.check)
        try:
            adapter = choose_adapter(list_adapters(api, self._instance), settings.device)
            self._context = Context(api, self._instance, adapter)
        except BaseException:
            self._instance.close()
            raise
        self._card = AwakeCard(adapter.uuid) if adapter.kind == "discrete" else None
        self._memory = Memory(self._context)
        self._pipelines = Pipelines(self._context)
        self._sequences: list[VulkanSequence] = []
        self._owns_service = service is None
        self.service = service if service is not None else CompileService(settings)
        self.target = Target("vulkan", "spirv1.6", adapter.features)
        self.caps = DeviceCaps(
            name=f"{adapter.name} ({adapter.driver})",
            vector_bytes=16,
            subgroup_size=adapter.subgroup_size,
            num_workers=1,
            shared_bytes=adapter.shared_bytes,
            memory_bytes=self._memory.total_bytes,
            max_workgroup=adapter.max_workgroup,
            is_software=adapter.kind == "software",
        )

    @property
    def validation_messages(self) -> tuple[str, ...]:
        """What the validation layer has said; empty without ``Settings.check``."""
        return tuple(self._instance.messages)

    # ---- memory

    def allocate(self, nbytes: int, label: str) -> VulkanBuffer:
        """Return zeroed device memory."""
        self._open()
        return self._memory.allocate(nbytes, label)

    def import_host(self, array: NDArray[Any], label: str) -> None:
        """Return None: host memory is copied."""
        _ = array, label

    def upload(self, buffer: Buffer, data: NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array into the buffer."""
        if not data.flags.c_contiguous:
            raise ShapeError(f"an upload to {buffer.label!r} needs a C-contiguous array")
        flat = data.reshape(-1).view(np.uint8)
        self._memory.upload(self._span(buffer, offset, flat.nbytes), flat, offset)

    def download(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> Bytes:
        """Return a copy of the buffer's bytes."""
        length = buffer.nbytes - offset if nbytes is None else nbytes
        return self._memory.download(self._span(buffer, offset, length), offset, length)

    def start_download(self, pieces: Sequence[tuple[Buffer, int, int]]) -> None:
        """Return None: what is handed over next waits for what runs."""
        del pieces

    def view(self, buffer: Buffer) -> Bytes | None:
        """Return the buffer's bytes where the host sees them."""
        return cast("VulkanBuffer", buffer).mapped

    def _span(self, buffer: Buffer, offset: int, nbytes: int) -> VulkanBuffer:
        self._open()
        if not isinstance(buffer, VulkanBuffer) or buffer.handle is None:
            raise DeviceError(f"{buffer.label!r} is no live buffer of this device")
        if offset < 0 or offset + nbytes > buffer.nbytes:
            raise ShapeError(
                f"bytes {offset}..{offset + nbytes} lie outside of {buffer.label!r}, which has "
                f"{buffer.nbytes}"
            )
        return buffer

    # ---- code and launches

    def load(self, objects: Sequence[CompiledObject]) -> tuple[Mapping[str, VulkanKernel], ...]:
        """Return for each object its kernel by entry name."""
        self._open()
        kernels = self._pipelines.load(objects, str(self.target))
        return tuple({kernel.entry: kernel} for kernel in kernels)

    def prepare(self, launches: Sequence[Launch]) -> VulkanSequence:
        """Settle addresses and argument checks of a sequence."""
        self._open()
        found = VulkanSequence(self._context, self._memory, self._pipelines, launches)
        self._sequences.append(found)
        return found

    def capture(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> bool:
        """Record the sequence for these sizes."""
        self._open()
        cast("VulkanSequence", prepared).recording(sizes)
        return True

    def run(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> None:
        """Hand the sequence over; a recording for these sizes is replayed."""
        self._open()
        self._context.submit(cast("VulkanSequence", prepared).recording(sizes).submit)

    def synchronize(self) -> None:
        """Wait until all work is done."""
        self._open()
        self._context.wait()

    def time_sequence(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 5
    ) -> NDArray[np.float64]:
        """Return (num_launches,) median seconds of each launch, by timestamps of the device."""
        self._open()
        context, sequence = self._context, cast("VulkanSequence", prepared)
        if not context.adapter.timestamp_ns:
            raise DeviceError(f"{context.adapter.name} writes no timestamps")
        api, lib = context.api, context.api.lib
        count = len(sequence.labels) + 1
        info = api.struct("VkQueryPoolCreateInfo", queryType=2, queryCount=count)
        queries = context.make("VkQueryPool", lib.vkCreateQueryPool, info)
        held = api.ffi.new("uint64_t[]", count)
        recording = sequence.record_timed(sizes, queries)
        times = np.empty((repeat, count - 1))
        try:
            for turn in range(repeat):
                lib.vkResetQueryPool(context.handle, queries, 0, count)
                context.submit(recording.submit)
                context.wait()
                found = lib.vkGetQueryPoolResults(
                    context.handle, queries, 0, count, 8 * count, held, 8, 3
                )
                api.check(found, "reading timestamps")
                ticks = np.frombuffer(api.ffi.buffer(held), np.uint64).astype(np.int64)
                times[turn] = np.diff(ticks) * context.adapter.timestamp_ns * 1e-9
        finally:
            sequence.release(recording)
            lib.vkDestroyQueryPool(context.handle, queries, api.ffi.NULL)
        return np.median(times, axis=0)

    def time_replay(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 20
    ) -> float:
        """Return the median seconds of running a recorded sequence, handing over and waiting too."""
        self.capture(prepared, sizes)
        self.synchronize()
        times: list[float] = []
        for _ in range(repeat):
            start = time.perf_counter()
            self.run(prepared, sizes)
            self.synchronize()
            times.append(time.perf_counter() - start)
        return float(np.median(times))

    def read_bandwidth_gb_s(self, nbytes: int, *, repeat: int = 5) -> float:
        """Return how fast kernels read ``nbytes`` of random data, GB/s."""
        return read_bandwidth_gb_s(self, nbytes, repeat=repeat)

    # ---- end

    def _open(self) -> None:
        if self._context.handle is None:
            raise DeviceError("the Vulkan device is closed")

    def close(self) -> None:
        """Give back memory and the driver; closing twice is allowed."""
        if self._context.handle is None:
            return
        self._context.settle()
        self._memory.quiet()
        for sequence in self._sequences:
            sequence.close()
        self._memory.close()
        self._pipelines.close()
        self._context.close()
        if self._card is not None:
            self._card.close()
        if self._owns_service:
            self.service.close()

    def __enter__(self) -> VulkanDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
