"""WebGPU adapters as a poot device, over wgpu-native."""

from poot_wgpu_device._adapter import AdapterFacts, list_adapters
from poot_wgpu_device._device import WgpuDevice, open_device

__all__ = ["AdapterFacts", "WgpuDevice", "list_adapters", "open_device"]
