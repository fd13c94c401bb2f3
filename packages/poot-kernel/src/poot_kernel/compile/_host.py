"""What this process runs on: instruction set and features, found without LLVM."""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path

from poot_core import Settings, SettingsError, Target, UnsupportedError
from poot_kernel.compile._cpuid import cpuid_features, sysctl_features

__all__ = ["host_arch", "host_features", "host_target"]

# NOTE: avx512vbmi is left out on purpose. With it LLVM 22 never finishes instruction selection of some
# byte decodes (Q6_K's: and, shl, or, sub of <64 x i8> into vpdpbusd), and no kernel needs vpermb.
# Linux's name of each x86 flag -> LLVM's; what a kernel may choose by, and what psABI levels need.
_X86_FLAGS = {
    "sse4_2": "sse4.2", "popcnt": "popcnt", "avx2": "avx2", "fma": "fma", "f16c": "f16c",
    "bmi1": "bmi", "bmi2": "bmi2", "abm": "lzcnt", "movbe": "movbe", "avx_vnni": "avxvnni",
    "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
    "avx512vl": "avx512vl", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "avx512_vbmi2": "avx512vbmi2", "avx512_fp16": "avx512fp16", "gfni": "gfni",
}  # fmt: skip
_ARM_FLAGS = {
    "asimddp": "dotprod", "asimdhp": "fullfp16", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve",
    "sve2": "sve2",
}  # fmt: skip
# A mask names generations: 'avx2' keeps what every AVX2 processor has, 'avx512f' what psABI's v4 has.
_BASE = frozenset({"sse4.2", "popcnt"})
_AVX2 = _BASE | {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def host_arch() -> str:
    """Return ``x86-64`` or ``aarch64``.

    Raises:
        UnsupportedError: On any other processor.
    """
    machine = platform.machine().lower()
    if machine in {"x86_64", "amd64"}:
        return "x86-64"
    if machine in {"aarch64", "arm64"}:
        return "aarch64"
    raise UnsupportedError(f"no kernels for processor {machine!r}; there are x86-64 and aarch64")


@functools.cache
def host_features() -> frozenset[str]:
    """Return LLVM's names of the features that this processor and operating system offer."""
    table = _X86_FLAGS if host_arch() == "x86-64" else _ARM_FLAGS
    if sys.platform == "linux":
        flags = _cpuinfo_flags()
    elif host_arch() == "x86-64":
        flags = cpuid_features()
    else:
        flags = sysctl_features()
    return frozenset(table[flag] for flag in flags if flag in table)


def host_target(settings: Settings) -> Target:
    """Return the target that kernels for this process are compiled for.

    ``settings.cpu_features`` masks the host's: ``avx2`` keeps the AVX2 generation (with FMA and
    F16C), ``avx512f`` that of AVX-512 without its extensions; other names are kept one by one.

    Raises:
        SettingsError: If the mask names a feature that poot does not know.
    """
    arch = host_arch()
    features = host_features()
    if settings.cpu_features is not None:
        features &= _expanded(settings.cpu_features, arch)
    return Target("cpu", arch, features)


def _expanded(mask: frozenset[str], arch: str) -> frozenset[str]:
    known = frozenset((_X86_FLAGS if arch == "x86-64" else _ARM_FLAGS).values()) | {"neon", "none"}
    if unknown := mask - known:
        raise SettingsError(
            f"POOT_CPU_FEATURES names {', '.join(sorted(unknown))}; "
            f"for {arch} poot knows {', '.join(sorted(known))}"
        )
    kept = mask
    if any(name.startswith("avx512") for name in mask):
        kept |= _AVX512
    elif any(name.startswith(("avx", "fma", "f16c")) for name in mask):
        kept |= _AVX2
    return kept | _BASE


def _cpuinfo_flags() -> frozenset[str]:
    # Every processor has a line; all must offer a feature (big.LITTLE, and virtual machines).
    common: frozenset[str] | None = None
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            flags = frozenset(value.split())
            common = flags if common is None else common & flags
    return common or frozenset()
