"""Descriptions of arrays for the copy engine (TMA), in memory of the alignment that it wants."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from poot_core import DeviceError
from poot_executor.stream_device import StreamDriver

__all__ = ["MAP_BYTES", "MapEncoder", "aligned_words"]

MAP_BYTES = 128
_BFLOAT16, _UINT8, _UINT32 = 9, 0, 2
_TYPES = {2: _BFLOAT16, 1: _UINT8, 4: _UINT32}
_SWIZZLES = {32: 1, 64: 2, 128: 3}  # by the bytes of a row of the box
_PROMOTE_256 = 3
_CUDA_12 = 12000

Words = np.ndarray[Any, np.dtype[np.int64]]


def aligned_words(count: int) -> Words:
    """Return zeroed 8-byte words that start at a multiple of 64 bytes."""
    raw = np.zeros(count + 8, np.int64)
    skip = -int(raw.ctypes.data) % 64 // 8
    return raw[skip : skip + count]


class MapEncoder:
    """Encodes row-major arrays with rows of a box 32, 64 or 128 bytes wide, swizzled by as much.

    The binding's own wrapper places its result wherever Python puts it, which the driver refuses;
    so the function is taken from the driver by address.
    """

    def __init__(self, driver: StreamDriver) -> None:
        self._driver = driver
        self._encode: Callable[..., int] | None = None

    def encode(
        self,
        target: Words,
        address: int,
        shape: tuple[int, ...],
        box: tuple[int, ...],
        itemsize: int,
    ) -> None:
        """Write a map over ``target``, 16 aligned words.

        Raises:
            DeviceError: If the driver refuses the array.
        """
        rank = len(shape)
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        strides: list[int] = []
        total = itemsize
        for extent in reversed(shape[1:]):
            total *= extent
            strides.append(total)
        failed = self._function()(
            int(target.ctypes.data), _TYPES[itemsize], rank, address, wide(*reversed(shape)),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides), narrow(*reversed(box)),
            narrow(*([1] * rank)), 0, _SWIZZLES[box[-1] * itemsize], _PROMOTE_256, 0,
        )  # fmt: skip
        if failed:
            raise DeviceError(
                f"the driver refuses to describe an array of shape {shape}, box {box}, at "
                f"{address:#x} to the copy engine (error {failed})"
            )

    def _function(self) -> Callable[..., int]:
        if self._encode is None:
            flags = self._driver.binding.cuuint64_t(0)
            found = self._driver.call(
                "cuGetProcAddress", b"cuTensorMapEncodeTiled", _CUDA_12, flags
            )
            address = int(found[0] if isinstance(found, tuple) else found)
            pointer, word = ctypes.c_void_p, ctypes.c_uint32
            kind = ctypes.CFUNCTYPE(
                ctypes.c_int, pointer, ctypes.c_int, word, pointer, pointer, pointer, pointer,
                pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            )  # fmt: skip
            self._encode = kind(address)
        return self._encode
