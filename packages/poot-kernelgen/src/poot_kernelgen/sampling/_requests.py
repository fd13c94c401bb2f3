"""Which kernels answer the requests of the sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from poot_core import DeviceCaps, Target
from poot_kernel import KernelFunction
from poot_kernelgen._answers import answer, entry_name, gpu_answer
from poot_kernelgen._generate import GeneratedKernel, Role
from poot_kernelgen.requests import ArgmaxRequest, Request, SampleRequest
from poot_kernelgen.sampling._argmax import argmax_final_kernel, argmax_partial_kernel

__all__ = ["generate_argmax", "generate_counts", "generate_feed", "generate_sample"]

_THREADS = 256
_ROW_SUBGROUPS = 32
"""Of a workgroup that goes over a whole row of logits; code for reductions grows with them."""


def generate_argmax(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernels over chunks of columns and over rows."""
    found = cast("ArgmaxRequest", request)
    if caps.max_workgroup > 1:
        threads = max(caps.subgroup_size, min(_THREADS, caps.max_workgroup))
        facts = (found, threads)
        names = (entry_name(f"argmax_{part}", facts, target) for part in ("partial", "final"))
        first, second = names
        return (
            gpu_answer(argmax_partial_kernel(found, first, threads), "partial"),
            gpu_answer(argmax_final_kernel(second, threads), "final"),
        )
    partial = argmax_partial_kernel(found, entry_name("argmax_partial", found, target))
    final = argmax_final_kernel(entry_name("argmax_final", found, target))
    return answer(partial, "partial", grain=2), answer(final, "final")


def generate_sample(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernels that choose the next token of rows."""
    from poot_kernelgen.sampling import _best, _draw, _limits

    found = cast("SampleRequest", request)
    narrow = _threads(caps, _THREADS)
    wide = _threads(caps, _ROW_SUBGROUPS * caps.subgroup_size)
    first = _best.counted_best if found.counted else _best.best
    last = _draw.counted_draw if found.counted else _draw.draw
    kernels: tuple[tuple[Role, KernelFunction, int], ...] = (
        ("best", first.specialise(CHUNK=found.chunk, THREADS=narrow), 1),
        ("limits", _limits.limits.specialise(THREADS=wide), 1),
        ("masses", _draw.masses.specialise(BLOCK=found.block, THREADS=narrow), 4),
        ("draw", last.specialise(BLOCK=found.block, THREADS=narrow), 1),
    )
    return tuple(
        _answer(function, role, function.workgroup_size, target, grain)
        for role, function, grain in kernels
    )


def generate_feed(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernel that puts last tokens into a step."""
    from poot_kernelgen.sampling._tables import feed

    threads = _threads(caps, _THREADS)
    return (_answer(feed.specialise(THREADS=threads), "main", (request, threads), target),)


def generate_counts(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernels that set what penalties count of a slot."""
    from poot_kernelgen.sampling._tables import clear_counts, set_counts

    threads = _threads(caps, _THREADS)
    facts = (request, threads)
    return (
        _answer(clear_counts.specialise(THREADS=threads), "clear", facts, target),
        _answer(set_counts.specialise(THREADS=threads), "main", facts, target),
    )


def _threads(caps: DeviceCaps, wanted: int) -> int | None:
    """Return the invocations of a workgroup; on the host its vectors say it."""
    if caps.max_workgroup <= 1:
        return None
    return max(caps.subgroup_size, min(wanted, caps.max_workgroup))


def _answer(
    function: KernelFunction, role: Role, facts: Any, target: Target, grain: int = 1
) -> GeneratedKernel:
    stem = f"sample_{role}"
    named = replace(function, name=entry_name(stem, (function.name, facts), target))
    if function.workgroup_size is None:
        return answer(named, role, grain)
    return gpu_answer(named, role)
