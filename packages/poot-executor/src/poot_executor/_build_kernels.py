"""Asking kernelgen for a program's kernels and compiling them in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from poot_core import DeviceCaps, Target
from poot_executor._kernel_table import KernelRecord, KernelTable
from poot_executor._program import Program
from poot_kernelgen import PackRequest, Request

if TYPE_CHECKING:
    from poot_kernel.compile import CompileService

__all__ = ["build_kernels"]


def build_kernels(
    program: Program, target: Target, caps: DeviceCaps, service: CompileService
) -> KernelTable:
    """Return all kernels of a program, packing kernels included, compiled in parallel.

    Raises:
        UnsupportedError: If no kernel answers a request on this target; names the request.
        CompileError: If the code generator refuses a kernel.
    """
    from poot_kernelgen import generate, packed_bytes

    layouts = list(dict.fromkeys(program.layouts))
    requests: list[Request] = [*program.requests]
    packers = tuple(range(len(requests), len(requests) + len(layouts)))
    requests += [PackRequest(layout=layout) for layout in layouts]
    functions: list[Any] = []
    records: list[KernelRecord] = []
    known: dict[str, int] = {}
    for index, request in enumerate(requests):
        for kernel in generate(request, target, caps):
            number = known.setdefault(kernel.name, len(functions))
            if number == len(functions):
                functions.append(kernel.function)
            records.append(
                KernelRecord(
                    request=index,
                    role=kernel.role,
                    object_index=number,
                    entry=kernel.name,
                    parameters=tuple(p.name for p in kernel.function.parameters),
                    grid=tuple(map(str, kernel.function.grid)),
                    grain=kernel.grain,
                    scratch=str(kernel.scratch_bytes),
                    workgroup=kernel.function.workgroup_size or 1,
                )
            )
    objects = _compile(functions, target, caps, service)
    return KernelTable(
        kernels=tuple(records),
        entries=tuple(x.entries for x in objects),
        objects=tuple(x.data for x in objects),
        kinds=tuple(x.kind for x in objects),
        packers=packers,
        matrix_bytes=tuple(
            packed_bytes(layout, matrix.n, matrix.k)
            for layout, matrix in zip(program.layouts, program.matrices, strict=True)
        ),
    )


def _compile(
    functions: Sequence[Any], target: Target, caps: DeviceCaps, service: CompileService
) -> list[Any]:
    from poot_kernel import compile_kernels

    return list(compile_kernels(functions, target, service, caps))
