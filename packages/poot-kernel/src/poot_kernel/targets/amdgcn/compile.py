"""Kernel IR to LLVM IR for AMDGCN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poot_core import DeviceCaps, DType, Target, UnsupportedError, f32
from poot_kernel.compile import CompileRequest, CompileService, KernelPackage
from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.types import ArrayType
from poot_kernel.targets.amdgcn.atoms import architecture
from poot_kernel.targets.amdgcn.machine import AmdMachine
from poot_kernel.targets.common.chunks import ChunkedProducts
from poot_kernel.targets.common.lower import (
    DeviceKernel,
    default_threads,
    lower_kernel,
    parameter_dtypes,
)
from poot_kernel.targets.common.machine import Register

__all__ = ["compile_amdgcn", "package_kernels"]

_SUMS = 32  # a lane's sums: they are kept twice where products are cut into chunks


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
    lanes = machine.subgroup_size
    count = threads or default_threads(kernel, lanes, share=_SUMS * lanes)
    found = parameter_dtypes(kernel)
    arguments = [Register(f"%p{number}", dtype) for number, (_, dtype) in enumerate(found)]
    parameters = [f"{_parameter_type(x.dtype)} {x.code}" for x in arguments]
    low = lower_kernel(
        kernel, machine, ChunkedProducts(), arguments, threads=count, multiples=multiples or {}
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


def package_kernels(
    functions: Sequence[KernelFunction],
    target: Target,
    caps: DeviceCaps,
    service: CompileService,
) -> list[KernelPackage]:
    """Return packages of relocatable objects, in order; a device links them.

    Args:
        functions: Verified kernels.
        target: A ``rocm`` target.
        caps: Facts of the device.
        service: Compiles the LLVM IR.

    Raises:
        UnsupportedError: If a kernel uses what is not lowered for GPUs.
        CompileError: If LLVM refuses a kernel.
    """
    facts = architecture(target.arch)
    if caps.subgroup_size != facts.subgroup_size:
        raise UnsupportedError(
            f"{target} runs waves of {facts.subgroup_size}, not of {caps.subgroup_size}"
        )
    built = [
        compile_amdgcn(function, arch=target.arch, multiples=_promised(function))
        for function in functions
    ]
    objects = service.compile(
        [
            CompileRequest(
                kind="llvm-amdgcn-object",
                ir=str(kernel.code),
                target=target,
                entries=(kernel.name,),
            )
            for kernel in built
        ]
    )
    return [
        KernelPackage(
            name=kernel.name,
            code=found.data,
            threads=kernel.threads,
            parameters=tuple(
                (value.name, kind)
                for value, kind in zip(function.parameters, kernel.parameters, strict=True)
            ),
            grid=tuple(map(str, function.grid)),
        )
        for function, kernel, found in zip(functions, built, objects, strict=True)
    ]


def _promised(function: KernelFunction) -> dict[str, int]:
    """Return what a kernel's own text promises: arrays are aligned, scalars are multiples."""
    found = {
        value.name: value.type.alignment
        for value in function.parameters
        if isinstance(value.type, ArrayType)
    }
    for op in function.body.walk():
        if op.opcode == "assume_multiple" and op.operands[0] in function.parameters:
            factor = op.attributes["factor"]
            assert isinstance(factor, int)
            found[op.operands[0].name] = factor
    return found


def _parameter_type(dtype: DType) -> str:
    return "float" if dtype is f32 else "i64" if dtype.bits == 64 else "i32"
