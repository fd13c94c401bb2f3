"""One instance of the loader, with the validation layer where it is asked for."""

from __future__ import annotations

import logging
from typing import Any

from poot_core import DeviceError
from poot_vulkan_device._api import Api

__all__ = ["Instance"]

_logger = logging.getLogger("poot.vulkan")
_VALIDATION = "VK_LAYER_KHRONOS_validation"
_DEBUG = "VK_EXT_debug_utils"
_VERSION = 1 << 22 | 3 << 12  # 1.3.0


class Instance:
    """An instance; closed after every device of it.

    Attributes:
        handle: Of Vulkan.
        messages: What the validation layer has said, in order.
    """

    def __init__(self, api: Api, *, validate: bool) -> None:
        """Open it.

        Args:
            api: The library.
            validate: Whether the Khronos validation layer is to watch.

        Raises:
            DeviceError: If no driver is installed, or the layer is wanted and absent.
        """
        self._api = api
        self.messages: list[str] = []
        ffi, lib = api.ffi, api.lib
        if validate and _VALIDATION not in self._layers():
            raise DeviceError(
                f"checks are on, but {_VALIDATION} is not installed (Debian: "
                "vulkan-validationlayers)"
            )
        names = [api.text(_VALIDATION)] if validate else []
        extensions = [api.text(_DEBUG)] if validate else []
        application = api.struct(
            "VkApplicationInfo", pApplicationName=api.text("poot"), apiVersion=_VERSION
        )
        info = api.struct(
            "VkInstanceCreateInfo",
            pApplicationInfo=application,
            enabledLayerCount=len(names),
            ppEnabledLayerNames=api.array("char*", names),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=api.array("char*", extensions),
        )
        made = api.out("VkInstance")
        result = int(lib.vkCreateInstance(info, ffi.NULL, made))
        if result == -9:
            raise DeviceError(
                "no Vulkan driver is installed; install the graphics driver (Debian: "
                "mesa-vulkan-drivers)"
            )
        api.check(result, "opening Vulkan")
        self.handle = made[0]
        self._messenger: Any = None
        if validate:
            self._listen()

    def _layers(self) -> set[str]:
        api = self._api
        count = api.out("uint32_t")
        api.check(api.lib.vkEnumerateInstanceLayerProperties(count, api.ffi.NULL), "listing layers")
        found = api.ffi.new("VkLayerProperties[]", count[0])
        api.check(api.lib.vkEnumerateInstanceLayerProperties(count, found), "listing layers")
        return {api.string(found[i].layerName) for i in range(count[0])}

    def _function(self, name: str) -> Any:
        api = self._api
        pointer = api.lib.vkGetInstanceProcAddr(self.handle, api.text(name))
        return api.ffi.cast(f"PFN_{name}", pointer)

    def _listen(self) -> None:
        api = self._api

        def told(severity: int, _types: int, data: Any, _user: Any) -> int:
            text = api.string(data.pMessage)
            self.messages.append(text)
            _logger.warning("validation (%d): %s", severity, text)
            return 0

        signature = "VkBool32(int, uint32_t, VkDebugUtilsMessengerCallbackDataEXT*, void*)"
        callback: Any = api.ffi.callback(signature, told)
        self._callback = callback
        kind = api.ffi.typeof("PFN_vkDebugUtilsMessengerCallbackEXT")
        info = api.struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=0x1100,  # warnings and errors
            messageType=0x7,
            pfnUserCallback=api.ffi.cast(kind, callback),
        )
        made = api.out("VkDebugUtilsMessengerEXT")
        create = self._function("vkCreateDebugUtilsMessengerEXT")
        api.check(create(self.handle, info, api.ffi.NULL, made), "listening to validation")
        self._messenger = made[0]

    def close(self) -> None:
        """Destroy it; closing twice is allowed."""
        if self.handle is None:
            return
        api = self._api
        if self._messenger is not None:
            destroy = self._function("vkDestroyDebugUtilsMessengerEXT")
            destroy(self.handle, self._messenger, api.ffi.NULL)
        api.lib.vkDestroyInstance(self.handle, api.ffi.NULL)
        self.handle = None
