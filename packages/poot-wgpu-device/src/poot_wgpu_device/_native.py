"""The edge to wgpu-native: its C library through cffi, and what arrives from it by callback.

Everything beyond this file calls ``lib`` directly: the Python API of ``wgpu`` costs 13 to 24 us a
dispatch, the raw calls 2 us.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from typing import Any

from poot_core import DeviceError

__all__ = ["ErrorSlots", "Flags", "Native", "load_native"]

_STRLEN = 2**64 - 1


class Flags:
    """Bits that the header declares as constants, which cffi cannot read from a loaded library."""

    MAP_READ = 0x1
    COPY_SOURCE = 0x4
    COPY_TARGET = 0x8
    UNIFORM = 0x40
    STORAGE = 0x80
    QUERY_RESOLVE = 0x200
    COMPUTE_STAGE = 0x4
    MAP_MODE_READ = 0x1
    PRIMARY_BACKENDS = 1 << 0 | 1 << 2 | 1 << 3
    """Vulkan, Metal, Direct3D 12."""


@dataclass(frozen=True, slots=True)
class Native:
    """The loaded library.

    Attributes:
        ffi: The cffi interface that declares it.
        lib: Its functions and constants.
    """

    ffi: Any
    lib: Any

    def text(self, view: Any) -> str:
        """Return a string view as Python text."""
        if view.data == self.ffi.NULL:
            return ""
        if view.length == _STRLEN:
            return self.ffi.string(view.data).decode(errors="replace")
        return bytes(self.ffi.buffer(view.data, view.length)).decode(errors="replace")

    def view(self, text: str | bytes) -> tuple[Any, Any]:
        """Return a string view and the memory that it points into, which must outlive it."""
        raw = text.encode() if isinstance(text, str) else text
        memory = self.ffi.new("char[]", raw)
        view = self.ffi.new("WGPUStringView *")
        view.data, view.length = memory, len(raw)
        return view[0], memory


@functools.cache
def load_native() -> Native:
    """Return the library.

    Raises:
        DeviceError: If wgpu is not installed or its library cannot be loaded here.
    """
    try:
        # NOTE: private, hence the bound on wgpu's version; its public API has no raw calls.
        from wgpu.backends.wgpu_native._ffi import ffi, lib  # noqa: PLC2701
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            f"wgpu-native cannot be loaded: {error}; install the package wgpu for this platform"
        ) from error
    return Native(ffi, lib)


@dataclass(slots=True)
class ErrorSlots:
    """Errors that the library reported, by the thread whose call met them.

    Attributes:
        lost: Why the device was lost, or None.
    """

    lost: str | None = None
    _local: threading.local = field(default_factory=threading.local)

    def add(self, kind: int, message: str) -> None:
        """Keep an error until it is taken."""
        found: list[tuple[int, str]] = getattr(self._local, "found", [])
        found.append((kind, message))
        self._local.found = found

    def take(self) -> tuple[int, str] | None:
        """Return this thread's first error and forget all of them."""
        found: list[tuple[int, str]] = getattr(self._local, "found", [])
        if not found:
            return None
        self._local.found = []
        return found[0]
