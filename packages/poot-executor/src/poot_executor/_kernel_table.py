"""The kernels of a program: which answers which request, how it is launched, its code."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KernelRecord", "KernelTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One kernel.

    Attributes:
        request: Index of the request that it answers.
        role: ``main``, ``merge``, ``partial`` or ``final``.
        object_index: Which object holds it.
        entry: Name of the function.
        parameters: Names of its parameters, in order.
        grid: Workgroups of each axis, as a size over the names of scalar parameters.
        grain: Fewest workgroups worth handing to a worker; host only.
        scratch: Private bytes of each worker, as a size too; host only.
        workgroup: Invocations of a workgroup; 1 on the host.
    """

    request: int
    role: str
    object_index: int
    entry: str
    parameters: tuple[str, ...]
    grid: tuple[str, ...]
    grain: int = 1
    scratch: str = "0"
    workgroup: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """All kernels of a program; what a warm start reads instead of planning and compiling.

    Attributes:
        kernels: In no order that matters.
        entries: For each object its entries.
        objects: For each object its compiled bytes.
        kinds: For each object its kind, as compile requests name it.
        packers: For each distinct layout of the program's matrices the index of its packing
            request, which follow the program's own.
        matrix_bytes: For each matrix its size as laid out.
    """

    kernels: tuple[KernelRecord, ...]
    entries: tuple[tuple[str, ...], ...]
    objects: tuple[bytes, ...]
    kinds: tuple[str, ...]
    packers: tuple[int, ...]
    matrix_bytes: tuple[int, ...]
