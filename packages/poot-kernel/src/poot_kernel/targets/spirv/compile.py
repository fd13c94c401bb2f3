"""Kernel IR to a SPIR-V module."""

from __future__ import annotations

from collections.abc import Mapping

from poot_core import DType
from poot_kernel.ir.core import KernelFunction
from poot_kernel.targets.common.lower import (
    DeviceKernel,
    default_threads,
    lower_kernel,
    parameter_dtypes,
)
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.spirv.cooperative import CooperativeMachine, CooperativeProducts
from poot_kernel.targets.spirv.module import STORAGE

__all__ = ["compile_spirv"]


def compile_spirv(
    kernel: KernelFunction,
    *,
    threads: int | None = None,
    multiples: Mapping[str, int] | None = None,
) -> DeviceKernel:
    """Return a kernel as a SPIR-V module whose arguments are push constants of 8 bytes each.

    Args:
        kernel: A verified kernel.
        threads: Invocations of a workgroup; chosen by the products' shapes without.
        multiples: What the caller promises of arguments, see ``compile_ptx``.

    Raises:
        UnsupportedError: If the kernel uses what GPU targets do not lower yet.
    """
    machine = CooperativeMachine()
    count = threads or default_threads(kernel, machine.subgroup_size, share=4096)
    dtypes = [dtype for _, dtype in parameter_dtypes(kernel)]
    with machine.at_entry():
        arguments = _push_constants(machine, dtypes)
    low = lower_kernel(
        kernel, machine, CooperativeProducts(), arguments, threads=count, multiples=multiples or {}
    )
    _finish(machine, count, low.shared_bytes)
    names = tuple(kind for kind, _ in parameter_dtypes(kernel))
    return DeviceKernel(
        name="main", code=machine.module.binary(), threads=count, shared_bytes=0, parameters=names
    )


def _push_constants(machine: CooperativeMachine, dtypes: list[DType]) -> list[Register]:
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


def _finish(machine: CooperativeMachine, threads: int, shared_bytes: int) -> None:
    m = machine.module
    quads = machine.word(max(1, shared_bytes // 16))
    array = m.type("TypeArray", machine.quad, quads)
    pointer = m.pointer("Workgroup", array)
    m.emit("Variable", pointer, machine.shared, STORAGE["Workgroup"], section="types")
    main, label = m.fresh(), m.fresh()
    kind = m.type("TypeFunction", machine.void)
    m.emit("Function", machine.void, main, 0, kind, section="prologue")
    m.emit("Label", label, section="prologue")
    m.emit("Return")
    m.emit("FunctionEnd")
    m.once("Extension", "extensions", "SPV_KHR_physical_storage_buffer")
    m.emit("MemoryModel", 5348, 3, section="memory")
    m.emit(
        "EntryPoint", 5, main, "main", *machine.interface, machine.shared, section="entry_points"
    )
    m.emit("ExecutionMode", main, 17, threads, 1, 1, section="modes")
