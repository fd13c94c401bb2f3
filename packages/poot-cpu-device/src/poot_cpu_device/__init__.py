"""The host CPU as a poot device: memory, thread team, launch and replay."""

from poot_cpu_device._device import CpuDevice, open_device

__all__ = ["CpuDevice", "open_device"]
