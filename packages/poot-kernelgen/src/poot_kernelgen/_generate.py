"""Kernels for requests: the registry that ``generate`` looks up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from poot_core import DeviceCaps, Target, UnsupportedError
from poot_kernel import KernelFunction
from poot_kernelgen.requests import (
    ArgmaxRequest,
    AttendRequest,
    ContractionRequest,
    CountRequest,
    FeedRequest,
    GatherRequest,
    PackRequest,
    Request,
    RowProgram,
    SampleRequest,
)

__all__ = ["GeneratedKernel", "GridAxis", "Role", "generate"]

Role = Literal["main", "merge", "partial", "final", "best", "limits", "masses", "draw", "clear"]
GridAxis = tuple[str, int | str, int]
"""(what, value, divisor): ceil(x / divisor) workgroups, x being a constant (``const``), the kernel's
argument number ``value`` (``argument``) or a symbol's value (``symbol``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedKernel:
    """One kernel that answers a request.

    Attributes:
        name: Entry name; equal names mean equal kernels.
        function: Its IR, verified.
        role: ``main``, or the part that it plays where a request needs two kernels.
        grid: How many workgroups to launch, by axis; empty for GPUs, where ``function.grid`` says it.
        grain: Fewest workgroups worth handing to a worker; host only.
        scratch_bytes: Private scratch of each worker; host only.
    """

    name: str
    function: KernelFunction
    role: Role = "main"
    grid: tuple[GridAxis, ...]
    grain: int = 1
    scratch_bytes: int = 0


Generator = Callable[[Request, Target, DeviceCaps], tuple[GeneratedKernel, ...]]

# Modules are imported when a request of their kind comes: a warm start asks for none.
_GENERATORS: dict[type, tuple[str, str]] = {
    ContractionRequest: ("poot_kernelgen.contraction", "generate_contraction"),
    PackRequest: ("poot_kernelgen.contraction", "generate_pack"),
    GatherRequest: ("poot_kernelgen.contraction", "generate_gather"),
    RowProgram: ("poot_kernelgen.rows", "generate_rows"),
    AttendRequest: ("poot_kernelgen.attention", "generate_attend"),
    ArgmaxRequest: ("poot_kernelgen.sampling", "generate_argmax"),
    SampleRequest: ("poot_kernelgen.sampling", "generate_sample"),
    FeedRequest: ("poot_kernelgen.sampling", "generate_feed"),
    CountRequest: ("poot_kernelgen.sampling", "generate_counts"),
}


def generate(request: Request, target: Target, caps: DeviceCaps) -> tuple[GeneratedKernel, ...]:
    """Return the kernels that answer a request.

    Args:
        request: What is wanted.
        target: Instruction set.
        caps: Facts of the device; they choose schedules, never the order of sums.

    Raises:
        UnsupportedError: If no kernel answers the request on this target.
    """
    found = _GENERATORS.get(type(request))
    if found is None:
        raise UnsupportedError(f"no generator answers {request!r}")
    module = import_module(found[0])
    return cast("Generator", getattr(module, found[1]))(request, target, caps)
