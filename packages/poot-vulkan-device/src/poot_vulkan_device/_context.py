"""A logical device: its queue, command pool, and how work is handed over and waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from poot_core import DeviceError
from poot_vulkan_device._adapters import Adapter, enable_features, needed_features
from poot_vulkan_device._api import Api, VulkanError
from poot_vulkan_device._instance import Instance

__all__ = ["Context"]

_POLL_S = 2e-3
_WAIT_NS = 200_000_000


class Context:
    """One logical device with one queue, used from one thread at a time.

    Attributes:
        api: The library.
        adapter: The physical device.
        handle: Of Vulkan.
        is_lost: Whether the device was lost; nothing works any more.
    """

    def __init__(self, api: Api, instance: Instance, adapter: Adapter) -> None:
        self.api, self.adapter, self._instance = api, adapter, instance
        lib, ffi = api.lib, api.ffi
        top, by_name = enable_features(api)
        for name, fields in needed_features(adapter).items():
            for field in fields:
                setattr(by_name[name], field, 1)
        priority = api.array("float", [1.0])
        queue = api.struct(
            "VkDeviceQueueCreateInfo",
            queueFamilyIndex=adapter.queue_family, queueCount=1, pQueuePriorities=priority,
        )  # fmt: skip
        names = [api.text("VK_EXT_memory_budget")] if adapter.has_budget else []
        info = api.struct(
            "VkDeviceCreateInfo",
            pNext=top, queueCreateInfoCount=1, pQueueCreateInfos=queue,
            enabledExtensionCount=len(names), ppEnabledExtensionNames=api.array("char*", names),
        )  # fmt: skip
        made = api.out("VkDevice")
        api.check(lib.vkCreateDevice(adapter.handle, info, ffi.NULL, made), f"opening {adapter}")
        self.handle: Any = made[0]
        found = api.out("VkQueue")
        lib.vkGetDeviceQueue(self.handle, adapter.queue_family, 0, found)
        self._queue = found[0]
        self.pool = self.make(
            "VkCommandPool", lib.vkCreateCommandPool,
            api.struct("VkCommandPoolCreateInfo", flags=2, queueFamilyIndex=adapter.queue_family),
        )  # fmt: skip
        self._fence = self.make("VkFence", lib.vkCreateFence, api.struct("VkFenceCreateInfo"))
        self._fences = api.array("VkFence", [self._fence])
        self._is_running = False
        self.is_lost = False
        self._submits: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def make(self, kind: str, create: Any, info: Any) -> Any:
        """Return a new object of the device.

        Raises:
            VulkanError: If the driver refuses.
        """
        made = self.api.out(kind)
        self.api.check(create(self.handle, info, self.api.ffi.NULL, made), f"creating a {kind}")
        return made[0]

    def commands(self) -> Any:
        """Return a new command buffer."""
        info = self.api.struct(
            "VkCommandBufferAllocateInfo", commandPool=self.pool, commandBufferCount=1
        )
        made = self.api.ffi.new("VkCommandBuffer[]", 1)
        found = self.api.lib.vkAllocateCommandBuffers(self.handle, info, made)
        self.api.check(found, "allocating a command buffer")
        return made[0]

    def free_commands(self, commands: Any) -> None:
        """Give a command buffer back; it must not be in use."""
        held = self.api.array("VkCommandBuffer", [commands])
        self.api.lib.vkFreeCommandBuffers(self.handle, self.pool, 1, held)

    def submit(self, info: Any) -> None:
        """Hand over a prepared ``VkSubmitInfo`` once what went before is done.

        Raises:
            DeviceError: If the device was lost.
        """
        self.wait()
        result = int(self.api.lib.vkQueueSubmit(self._queue, 1, info, self._fence))
        self._fail(result, "running a step")
        self._is_running = True

    def submit_info(self, commands: Sequence[Any]) -> Any:
        """Return what ``submit`` takes for some command buffers in order."""
        held = self.api.array("VkCommandBuffer", list(commands))
        return self.api.struct(
            "VkSubmitInfo", commandBufferCount=len(commands), pCommandBuffers=held
        )

    def wait(self) -> None:
        """Wait for what was handed over.

        Raises:
            DeviceError: If the device was lost.
        """
        if self.is_lost:
            raise DeviceError(f"{self.adapter.name} was lost; close this engine and open a new one")
        if not self._is_running:
            return
        lib = self.api.lib
        result = 1
        if self.adapter.kind != "software":
            # The fence is polled: a blocked thread wakes tens of microseconds late.
            end = time.perf_counter() + _POLL_S
            status = lib.vkGetFenceStatus
            while (result := int(status(self.handle, self._fence))) == 1:
                if time.perf_counter() > end:
                    break
        while result in (1, 2):  # not ready, timeout
            result = int(
                lib.vkWaitForFences(self.handle, 1, self._fences, 1, _WAIT_NS)
            )  # Ctrl-C is heard between two waits
        self._is_running = False
        self._fail(result, "waiting for a step")
        self.api.check(lib.vkResetFences(self.handle, 1, self._fences), "resetting a fence")

    def _fail(self, result: int, what: str) -> None:
        if result == -4:
            self.is_lost = True
        try:
            self.api.check(result, f"{what} on {self.adapter.name}")
        except VulkanError:
            self._is_running = False
            raise

    def settle(self) -> None:
        """Let the driver end what it runs, also where the device is said to be lost.

        Objects that such work uses may go only after it.
        """
        if self.handle is not None:
            self.api.lib.vkDeviceWaitIdle(self.handle)

    def close(self) -> None:
        """Destroy it once all work is done; objects of it must be gone."""
        lib, null = self.api.lib, self.api.ffi.NULL
        if self.handle is None:
            return
        self.settle()
        lib.vkDestroyFence(self.handle, self._fence, null)
        lib.vkDestroyCommandPool(self.handle, self.pool, null)
        lib.vkDestroyDevice(self.handle, null)
        self.handle = None
        self._instance.close()
