"""Names and launch shapes of generated kernels."""

from __future__ import annotations

import hashlib

from poot_core import Target
from poot_kernel import ArrayType, KernelFunction, Size, scratch_size
from poot_kernelgen._generate import GeneratedKernel, GridAxis, Role
from poot_kernelgen._lanes import lane_count

__all__ = ["answer", "entry_name", "gpu_answer"]


def entry_name(stem: str, request: object, target: Target) -> str:
    """Return a name that differs between requests and between widths of the host's vectors."""
    digest = hashlib.sha256(f"{request!r} {lane_count(target)}".encode()).hexdigest()[:12]
    return f"{stem}_{digest}"


def answer(function: KernelFunction, role: Role = "main", grain: int = 1) -> GeneratedKernel:
    """Return a kernel with the launch shape that its own grid says."""
    scratch = scratch_size(function).constant
    assert scratch is not None, "row, attention and sampling kernels have constant scratch"
    return GeneratedKernel(
        name=function.name,
        function=function,
        role=role,
        grid=tuple(_axis(function, size) for size in function.grid),
        grain=grain,
        scratch_bytes=scratch,
    )


def gpu_answer(function: KernelFunction, role: Role = "main") -> GeneratedKernel:
    """Return a kernel for a GPU: its function alone says how it is launched."""
    return GeneratedKernel(name=function.name, function=function, role=role, grid=())


def _axis(function: KernelFunction, size: Size) -> GridAxis:
    if size.constant is not None:
        return ("const", size.constant, 1)
    divisor = 1
    if size.kind == "ceildiv":
        size, by = size.arguments
        assert by.constant is not None
        divisor = by.constant
    names = [p.name for p in function.parameters if not isinstance(p.type, ArrayType)]
    assert size.name in names, f"{size} is no scalar of {function.name!r}"
    index = next(i for i, p in enumerate(function.parameters) if p.name == size.name)
    return ("argument", index, divisor)
