"""Which kernel answers a row program."""

from __future__ import annotations

from typing import cast

from poot_core import DeviceCaps, Target
from poot_kernelgen._answers import answer, entry_name, gpu_answer
from poot_kernelgen._generate import GeneratedKernel
from poot_kernelgen.requests import Request, RowProgram
from poot_kernelgen.rows._generate import row_kernel
from poot_kernelgen.rows._plan import RowPlan

__all__ = ["generate_rows", "row_threads"]

_MOST_THREADS, _LONG, _LONG_THREADS = 512, 8192, 1024


def row_threads(program: RowProgram, caps: DeviceCaps) -> int:
    """Return how many invocations share a row on a GPU: four to eight elements each."""
    plan = RowPlan(program)
    largest = max((plan.size(output.value) for output in program.outputs), default=1)
    most = min(_LONG_THREADS if largest > _LONG else _MOST_THREADS, caps.max_workgroup)
    threads = caps.subgroup_size
    while threads * 4 < largest and threads * 2 <= most:
        threads *= 2
    return threads


def generate_rows(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernel of a row program.

    Raises:
        UnsupportedError: If an operation is unknown or an output's kind does not fit.
    """
    found = cast("RowProgram", request)
    if caps.max_workgroup > 1:
        threads = row_threads(found, caps)
        name = entry_name("rows", (found, threads), target)
        kernel = row_kernel(found, target, name, threads, subgroup_size=caps.subgroup_size)
        return (gpu_answer(kernel),)
    return (answer(row_kernel(found, target, entry_name("rows", found, target)), grain=4),)
