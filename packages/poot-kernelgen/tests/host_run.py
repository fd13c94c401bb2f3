"""Runs generated kernels in this process: compile, load, call with NumPy arrays."""

from __future__ import annotations

import ctypes
import itertools
import struct
from functools import cache
from typing import Any

import numpy as np

from poot_core import DeviceCaps, Settings, Target
from poot_kernel import compile_kernels
from poot_kernel.compile import CompileService, host_arch, host_target, load_objects
from poot_kernelgen import GeneratedKernel, Request, generate

CAPS = DeviceCaps(
    name="test", vector_bytes=64, subgroup_size=16, num_workers=2, shared_bytes=1 << 20,
    memory_bytes=1 << 33,
)  # fmt: skip
_SETTINGS = Settings()


@cache
def _service() -> CompileService:
    return CompileService(_SETTINGS, num_workers=2)


def native_target() -> Target:
    return host_target(_SETTINGS)


def avx2_target() -> Target:
    found = native_target()
    kept = frozenset(f for f in found.features if not f.startswith("avx512") and f != "avxvnni")
    return Target(found.api, found.arch, kept - {"gfni"})


_loaded: dict[tuple[str, str], tuple[GeneratedKernel, Any, Any]] = {}


def kernel_of(request: Request, target: Target) -> tuple[GeneratedKernel, Any]:
    (kernel,) = generate(request, target, CAPS)
    key = (kernel.name, str(target))
    if key not in _loaded:
        (compiled,) = compile_kernels([kernel.function], target, _service())
        code = load_objects([compiled.data], host_arch())
        prototype = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )
        _loaded[key] = (kernel, prototype(code.symbols[0][kernel.name]), code)
    return kernel, _loaded[key][1]


def _slot(argument: Any) -> bytes:
    if isinstance(argument, np.ndarray):
        return struct.pack("<q", argument.ctypes.data)
    if isinstance(argument, float | np.floating):
        return struct.pack("<fi", float(argument), 0)
    return struct.pack("<q", int(argument))


def aligned(shape: Any, dtype: Any) -> np.ndarray:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def call(request: Request, target: Target, arguments: list[Any], *, chunks: int = 2) -> None:
    """Run all workgroups of a kernel in a few calls, as a team would."""
    kernel, function = kernel_of(request, target)
    slots = aligned((8 * len(arguments),), np.uint8)
    slots[:] = np.frombuffer(b"".join(_slot(a) for a in arguments), np.uint8)
    total = 1
    for what, value, divisor in kernel.grid:
        number = value if what == "const" else arguments[int(value)]
        total *= -(-int(number) // divisor)
    scratch = aligned((kernel.scratch_bytes + 64,), np.uint8)
    scratch[:] = 0xA5
    edges = np.linspace(0, total, chunks + 1).astype(int)
    for begin, end in itertools.pairwise(edges):
        function(slots.ctypes.data, int(begin), int(end), scratch.ctypes.data)
