"""The binding at its edge: the raw library, structures that keep alive what they point to, errors.

The ``vulkan`` package's own functions are slow and lose nested structures; here its cffi library is
called directly. Everything of that package is untyped, so it stays behind this module.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from poot_core import DeviceError

__all__ = ["Api", "VulkanError", "load_api"]

_SPECIAL = {
    "VkPhysicalDeviceVulkan11Features": "PHYSICAL_DEVICE_VULKAN_1_1_FEATURES",
    "VkPhysicalDeviceVulkan12Features": "PHYSICAL_DEVICE_VULKAN_1_2_FEATURES",
    "VkPhysicalDeviceVulkan13Features": "PHYSICAL_DEVICE_VULKAN_1_3_FEATURES",
    "VkPhysicalDeviceVulkan11Properties": "PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES",
    "VkPhysicalDeviceVulkan12Properties": "PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES",
    "VkPhysicalDeviceVulkan13Properties": "PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES",
}
_RESULTS = {
    -1: "out of host memory", -2: "out of device memory", -3: "initialisation failed",
    -4: "the device was lost", -5: "memory cannot be mapped", -6: "a layer is absent",
    -7: "an extension is absent", -8: "a feature is absent", -9: "the driver is incompatible",
    -10: "too many objects", -12: "memory is fragmented", -1000012000: "the shader is invalid",
}  # fmt: skip


class VulkanError(DeviceError):
    """A Vulkan call failed; ``result`` is its VkResult."""

    result: int


class Api:
    """The loaded library.

    Attributes:
        ffi: cffi.
        lib: The library's functions and constants.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi, self.lib = ffi, lib
        self._kept: dict[int, tuple[Any, ...]] = {}

    def struct(self, name: str, **fields: Any) -> Any:
        """Return a pointer to a new structure with its type tag; it keeps its fields alive."""
        made = self.ffi.new(f"{name}*")
        kept: list[Any] = []
        for field, value in fields.items():
            if isinstance(value, list | tuple):
                raise TypeError(f"{name}.{field} needs an array of the binding's")
            setattr(made, field, value)
            kept.append(value)
        if hasattr(made, "sType"):
            made.sType = _tag(self.lib, name)
        # A destructor that does nothing holds the fields as long as the structure lives.
        return self.ffi.gc(made, _Holder(made, kept))

    def array(self, kind: str, values: Any) -> Any:
        """Return a C array."""
        return self.ffi.new(f"{kind}[]", values)

    def out(self, kind: str) -> Any:
        """Return a pointer for a result."""
        return self.ffi.new(f"{kind}*")

    def text(self, value: str) -> Any:
        """Return a C string."""
        return self.ffi.new("char[]", value.encode())

    def string(self, value: Any) -> str:
        """Return a Python string."""
        return self.ffi.string(value).decode(errors="replace")

    def check(self, result: int, what: str) -> None:
        """Raise unless a call succeeded.

        Raises:
            VulkanError: With the result's meaning.
        """
        if result < 0:
            meaning = _RESULTS.get(result, "an unknown error")
            hint = ""
            if result == -4:
                hint = "; close this engine and open a new one"
            raise VulkanError(f"{what} failed: {meaning} (VkResult {result}){hint}", result=result)


class _Holder:
    def __init__(self, *held: Any) -> None:
        self._held = held

    def __call__(self, _: Any) -> None:
        return None


def _tag(lib: Any, name: str) -> int:
    stem = _SPECIAL.get(name)
    if stem is None:
        words = re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[0-9])(?=[A-Z][a-z])", "_", name[2:])
        stem = words.upper()
        for suffix in ("EXT", "KHR", "NV"):
            if stem.endswith(suffix) and not stem.endswith("_" + suffix):
                stem = f"{stem.removesuffix(suffix)}_{suffix}"
    return int(getattr(lib, f"VK_STRUCTURE_TYPE_{stem}"))


def load_api() -> Api:
    """Return the library.

    Raises:
        DeviceError: If there is no Vulkan loader here.
    """
    try:
        binding: Any = import_module("vulkan._vulkan")
    except (OSError, ImportError) as error:
        raise DeviceError(
            f"no Vulkan loader can be opened ({error}); install the graphics driver and its loader "
            "(Debian: libvulkan1, and mesa-vulkan-drivers for Mesa's)"
        ) from error
    return Api(binding.ffi, binding.lib)
