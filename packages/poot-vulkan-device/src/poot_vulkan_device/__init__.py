"""Vulkan 1.3 devices: buffer device addresses, push constants, recorded command buffers."""

from poot_vulkan_device._device import VulkanDevice, open_device

__all__ = ["VulkanDevice", "open_device"]
