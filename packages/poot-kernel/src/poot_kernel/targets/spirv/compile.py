"""Kernel IR to a SPIR-V module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poot_core import DeviceCaps, DType, Target, u64
from poot_kernel.compile import CompileService, KernelPackage
from poot_kernel.ir.core import KernelFunction
from poot_kernel.targets.common.lower import (
    DeviceKernel,
    default_threads,
    lower_kernel,
    parameter_dtypes,
)
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.spirv.cooperative import CooperativeMachine, CooperativeProducts
from poot_kernel.targets.spirv.machine import SpirvMachine
from poot_kernel.targets.spirv.module import STORAGE

__all__ = ["compile_spirv", "package_kernels"]


def package_kernels(
    functions: Sequence[KernelFunction], target: Target, caps: DeviceCaps, service: CompileService
) -> list[KernelPackage]:
    """Return SPIR-V modules of lane and tile kernels for a Vulkan device; see ``targets/build.py``.

    Features of the target: ``coopmat`` (KHR cooperative matrices of 16), ``dot8`` (packed dot
    products), ``floats`` (infinities and NaN are kept), ``push256`` (256 bytes of push constants,
    else 128).
    """
    _ = service
    packages: list[KernelPackage] = []
    for function in functions:
        built = compile_spirv(
            function, subgroup_size=caps.subgroup_size, features=target.features,
            shared_limit=caps.shared_bytes,
        )  # fmt: skip
        assert isinstance(built.code, bytes)
        names = [parameter.name for parameter in function.parameters]
        packages.append(
            KernelPackage(
                name=function.name, code=built.code, threads=built.threads,
                parameters=tuple(zip(names, built.parameters, strict=True)),
                grid=tuple(map(str, function.grid)),
            )
        )  # fmt: skip
    return packages


def compile_spirv(
    kernel: KernelFunction,
    *,
    threads: int | None = None,
    multiples: Mapping[str, int] | None = None,
    subgroup_size: int = 32,
    features: frozenset[str] = frozenset({"coopmat", "dot8"}),
    shared_limit: int = 48 * 1024,
) -> DeviceKernel:
    """Return a kernel as a SPIR-V module whose arguments are push constants of 8 bytes each.

    Where they are too many for push constants, the only one is the address of their block.

    Args:
        kernel: A verified kernel.
        threads: Invocations of a workgroup; chosen by the products' shapes without.
        multiples: What the caller promises of arguments, see ``compile_ptx``.
        subgroup_size: Lanes of a subgroup, which the pipeline must ask for.
        features: See ``package_kernels``.
        shared_limit: Bytes of workgroup memory.

    Raises:
        UnsupportedError: If the kernel uses what GPU targets do not lower yet.
    """
    has_matrices = "coopmat" in features
    machine = (CooperativeMachine if has_matrices else SpirvMachine)(subgroup_size, features)
    machine.shared_limit = shared_limit
    products = CooperativeProducts() if has_matrices else FragmentProducts()
    count = threads or default_threads(kernel, machine.subgroup_size, share=4096)
    dtypes = [dtype for _, dtype in parameter_dtypes(kernel)]
    limit = 256 if "push256" in features else 128
    with machine.at_entry():
        if 8 * len(dtypes) <= limit:
            arguments = _push_constants(machine, dtypes)
        else:
            (block,) = _push_constants(machine, [u64])
            arguments = [
                machine.load("global", block, 8 * number, dtype, 1)[0]
                for number, dtype in enumerate(dtypes)
            ]
    low = lower_kernel(
        kernel, machine, products, arguments, threads=count, multiples=multiples or {}
    )
    _finish(machine, count, low.shared_bytes)
    names = tuple(kind for kind, _ in parameter_dtypes(kernel))
    return DeviceKernel(
        name="main", code=machine.module.binary(), threads=count, shared_bytes=0, parameters=names
    )


def _push_constants(machine: SpirvMachine, dtypes: list[DType]) -> list[Register]:
    m = machine.module
    types = [machine.type_of(dtype) for dtype in dtypes]
    block, variable = m.fresh(), m.fresh()
    m.emit("TypeStruct", block, *types, section="types")
    m.emit("Decorate", block, 2, section="decorations")
    for number in range(len(types)):
        m.emit("MemberDecorate", block, number, 35, 8 * number, section="decorations")
    pointer = m.pointer("PushConstant", block)
    m.emit("Variable", pointer, variable, STORAGE["PushConstant"], section="types")
    machine.interface.append(variable)
    found: list[Register] = []
    for number, (kind, dtype) in enumerate(zip(types, dtypes, strict=True)):
        at = m.value("AccessChain", m.pointer("PushConstant", kind), variable, machine.word(number))
        found.append(machine.wrap(m.value("Load", kind, at), dtype))
    return found


def _finish(machine: SpirvMachine, threads: int, shared_bytes: int) -> None:
    m = machine.module
    interface = list(machine.interface)
    if shared_bytes:
        array = m.type("TypeArray", machine.quad, machine.word(shared_bytes // 16))
        pointer = m.pointer("Workgroup", array)
        m.emit("Variable", pointer, machine.shared, STORAGE["Workgroup"], section="types")
        interface.append(machine.shared)
    main, label = m.fresh(), m.fresh()
    kind = m.type("TypeFunction", machine.void)
    m.emit("Function", machine.void, main, 0, kind, section="prologue")
    m.emit("Label", label, section="prologue")
    m.emit("Return")
    m.emit("FunctionEnd")
    m.once("Extension", "extensions", "SPV_KHR_physical_storage_buffer")
    m.emit("MemoryModel", 5348, 3, section="memory")
    m.emit("EntryPoint", 5, main, "main", *interface, section="entry_points")
    m.emit("ExecutionMode", main, 17, threads, 1, 1, section="modes")
    if "floats" in machine.features:
        m.once("Capability", "capabilities", 4466)  # SignedZeroInfNanPreserve
        m.emit("ExecutionMode", main, 4461, 32, section="modes")
