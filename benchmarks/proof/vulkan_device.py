"""The least of Vulkan that the proof needs, through the raw functions of PyPI ``vulkan``."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import vulkan  # noqa: F401 -- loads the library
from vulkan._vulkan import ffi, lib  # noqa: PLC2701 -- wrappers cost 10 times as much

__all__ = ["Buffer", "Vulkan"]

# Feature structs: sType and number of booleans. All that a driver has are enabled.
FEATURES = {
    "core": (1000059000, 55, None), "v11": (49, 12, None), "v12": (51, 47, None),
    "v13": (53, 15, None), "matrix": (1000506000, 2, "VK_KHR_cooperative_matrix"),
    "bf16": (1000141000, 3, "VK_KHR_shader_bfloat16"),
}  # fmt: skip


def check(result: int) -> None:
    """Raise a failed call's error."""
    if result:
        raise RuntimeError(f"VkResult {result}")


class Buffer:
    """Device memory with an address."""

    def __init__(self, handle, memory, address: int, size: int) -> None:
        self.handle, self.memory, self.address, self.size = handle, memory, address, size


class Vulkan:
    """The first GPU that is no CPU driver."""

    def __init__(self) -> None:
        self.kept = []
        application = self.new("VkApplicationInfo", sType=0, apiVersion=1 << 22 | 3 << 12)
        info = self.new("VkInstanceCreateInfo", sType=1, pApplicationInfo=application)
        self.instance = self.made("VkInstance", lib.vkCreateInstance, info)
        self.physical = self._physical()
        names = self._extensions()
        chain = []
        for stype, count, extension in FEATURES.values():
            if extension is None or extension in names:
                chain.append(self.keep(ffi.new("uint64_t[]", 2 + (count + 2) // 2)))
                chain[-1][0] = stype
        for first, second in pairwise(chain):
            first[1] = int(ffi.cast("uintptr_t", second))
        get = self.function("vkGetPhysicalDeviceFeatures2", "void(*)(void*, void*)")
        get(ffi.cast("void*", self.physical), chain[0])
        wanted = [e for _, _, e in FEATURES.values() if e in names]
        texts = [self.keep(ffi.new("char[]", e.encode())) for e in wanted]
        array = self.keep(ffi.new("const char*[]", texts))
        priority = self.keep(ffi.new("float[]", [1.0]))
        queue = self.new("VkDeviceQueueCreateInfo", sType=2, queueFamilyIndex=self._family(),
                         queueCount=1, pQueuePriorities=priority)  # fmt: skip
        self.family = queue.queueFamilyIndex
        info = self.new("VkDeviceCreateInfo", sType=3, pNext=chain[0], queueCreateInfoCount=1,
                        pQueueCreateInfos=queue, enabledExtensionCount=len(texts),
                        ppEnabledExtensionNames=array)  # fmt: skip
        self.device = self.made("VkDevice", lib.vkCreateDevice, self.physical, info)
        found = ffi.new("VkQueue*")
        lib.vkGetDeviceQueue(self.device, self.family, 0, found)
        self.queue = found[0]
        info = self.new("VkCommandPoolCreateInfo", sType=39, flags=2, queueFamilyIndex=self.family)
        self.pool = self.made("VkCommandPool", lib.vkCreateCommandPool, self.device, info)
        info = self.new("VkQueryPoolCreateInfo", sType=11, queryType=2, queryCount=2)
        self.queries = self.made("VkQueryPool", lib.vkCreateQueryPool, self.device, info)
        info = self.new("VkFenceCreateInfo", sType=8)
        self.fence = self.made("VkFence", lib.vkCreateFence, self.device, info)
        self.staging = self.buffer(64 << 20, is_host=True)
        pointer = ffi.new("void**")
        check(lib.vkMapMemory(self.device, self.staging.memory, 0, self.staging.size, 0, pointer))
        self.mapped = np.frombuffer(ffi.buffer(pointer[0], self.staging.size), np.uint8)

    # ---- plumbing

    def keep(self, thing):
        """Keep an object alive as long as this one."""
        self.kept.append(thing)
        return thing

    def new(self, kind: str, **fields):
        """Return a struct."""
        found = self.keep(ffi.new(f"{kind}*"))
        for name, value in fields.items():
            setattr(found, name, value)
        return found

    def made(self, kind: str, create, *arguments):
        """Return a created handle."""
        found = ffi.new(f"{kind}*")
        check(create(*arguments, ffi.NULL, found))
        return found[0]

    def function(self, name: str, kind: str):
        """Return a function that the binding may not list."""
        return ffi.cast(kind, lib.vkGetInstanceProcAddr(self.instance, name.encode()))

    def _physical(self):
        count = ffi.new("uint32_t*")
        check(lib.vkEnumeratePhysicalDevices(self.instance, count, ffi.NULL))
        found = ffi.new("VkPhysicalDevice[]", count[0])
        check(lib.vkEnumeratePhysicalDevices(self.instance, count, found))
        for physical in found:
            properties = ffi.new("VkPhysicalDeviceProperties*")
            lib.vkGetPhysicalDeviceProperties(physical, properties)
            if properties.deviceType != 4:
                self.period = properties.limits.timestampPeriod
                self.name = ffi.string(properties.deviceName).decode()
                return physical
        raise RuntimeError("no Vulkan GPU")

    def _extensions(self) -> set[str]:
        count = ffi.new("uint32_t*")
        lib.vkEnumerateDeviceExtensionProperties(self.physical, ffi.NULL, count, ffi.NULL)
        found = ffi.new("VkExtensionProperties[]", count[0])
        lib.vkEnumerateDeviceExtensionProperties(self.physical, ffi.NULL, count, found)
        return {ffi.string(e.extensionName).decode() for e in found}

    def _family(self) -> int:
        count = ffi.new("uint32_t*")
        lib.vkGetPhysicalDeviceQueueFamilyProperties(self.physical, count, ffi.NULL)
        found = ffi.new("VkQueueFamilyProperties[]", count[0])
        lib.vkGetPhysicalDeviceQueueFamilyProperties(self.physical, count, found)
        return next(i for i, f in enumerate(found) if f.queueFlags & 2)

    # ---- memory

    def buffer(self, size: int, *, is_host: bool = False) -> Buffer:
        """Return a buffer."""
        info = self.new("VkBufferCreateInfo", sType=12, size=size, usage=0x20 | 0x20000 | 3)
        handle = self.made("VkBuffer", lib.vkCreateBuffer, self.device, info)
        needs = ffi.new("VkMemoryRequirements*")
        lib.vkGetBufferMemoryRequirements(self.device, handle, needs)
        properties = ffi.new("VkPhysicalDeviceMemoryProperties*")
        lib.vkGetPhysicalDeviceMemoryProperties(self.physical, properties)
        wanted = 6 if is_host else 1
        kind = next(
            i for i in range(properties.memoryTypeCount)
            if needs.memoryTypeBits >> i & 1
            and properties.memoryTypes[i].propertyFlags & wanted == wanted
        )  # fmt: skip
        flags = self.new("VkMemoryAllocateFlagsInfo", sType=1000060000, flags=2)
        info = self.new("VkMemoryAllocateInfo", sType=5, pNext=flags, allocationSize=needs.size,
                        memoryTypeIndex=kind)  # fmt: skip
        memory = self.made("VkDeviceMemory", lib.vkAllocateMemory, self.device, info)
        check(lib.vkBindBufferMemory(self.device, handle, memory, 0))
        info = self.new("VkBufferDeviceAddressInfo", sType=1000244001, buffer=handle)
        return Buffer(handle, memory, lib.vkGetBufferDeviceAddress(self.device, info), size)

    def upload(self, array: np.ndarray) -> Buffer:
        """Return a device buffer with an array's bytes."""
        raw = np.ascontiguousarray(array).view(np.uint8).ravel()
        target = self.buffer(raw.nbytes)
        for start in range(0, raw.nbytes, self.staging.size):
            part = raw[start : start + self.staging.size]
            self.mapped[: part.nbytes] = part
            self._copy(self.staging, target, 0, start, part.nbytes)
        return target

    def download(self, source: Buffer, dtype) -> np.ndarray:
        """Return a buffer's contents."""
        found = np.empty(source.size, np.uint8)
        for start in range(0, source.size, self.staging.size):
            size = min(self.staging.size, source.size - start)
            self._copy(source, self.staging, start, 0, size)
            found[start : start + size] = self.mapped[:size]
        return found.view(dtype)

    def _copy(self, source: Buffer, target: Buffer, start: int, end: int, size: int) -> None:
        region = ffi.new("VkBufferCopy[]", [(start, end, size)])
        self.run(lambda cb: lib.vkCmdCopyBuffer(cb, source.handle, target.handle, 1, region))

    # ---- work

    def pipeline(self, code: bytes, num_arguments: int):
        """Return a pipeline and its layout."""
        words = self.keep(ffi.new("uint32_t[]", list(struct.unpack(f"<{len(code) // 4}I", code))))
        info = self.new("VkShaderModuleCreateInfo", sType=16, codeSize=len(code), pCode=words)
        module = self.made("VkShaderModule", lib.vkCreateShaderModule, self.device, info)
        span = self.new("VkPushConstantRange", stageFlags=32, offset=0, size=8 * num_arguments)
        info = self.new("VkPipelineLayoutCreateInfo", sType=30, pushConstantRangeCount=1,
                        pPushConstantRanges=span)  # fmt: skip
        layout = self.made("VkPipelineLayout", lib.vkCreatePipelineLayout, self.device, info)
        info = self.new("VkComputePipelineCreateInfo", sType=29, layout=layout)
        info.stage.sType, info.stage.stage, info.stage.module = 18, 32, module
        info.stage.pName = self.keep(ffi.new("char[]", b"main"))
        found = ffi.new("VkPipeline*")
        create = lib.vkCreateComputePipelines
        check(create(self.device, ffi.NULL, 1, info, ffi.NULL, found))
        return found[0], layout

    def run(self, record) -> float:
        """Record, submit, wait; return the seconds on the device."""
        info = self.new("VkCommandBufferAllocateInfo", sType=40, commandPool=self.pool,
                        commandBufferCount=1)  # fmt: skip
        buffers = ffi.new("VkCommandBuffer[1]")
        check(lib.vkAllocateCommandBuffers(self.device, info, buffers))
        command = buffers[0]
        check(lib.vkBeginCommandBuffer(command, self.new("VkCommandBufferBeginInfo", sType=42)))
        lib.vkCmdResetQueryPool(command, self.queries, 0, 2)
        lib.vkCmdWriteTimestamp(command, 1, self.queries, 0)
        record(command)
        lib.vkCmdWriteTimestamp(command, 0x2000, self.queries, 1)
        check(lib.vkEndCommandBuffer(command))
        submit = self.new("VkSubmitInfo", sType=4, commandBufferCount=1, pCommandBuffers=buffers)
        fences = ffi.new("VkFence[]", [self.fence])
        check(lib.vkQueueSubmit(self.queue, 1, submit, self.fence))
        check(lib.vkWaitForFences(self.device, 1, fences, 1, 10**11))
        check(lib.vkResetFences(self.device, 1, fences))
        stamps = ffi.new("uint64_t[2]")
        check(lib.vkGetQueryPoolResults(self.device, self.queries, 0, 2, 16, stamps, 8, 3))
        lib.vkFreeCommandBuffers(self.device, self.pool, 1, buffers)
        return (stamps[1] - stamps[0]) * self.period * 1e-9

    def dispatch(self, pipeline, push: bytes, grid, count: int = 1) -> float:
        """Run a pipeline ``count`` times with barriers; return the seconds."""
        handle, layout = pipeline
        barrier = self.new("VkMemoryBarrier", sType=46, srcAccessMask=0x40, dstAccessMask=0x60)

        def record(command) -> None:
            lib.vkCmdBindPipeline(command, 1, handle)
            data = ffi.from_buffer(push)
            lib.vkCmdPushConstants(command, layout, 32, 0, len(push), data)
            for _ in range(count):
                lib.vkCmdDispatch(command, *grid)
                lib.vkCmdPipelineBarrier(
                    command, 0x800, 0x800, 0, 1, barrier, 0, ffi.NULL, 0, ffi.NULL
                )

        return self.run(record)
