"""Relocatable objects to code objects: AMD's code object manager, or an LLVM linker."""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poot_core import CompileError, DeviceError

__all__ = ["Linker", "comgr_linker", "find_lld", "lld_linker"]

Link = Callable[[bytes, str], bytes]
"""Takes an object's bytes and an architecture; returns a code object's."""

_RELOCATABLE, _EXECUTABLE = 7, 8  # kinds of data
# The number of the action "link relocatables to an executable" changed with the interface.
_ACTIONS = {2: 9, 3: 7}
_LIBRARIES = ("libamd_comgr.so.3", "libamd_comgr.so.2", "libamd_comgr.so")
_FOLDERS = ("/opt/rocm/lib", "/opt/rocm/lib64")


class Linker:
    """Links with what is found: comgr first, which every HIP runtime brings, then ``ld.lld``.

    Args:
        link: What to use instead, for tests.
    """

    def __init__(self, link: Link | None = None) -> None:
        self._link = link

    def __call__(self, data: bytes, arch: str) -> bytes:
        """Return the code object of a relocatable object.

        Raises:
            DeviceError: If there is no linker.
            CompileError: If the linker refuses the object.
        """
        if self._link is None:
            self._link = comgr_linker() or lld_linker()
            if self._link is None:
                raise DeviceError(
                    "kernels cannot be linked: neither libamd_comgr nor ld.lld is found; install "
                    "ROCm's comgr or an LLVM linker (Debian: lld-19)"
                )
        return self._link(data, arch)


def find_lld() -> str | None:
    """Return the path of an LLVM linker: ROCm's own, else the newest on PATH."""
    own = "/opt/rocm/llvm/bin/ld.lld"
    if os.access(own, os.X_OK):
        return own
    names = ["ld.lld", *(f"ld.lld-{number}" for number in range(30, 16, -1))]
    return next((path for name in names if (path := shutil.which(name))), None)


def lld_linker() -> Link | None:
    """Return a function that links by a child process, or None without a linker."""
    tool = find_lld()
    if tool is None:
        return None

    def link(data: bytes, arch: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="poot-link-") as folder:
            source, target = Path(folder, "kernel.o"), Path(folder, "kernel.co")
            source.write_bytes(data)
            # lld takes undefined symbols in shared objects silently unless it is told.
            command = [tool, "-shared", "--no-undefined", str(source), "-o", str(target)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CompileError(
                    f"{tool} refuses a kernel for {arch}: {done.stderr.strip()[:2000]}",
                    target=f"rocm:{arch}",
                )
            return target.read_bytes()

    return link


def comgr_linker() -> Link | None:
    """Return a function that links through libamd_comgr, or None without it."""
    library = _load_comgr()
    if library is None:
        return None
    major, minor = ctypes.c_size_t(), ctypes.c_size_t()
    library.amd_comgr_get_version(ctypes.byref(major), ctypes.byref(minor))
    action = _ACTIONS.get(major.value)
    if action is None:
        return None
    return _Comgr(library, action).link


def _load_comgr() -> Any | None:
    candidates = list(_LIBRARIES)
    for folder in _FOLDERS:
        candidates += sorted(glob.glob(f"{folder}/libamd_comgr.so*"))
    for name in candidates:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


class _Comgr:
    """Calls of the library; handles are 64-bit numbers, passed by value."""

    def __init__(self, library: Any, action: int) -> None:
        self._library, self._action = library, action

    def link(self, data: bytes, arch: str) -> bytes:
        """Return the code object of a relocatable object."""
        isa = f"amdgcn-amd-amdhsa--{arch}"
        made: list[tuple[str, ctypes.c_uint64]] = []
        try:
            source = self._make("create_data", "release_data", made, ctypes.c_int(_RELOCATABLE))
            self._do(arch, "set_data", source, ctypes.c_size_t(len(data)), data)
            self._do(arch, "set_data_name", source, b"kernel.o")
            inputs = self._make("create_data_set", "destroy_data_set", made)
            outputs = self._make("create_data_set", "destroy_data_set", made)
            self._do(arch, "data_set_add", inputs, source)
            info = self._make("create_action_info", "destroy_action_info", made)
            self._do(arch, "action_info_set_isa_name", info, isa.encode())
            self._do(arch, "do_action", ctypes.c_int(self._action), info, inputs, outputs)
            found = ctypes.c_uint64()
            self._do(
                arch, "action_data_get_data", outputs, ctypes.c_int(_EXECUTABLE),
                ctypes.c_size_t(0), ctypes.byref(found),
            )  # fmt: skip
            made.append(("release_data", found))
            size = ctypes.c_size_t()
            self._do(arch, "get_data", found, ctypes.byref(size), None)
            held = ctypes.create_string_buffer(size.value)
            self._do(arch, "get_data", found, ctypes.byref(size), held)
            return held.raw
        finally:
            for release, handle in reversed(made):
                getattr(self._library, f"amd_comgr_{release}")(handle)

    def _make(
        self, name: str, release: str, made: list[tuple[str, ctypes.c_uint64]], *arguments: Any
    ) -> ctypes.c_uint64:
        handle = ctypes.c_uint64()
        self._do("", name, *arguments, ctypes.byref(handle))
        made.append((release, handle))
        return handle

    def _do(self, arch: str, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"amd_comgr_{name}")(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.amd_comgr_status_string(ctypes.c_int(status), ctypes.byref(text))
            said = (text.value or b"").decode(errors="replace")
            raise CompileError(
                f"comgr cannot link a kernel for {arch}: amd_comgr_{name} answered {status} {said}",
                target=f"rocm:{arch}",
            )
