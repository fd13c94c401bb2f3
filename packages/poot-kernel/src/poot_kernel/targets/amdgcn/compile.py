"""Kernel IR to LLVM IR for AMDGCN."""

from __future__ import annotations

from collections.abc import Mapping

from poot_core import DType, f32
from poot_kernel.ir.core import KernelFunction
from poot_kernel.targets.amdgcn.atoms import architecture
from poot_kernel.targets.amdgcn.machine import AmdMachine
from poot_kernel.targets.common.lower import (
    DeviceKernel,
    default_threads,
    lower_kernel,
    parameter_dtypes,
)
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts

__all__ = ["compile_amdgcn"]


def compile_amdgcn(
    kernel: KernelFunction,
    *,
    arch: str = "gfx1100",
    threads: int | None = None,
    multiples: Mapping[str, int] | None = None,
) -> DeviceKernel:
    """Return a kernel as LLVM IR text, for a ``llvm-amdgcn-object`` request.

    Args:
        kernel: A verified kernel.
        arch: GPU architecture.
        threads: Invocations of a workgroup; chosen by the products' shapes without.
        multiples: What the caller promises of arguments, see ``compile_ptx``.

    Raises:
        UnsupportedError: If the kernel uses what GPU targets do not lower yet.
    """
    machine = AmdMachine(architecture(arch))
    count = threads or default_threads(kernel, machine.subgroup_size)
    found = parameter_dtypes(kernel)
    arguments = [Register(f"%p{number}", dtype) for number, (_, dtype) in enumerate(found)]
    parameters = [f"{_parameter_type(x.dtype)} {x.code}" for x in arguments]
    low = lower_kernel(
        kernel, machine, FragmentProducts(), arguments, threads=count, multiples=multiples or {}
    )
    block = f"[{max(16, low.shared_bytes)} x i8]"
    lines = [
        f"@shared_block = internal addrspace(3) global {block} poison, align 128",
        *machine.declared.values(),
        f"define amdgpu_kernel void @{kernel.name}({', '.join(parameters)}) #0 {{",
        "entry:",
        *machine.entry,
        "  br label %start",
        "start:",
        *machine.body,
        "  ret void",
        "}",
        f'attributes #0 = {{ nounwind "amdgpu-flat-work-group-size"="{count},{count}" }}',
        "!llvm.module.flags = !{!0}",
        '!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}',
    ]
    return DeviceKernel(
        name=kernel.name, code="\n".join(lines) + "\n", threads=count, shared_bytes=0,
        parameters=tuple(kind for kind, _ in found),
    )  # fmt: skip


def _parameter_type(dtype: DType) -> str:
    return "float" if dtype is f32 else "i64" if dtype.bits == 64 else "i32"
