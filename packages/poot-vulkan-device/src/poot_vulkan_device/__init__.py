"""Vulkan devices."""
