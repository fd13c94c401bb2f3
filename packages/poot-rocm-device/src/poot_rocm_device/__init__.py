"""AMD GPUs as poot devices, through HIP."""

from poot_rocm_device._device import RocmDevice, open_device
from poot_rocm_device._driver import Driver
from poot_rocm_device._linker import Linker, comgr_linker, lld_linker

__all__ = ["Driver", "Linker", "RocmDevice", "comgr_linker", "lld_linker", "open_device"]
