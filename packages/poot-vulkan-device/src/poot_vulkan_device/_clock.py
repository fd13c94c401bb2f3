"""Keeping an NVIDIA card awake between steps.

A process that uses Vulkan alone lets the card fall to its idle clock after about two seconds, and the
next 200 ms run at a quarter of the speed. A CUDA context that merely exists prevents it; the driver's
library has everything for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

__all__ = ["AwakeCard"]

_LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1",)


class AwakeCard:
    """Holds the primary CUDA context of the card with a given UUID, if there is one."""

    def __init__(self, uuid: bytes) -> None:
        """Take the context; does nothing where CUDA's driver or the card is not found."""
        self._library: ctypes.CDLL | None = None
        self._device = ctypes.c_int()
        for name in _LIBRARIES:
            with contextlib.suppress(OSError, AttributeError):
                if self._hold(ctypes.CDLL(name), uuid):
                    return

    @property
    def is_held(self) -> bool:
        """Whether a context is held."""
        return self._library is not None

    def _hold(self, library: ctypes.CDLL, uuid: bytes) -> bool:
        count = ctypes.c_int()
        if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
            return False
        for number in range(count.value):
            found = (ctypes.c_ubyte * 16)()
            if library.cuDeviceGet(ctypes.byref(self._device), number):
                continue
            if library.cuDeviceGetUuid(found, self._device) or bytes(found) != uuid:
                continue
            context = ctypes.c_void_p()
            if library.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._device) == 0:
                self._library = library
                return True
        return False

    def close(self) -> None:
        """Let the context go; closing twice is allowed."""
        if self._library is not None:
            self._library.cuDevicePrimaryCtxRelease(self._device)
            self._library = None
