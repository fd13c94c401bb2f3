"""NVIDIA GPUs as poot devices, through the CUDA driver alone."""

from poot_ptx_device._device import PtxDevice, open_device
from poot_ptx_device._driver import Driver

__all__ = ["Driver", "PtxDevice", "open_device"]
