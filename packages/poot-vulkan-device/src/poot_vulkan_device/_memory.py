"""Buffers: device memory with an address, mapped where the host sees it; copies through staging."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, OutOfMemoryError
from poot_vulkan_device._adapters import MemoryKind
from poot_vulkan_device._context import Context

__all__ = ["Memory", "VulkanBuffer"]

Bytes = NDArray[np.uint8]
_LOCAL, _VISIBLE, _COHERENT, _CACHED = 1, 2, 4, 8
_USAGE = 0x20000 | 0x20 | 0x1 | 0x2  # address, storage, transfer source and destination
_STAGING_BYTES = 32 << 20
_ALIGNMENT = 256
_WRITABLE_BYTES = 4 << 20
"""Buffers of up to so many bytes lie where the host writes to device memory, if there is such a place:
what changes with every step then needs no copy. Reading there is slow."""
_SMALL_READ = 1 << 16
_READS_KEPT = 32


@dataclass(frozen=True, slots=True)
class _Read:
    """Recorded commands that copy bytes of a buffer to where the host reads them."""

    source: VulkanBuffer
    target: VulkanBuffer
    commands: Any
    submit: Any


class VulkanBuffer:
    """Memory of one device.

    Attributes:
        nbytes: Size.
        label: What it holds.
        address: Where kernels find it.
        handle: Of Vulkan.
        mapped: Its bytes as the host sees them, or None.
        writable: Its bytes where the host may only write, or None.
    """

    def __init__(
        self, memory: Memory, nbytes: int, label: str, *, kind: MemoryKind, is_mapped: bool
    ) -> None:
        self.nbytes, self.label = nbytes, label
        self._memory = memory
        context = memory.context
        api, lib = context.api, context.api.lib
        size = -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        self.kind, self.size = kind, size
        memory.reserve(kind, size, label)
        info = api.struct("VkBufferCreateInfo", size=size, usage=_USAGE)
        self.handle: Any = context.make("VkBuffer", lib.vkCreateBuffer, info)
        needs = api.out("VkMemoryRequirements")
        lib.vkGetBufferMemoryRequirements(context.handle, self.handle, needs)
        flags = api.struct("VkMemoryAllocateFlagsInfo", flags=2)  # device address
        asked = api.struct(
            "VkMemoryAllocateInfo",
            pNext=flags, allocationSize=needs.size, memoryTypeIndex=kind.index,
        )  # fmt: skip
        made = api.out("VkDeviceMemory")
        result = int(lib.vkAllocateMemory(context.handle, asked, api.ffi.NULL, made))
        if result in (-1, -2):
            lib.vkDestroyBuffer(context.handle, self.handle, api.ffi.NULL)
            memory.forget(kind, size)
            raise memory.exhausted(kind, size, label)
        api.check(result, f"allocating {label}")
        self._block = made[0]
        bound = lib.vkBindBufferMemory(context.handle, self.handle, self._block, 0)
        api.check(bound, f"binding {label}")
        where = api.struct("VkBufferDeviceAddressInfo", buffer=self.handle)
        self.address = int(lib.vkGetBufferDeviceAddress(context.handle, where))
        self.mapped: Bytes | None = None
        self.writable: Bytes | None = None
        if is_mapped:
            pointer = api.out("void*")
            mapped = lib.vkMapMemory(context.handle, self._block, 0, size, 0, pointer)
            api.check(mapped, f"mapping {label}")
            view: Any = api.ffi.buffer(pointer[0], size)
            found = np.frombuffer(view, np.uint8)[:nbytes]
            if kind.flags & _CACHED:
                self.mapped = found
            else:
                self.writable = found

    def free(self) -> None:
        """Give the memory back once nothing runs; freeing twice is allowed."""
        if self.handle is None:
            return
        context = self._memory.context
        if context.handle is not None:
            self._memory.quiet()
            self._memory.forget_reads(self)
            api = context.api
            api.lib.vkDestroyBuffer(context.handle, self.handle, api.ffi.NULL)
            api.lib.vkFreeMemory(context.handle, self._block, api.ffi.NULL)
        self.handle, self.mapped, self.writable = None, None, None
        self._memory.forget(self.kind, self.size)
        self._memory.live.discard(self)


class Memory:
    """Allocates buffers of a device and copies to and from them.

    Attributes:
        context: The device.
        is_shared: Whether the host sees all device memory at its own speed.
        live: Buffers not freed yet.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        kinds = context.adapter.memory
        shared = _pick(kinds, _LOCAL | _VISIBLE | _COHERENT | _CACHED)
        self.is_shared = shared is not None and context.adapter.kind in {"software", "integrated"}
        local = shared if self.is_shared else _pick(kinds, _LOCAL)
        staging = (
            _pick(kinds, _VISIBLE | _COHERENT | _CACHED) or _pick(kinds, _VISIBLE | _COHERENT)
        )  # fmt: skip
        if local is None or staging is None:
            raise DeviceError(f"{context.adapter.name} has no memory that poot can use")
        self._local, self._host = local, staging
        self._writable = None if self.is_shared else _pick(kinds, _LOCAL | _VISIBLE | _COHERENT)
        self._reads: OrderedDict[tuple[int, int, int], _Read] = OrderedDict()
        self._used: dict[int, int] = {}
        self.live: set[VulkanBuffer] = set()
        self._staging: VulkanBuffer | None = None

    @property
    def total_bytes(self) -> int:
        """Size of the heap that buffers come from."""
        return self._local.heap_bytes

    def allocate(self, nbytes: int, label: str) -> VulkanBuffer:
        """Return zeroed device memory.

        Raises:
            OutOfMemoryError: With ``bytes_asked`` and ``bytes_free``.
        """
        kind, is_mapped = self._local, self.is_shared
        if self._writable is not None and nbytes <= _WRITABLE_BYTES:
            kind, is_mapped = self._writable, True
        buffer = VulkanBuffer(self, nbytes, label, kind=kind, is_mapped=is_mapped)
        self.live.add(buffer)
        visible = buffer.mapped if buffer.mapped is not None else buffer.writable
        if visible is not None:
            visible[:] = 0
        else:
            self._fill(buffer)
        return buffer

    def host_visible(self, nbytes: int, label: str) -> VulkanBuffer:
        """Return mapped memory of the host that kernels can read and write."""
        buffer = VulkanBuffer(self, nbytes, label, kind=self._host, is_mapped=True)
        self.live.add(buffer)
        return buffer

    # ---- accounts

    def reserve(self, kind: MemoryKind, nbytes: int, label: str) -> None:
        """Count bytes before they are allocated: some drivers promise more than they have.

        Raises:
            OutOfMemoryError: If the heap does not have them.
        """
        if nbytes > self._free(kind):
            raise self.exhausted(kind, nbytes, label)
        self._used[kind.heap] = self._used.get(kind.heap, 0) + nbytes

    def forget(self, kind: MemoryKind, nbytes: int) -> None:
        """Take bytes off the account."""
        self._used[kind.heap] -= nbytes

    def exhausted(self, kind: MemoryKind, nbytes: int, label: str) -> OutOfMemoryError:
        """Return the error of an allocation that does not fit."""
        free = self._free(kind)
        return OutOfMemoryError(
            f"{label!r} needs {nbytes} bytes on {self.context.adapter.name}, {free} are free; lower "
            "num_blocks, max_step_tokens or the model's size",
            bytes_asked=nbytes,
            bytes_free=free,
        )

    def _free(self, kind: MemoryKind) -> int:
        used = self._used.get(kind.heap, 0)
        adapter = self.context.adapter
        if not adapter.has_budget:
            return max(0, kind.heap_bytes - used)
        api = self.context.api
        budget = api.struct("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
        found = api.struct("VkPhysicalDeviceMemoryProperties2", pNext=budget)
        api.lib.vkGetPhysicalDeviceMemoryProperties2(adapter.handle, found)
        return max(0, int(budget.heapBudget[kind.heap]) - int(budget.heapUsage[kind.heap]))

    # ---- copies

    def upload(self, buffer: VulkanBuffer, data: Bytes, offset: int) -> None:
        """Copy bytes into a buffer; work that was handed over before is finished first."""
        self.context.wait()
        visible = buffer.mapped if buffer.mapped is not None else buffer.writable
        if visible is not None:
            visible[offset : offset + data.nbytes] = data
            return
        staging = self._stage(data.nbytes)
        assert staging.mapped is not None
        for start in range(0, data.nbytes, staging.nbytes):
            part = data[start : start + staging.nbytes]
            staging.mapped[: part.nbytes] = part
            self._copy(staging, 0, buffer, offset + start, part.nbytes)

    def download(self, buffer: VulkanBuffer, offset: int, nbytes: int) -> Bytes:
        """Return a copy of a buffer's bytes once all work is done."""
        self.context.wait()
        if buffer.mapped is not None:
            return buffer.mapped[offset : offset + nbytes].copy()
        if nbytes <= _SMALL_READ:
            return self._read(buffer, offset, nbytes)
        staging = self._stage(nbytes)
        assert staging.mapped is not None
        found = np.empty(nbytes, np.uint8)
        for start in range(0, nbytes, staging.nbytes):
            count = min(staging.nbytes, nbytes - start)
            self._copy(buffer, offset + start, staging, 0, count)
            found[start : start + count] = staging.mapped[:count]
        return found

    def _read(self, buffer: VulkanBuffer, offset: int, nbytes: int) -> Bytes:
        """Copy a few bytes by commands that are recorded once: every step reads its results so."""
        key = (buffer.address, offset, nbytes)
        found = self._reads.get(key)
        if found is None:
            if len(self._reads) >= _READS_KEPT:
                self._drop_read(self._reads.popitem(last=False)[1])
            found = self._reads[key] = self._record_read(buffer, offset, nbytes)
        self._reads.move_to_end(key)
        self.context.submit(found.submit)
        self.context.wait()
        assert found.target.mapped is not None
        return found.target.mapped[:nbytes].copy()

    def _record_read(self, buffer: VulkanBuffer, offset: int, nbytes: int) -> _Read:
        context, lib = self.context, self.context.api.lib
        target = self.host_visible(nbytes, "results")
        region = context.api.struct("VkBufferCopy", srcOffset=offset, size=nbytes)

        def copy(commands: Any) -> None:
            lib.vkCmdCopyBuffer(commands, buffer.handle, target.handle, 1, region)

        commands = self._recorded(copy, once=False)
        return _Read(buffer, target, commands, context.submit_info([commands]))

    def _drop_read(self, read: _Read) -> None:
        self.context.free_commands(read.commands)
        read.target.free()

    def forget_reads(self, buffer: VulkanBuffer) -> None:
        """Drop recorded copies from a buffer that is about to go."""
        for key in [key for key, read in self._reads.items() if read.source is buffer]:
            self._drop_read(self._reads.pop(key))

    def quiet(self) -> None:
        """Wait for all work; a lost device has none."""
        if not self.context.is_lost:
            self.context.wait()

    def close(self) -> None:
        """Free every buffer."""
        while self._reads:
            self._drop_read(self._reads.popitem()[1])
        for buffer in list(self.live):
            buffer.free()

    def _stage(self, nbytes: int) -> VulkanBuffer:
        wanted = min(max(nbytes, 1 << 16), _STAGING_BYTES)
        if self._staging is None or self._staging.nbytes < wanted:
            if self._staging is not None:
                self._staging.free()
            self._staging = self.host_visible(wanted, "staging")
        return self._staging

    def _copy(
        self, source: VulkanBuffer, at: int, target: VulkanBuffer, to: int, nbytes: int
    ) -> None:
        region = self.context.api.struct("VkBufferCopy", srcOffset=at, dstOffset=to, size=nbytes)
        lib = self.context.api.lib

        def copy(commands: Any) -> None:
            lib.vkCmdCopyBuffer(commands, source.handle, target.handle, 1, region)

        self._once(copy)

    def _fill(self, buffer: VulkanBuffer) -> None:
        lib = self.context.api.lib

        def fill(commands: Any) -> None:
            lib.vkCmdFillBuffer(commands, buffer.handle, 0, buffer.size, 0)

        self._once(fill)

    def _once(self, emit: Callable[[Any], None]) -> None:
        """Record, run and await one command between barriers."""
        context = self.context
        commands = self._recorded(emit, once=True)
        context.submit(context.submit_info([commands]))
        context.wait()
        context.free_commands(commands)

    def _recorded(self, emit: Callable[[Any], None], *, once: bool) -> Any:
        context, api = self.context, self.context.api
        commands = context.commands()
        begin = api.struct("VkCommandBufferBeginInfo", flags=int(once))
        api.check(api.lib.vkBeginCommandBuffer(commands, begin), "recording")
        _everything(context, commands)
        emit(commands)
        _everything(context, commands)
        api.check(api.lib.vkEndCommandBuffer(commands), "recording")
        return commands


def _everything(context: Context, commands: Any) -> None:
    """Order shaders, transfers and the host."""
    api, null = context.api, context.api.ffi.NULL
    stages = 0x800 | 0x1000 | 0x4000  # compute, transfer, host
    barrier = api.struct(
        "VkMemoryBarrier",
        srcAccessMask=0x40 | 0x1000 | 0x4000,  # writes of shaders, transfers, the host
        dstAccessMask=0x20 | 0x40 | 0x800 | 0x1000 | 0x2000,
    )
    api.lib.vkCmdPipelineBarrier(commands, stages, stages, 0, 1, barrier, 0, null, 0, null)


def _pick(kinds: tuple[MemoryKind, ...], flags: int) -> MemoryKind | None:
    fitting = [kind for kind in kinds if kind.flags & flags == flags]
    # The largest heap, and of its types the one with the fewest further flags.
    return max(
        fitting, key=lambda k: (k.heap_bytes, -k.flags.bit_count(), -k.index), default=None
    )  # fmt: skip
