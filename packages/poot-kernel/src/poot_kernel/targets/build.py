"""Compiling batches of kernels for any target: the registry of code generators."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

from poot_core import DeviceCaps, Settings, Target, UnsupportedError
from poot_kernel.compile import CompiledObject, CompileService, KernelPackage
from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.hashing import structural_hash

__all__ = ["PackageKernels", "compile_kernels", "package_kernels"]

PackageKernels = Callable[
    [Sequence[KernelFunction], Target, DeviceCaps, CompileService], list[KernelPackage]
]
"""What the module of a GPU target exports as ``package_kernels``: packages of verified kernels, in
their order. It is called for kernels that are not in the cache; the service is for targets that need
LLVM."""

_GPU_MODULES = {
    "ptx": "poot_kernel.targets.nvptx",
    "rocm": "poot_kernel.targets.amdgcn",
    "vulkan": "poot_kernel.targets.spirv",
    "wgpu": "poot_kernel.targets.wgsl",
}


def compile_kernels(
    functions: Sequence[KernelFunction],
    target: Target,
    service: CompileService | Settings,
    caps: DeviceCaps | None = None,
) -> list[CompiledObject]:
    """Return the kernels' objects, each with one entry of the kernel's name.

    Kernels in the cache are neither lowered nor compiled, and start no worker.

    Args:
        functions: Verified kernels.
        target: Any target.
        service: Service to use, or settings to open one for this batch.
        caps: Facts of the device; needed for GPUs.

    Raises:
        UnsupportedError: If a kernel cannot run on the target.
        CompileError: If a code generator refuses a kernel.
    """
    if isinstance(service, Settings):
        with CompileService(service) as opened:
            return compile_kernels(functions, target, opened, caps)
    if target.api == "cpu":
        from poot_kernel.targets.host.build import compile_kernels as compile_host

        return compile_host(functions, target, service)
    if caps is None:
        raise UnsupportedError(f"kernels for {target} need the device's capabilities")
    keys = [_key(function, target, caps) for function in functions]
    found = {key: service.cache.get("object", key) for key in keys}
    missing = {key: f for key, f in zip(keys, functions, strict=True) if found[key] is None}
    packages = package_kernels(list(missing.values()), target, caps, service) if missing else []
    for key, package in zip(missing, packages, strict=True):
        data = found[key] = package.encode()
        service.cache.put("object", key, data)
    return [
        CompiledObject(
            kind="gpu-package", target=target, entries=(function.name,), key=key,
            data=cast("bytes", found[key]),
        )
        for key, function in zip(keys, functions, strict=True)
    ]  # fmt: skip


def package_kernels(
    functions: Sequence[KernelFunction], target: Target, caps: DeviceCaps, service: CompileService
) -> list[KernelPackage]:
    """Return packages of kernels for a GPU, in order, without the cache.

    Raises:
        UnsupportedError: If there is no generator for the target, or it refuses a kernel.
        CompileError: If a kernel cannot be compiled.
    """
    name = _GPU_MODULES.get(target.api)
    if name is None:
        raise UnsupportedError(f"no code generator makes kernels for {target}")
    module = import_module(name)
    return cast("PackageKernels", module.package_kernels)(functions, target, caps, service)


def _key(function: KernelFunction, target: Target, caps: DeviceCaps) -> str:
    facts = replace(caps, name="", memory_bytes=0)
    parts = (structural_hash(function), function.name, str(target), repr(facts), _generators())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def _generators() -> str:
    """Return a digest of the generators' sources: what makes cached objects stale."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
