"""Which GPU kernel answers a contraction, packing or gathering request."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from poot_core import DeviceCaps, UnsupportedError
from poot_kernelgen._answers import gpu_answer
from poot_kernelgen._generate import GeneratedKernel
from poot_kernelgen.contraction._codec import is_dense
from poot_kernelgen.contraction.gpu._gather import build_gather
from poot_kernelgen.contraction.gpu._multiply import build_multiply
from poot_kernelgen.contraction.gpu._pack import build_pack
from poot_kernelgen.contraction.gpu._shape import choose_blocking, k_lanes
from poot_kernelgen.requests import ContractionRequest, GatherRequest, PackRequest

__all__ = ["generate_contraction", "generate_gather", "generate_pack"]

_THREADS = 128


def _name(stem: str, *facts: object) -> str:
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:10]
    return f"{stem}_{digest}".lower()


def generate_contraction(
    request: ContractionRequest, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernel of a contraction for its number of rows.

    Raises:
        UnsupportedError: If the weight cannot be multiplied with this kind of activation.
    """
    source, activation = request.weight.source, request.activation
    if activation == "bf16":
        raise UnsupportedError("no GPU schedule takes bf16 activations; f32 and 8 bits are taken")
    if activation in {"i8", "i8r"} and is_dense(source):
        raise UnsupportedError(f"weights stored as {source} take f32 activations, not {activation}")
    blocking = choose_blocking(request, caps)
    # Regimes that are cut alike share a kernel.
    facts = replace(request, regime="one")
    name = _name(f"contract_{source}_{activation}_{blocking.rows}", facts, blocking)
    return (gpu_answer(build_multiply(request, blocking, name)),)


def generate_pack(request: PackRequest, caps: DeviceCaps) -> tuple[GeneratedKernel, ...]:
    """Return the kernel that re-lays stored rows."""
    threads = _threads(caps)
    name = _name(f"pack_{request.layout.source}", request, threads)
    return (gpu_answer(build_pack(request, name, threads)),)


def generate_gather(request: GatherRequest, caps: DeviceCaps) -> tuple[GeneratedKernel, ...]:
    """Return the kernel that reads rows by number."""
    threads = _threads(caps)
    name = _name(f"gather_{request.layout.source}", request, threads)
    return (gpu_answer(build_gather(request, name, threads)),)


def _threads(caps: DeviceCaps) -> int:
    return max(k_lanes(caps), min(_THREADS, caps.max_workgroup))
