"""What a host target offers to generated code: vector width and the few special instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from poot_core import Target, UnsupportedError

__all__ = ["HostMachine", "host_machine"]

ByteDot = Literal["vnni", "maddubs", "usdot", "sdot", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMachine:
    """Facts that lowering branches on; nothing else reads target features.

    Attributes:
        vector_bytes: Width of a SIMD register.
        byte_dot: How four byte products are added into 32 bits.
        has_bf16_dot: Whether vdpbf16ps exists at the full vector width.
        byte_shuffle: Intrinsic prefix for 16-entry table lookup: ``x86`` or ``neon``.
    """

    vector_bytes: int
    byte_dot: ByteDot
    has_bf16_dot: bool
    byte_shuffle: Literal["x86", "neon"]

    def lanes(self, bits: int) -> int:
        """Return how many elements of a width fill a register."""
        return self.vector_bytes * 8 // bits


_X86_BASE = frozenset({"avx2", "fma", "f16c"})


def host_machine(target: Target) -> HostMachine:
    """Return the facts of a host target.

    Raises:
        UnsupportedError: If the target is no host, or an x86 without AVX2, FMA and F16C.
    """
    found = target.features
    if target.api == "cpu" and target.arch == "aarch64":
        dot: ByteDot = "usdot" if "i8mm" in found else "sdot" if "dotprod" in found else "none"
        return HostMachine(vector_bytes=16, byte_dot=dot, has_bf16_dot=False, byte_shuffle="neon")
    if target.api != "cpu" or target.arch != "x86-64":
        raise UnsupportedError(
            f"host code is generated for cpu:x86-64 and cpu:aarch64, not {target}"
        )
    if missing := sorted(_X86_BASE - found):
        raise UnsupportedError(
            f"poot's CPU kernels need a processor with AVX2, FMA and F16C; {target} lacks "
            f"{', '.join(missing)}",
            target=str(target),
        )
    wide = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= found
    vnni = ("avx512vnni" in found) if wide else ("avxvnni" in found)
    return HostMachine(
        vector_bytes=64 if wide else 32,
        byte_dot="vnni" if vnni else "maddubs",
        has_bf16_dot=wide and "avx512bf16" in found,
        byte_shuffle="x86",
    )
