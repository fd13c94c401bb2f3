"""Which kernels answer an argmax request."""

from __future__ import annotations

from typing import cast

from poot_core import DeviceCaps, Target
from poot_kernelgen._answers import answer, entry_name, gpu_answer
from poot_kernelgen._generate import GeneratedKernel
from poot_kernelgen.requests import ArgmaxRequest, Request
from poot_kernelgen.sampling._argmax import argmax_final_kernel, argmax_partial_kernel

__all__ = ["generate_argmax"]

_THREADS = 256


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
