"""How a poot target is spelled for LLVM: triple, processor, features, relocation model."""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import Target, UnsupportedError
from poot_kernel.compile._request import CompileKind

__all__ = ["LlvmTarget", "llvm_target"]

# The x86-64 psABI levels. A level brings its scheduling model; features are still listed one by one.
_X86_LEVELS = (
    ("x86-64-v4", {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe",
                   "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"}),
    ("x86-64-v2", {"sse4.2", "popcnt"}),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LlvmTarget:
    """Arguments of an LLVM target machine.

    Attributes:
        triple: Target triple. Host objects are ELF on every host: poot loads them itself.
        cpu: Processor name.
        features: Comma-separated ``+feature`` and ``-feature``.
        reloc: ``pic`` or ``default``.
        output: ``object`` or ``assembly``.
        self_contained: Whether an undefined symbol is an error.
    """

    triple: str
    cpu: str
    features: str
    reloc: str
    output: str
    self_contained: bool


def llvm_target(kind: CompileKind, target: Target) -> LlvmTarget:
    """Return how ``target`` is spelled for LLVM.

    Raises:
        UnsupportedError: If ``kind`` cannot be compiled for ``target``.
    """
    features = ",".join(f"+{name}" for name in sorted(target.features))
    match kind, target.api:
        case "llvm-host-object", "cpu" if target.arch == "x86-64":
            # Kernels choose their vector width themselves; v4's tuning would split 512-bit vectors.
            return LlvmTarget(
                triple="x86_64-unknown-linux-gnu",
                cpu=_x86_level(target.features),
                features=",".join(filter(None, (features, "-prefer-256-bit"))),
                reloc="pic",
                output="object",
                self_contained=True,
            )
        case "llvm-host-object", "cpu" if target.arch == "aarch64":
            # x18 belongs to the platform on macOS and Windows.
            return LlvmTarget(
                triple="aarch64-unknown-linux-gnu",
                cpu="generic",
                features=",".join(filter(None, ("+neon", "+reserve-x18", features))),
                reloc="pic",
                output="object",
                self_contained=True,
            )
        case "llvm-nvptx", "ptx":
            return LlvmTarget(
                triple="nvptx64-nvidia-cuda",
                cpu=target.arch,
                features=features,
                reloc="default",
                output="assembly",
                self_contained=False,
            )
        case (("llvm-amdgcn-object" | "llvm-amdgcn-assembly"), "rocm"):
            return LlvmTarget(
                triple="amdgcn-amd-amdhsa",
                cpu=target.arch,
                features="",  # an AMD target's features are poot's own words
                reloc="pic",
                output=kind.removeprefix("llvm-amdgcn-"),
                self_contained=False,
            )
        case _:
            raise UnsupportedError(
                f"{kind!r} cannot be compiled for {target}: llvm-host-object takes cpu:x86-64 and "
                "cpu:aarch64, llvm-nvptx takes ptx:*, llvm-amdgcn-* take rocm:*",
                target=str(target),
            )


def _x86_level(features: frozenset[str]) -> str:
    for name, needed in _X86_LEVELS:
        if needed <= features:
            return name
    return "x86-64"
