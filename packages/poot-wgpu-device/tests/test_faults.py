"""Absent, lost and refusing devices: one typed error each."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from poot_core import CompileError, DeviceError, Settings, f32, i64
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument
from poot_kernel.compile import CompiledObject, KernelPackage
from poot_kernel.targets.wgsl import ArrayAccess, array_section
from poot_wgpu_device import AdapterFacts, open_device
from poot_wgpu_device._adapter import choose_adapter
from poot_wgpu_device._native import load_native


def facts(name, kind="discrete GPU", vendor=0x1002, sizes=(0, 0)):
    return AdapterFacts(
        name=name, driver="", kind=kind, backend="Vulkan", vendor=vendor, subgroup_sizes=sizes,
        features=frozenset(), handle=None, limits=None,
    )  # fmt: skip


def test_no_adapter_is_refused_with_what_to_install():
    with pytest.raises(DeviceError, match=r"no WebGPU adapter: .* install the GPU's driver"):
        choose_adapter((), None)


def test_one_of_several_adapters_is_chosen_by_number_or_name():
    adapters = (facts("Radeon"), facts("GeForce"), facts("llvmpipe", "software"))
    assert choose_adapter(adapters, None).name == "Radeon"
    assert choose_adapter(adapters, "1").name == "GeForce"
    assert choose_adapter(adapters, "PIPE").name == "llvmpipe"
    for wanted in ("3", "Arc"):
        with pytest.raises(DeviceError, match=f"no WebGPU adapter '{wanted}'; there are 0: Radeon"):
            choose_adapter(adapters, wanted)


def test_subgroups_are_trusted_where_their_size_is_one():
    assert facts("H200", vendor=0x10DE).has_one_subgroup_size
    assert facts("llvmpipe", "software", vendor=0x10005).has_one_subgroup_size
    assert facts("Radeon", sizes=(64, 64)).has_one_subgroup_size
    assert not facts("Radeon").has_one_subgroup_size
    assert not facts("Radeon", sizes=(32, 64)).has_one_subgroup_size


def test_a_missing_library_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "wgpu.backends.wgpu_native._ffi", None)
    load_native.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"wgpu-native cannot be loaded: .*; install"):
            load_native()
    finally:
        load_native.cache_clear()


def _python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_system_without_drivers_is_refused():
    code = (
        "from poot_core import Settings, DeviceError\n"
        "from poot_wgpu_device import open_device\n"
        "try:\n    open_device(Settings())\n"
        "except DeviceError as error:\n    print(error)\n"
    )
    nowhere = {"VK_ICD_FILENAMES": "/nonexistent", "VK_DRIVER_FILES": "/nonexistent"}
    assert "no WebGPU adapter" in _python(code, **nowhere)


@pytest.mark.device
def test_opening_says_nothing_where_there_is_no_display_server():
    code = (
        "import os\n"
        "from poot_core import Settings\n"
        "from poot_wgpu_device import open_device\n"
        "open_device(Settings()).close()\n"
        "assert 'NODEVICE_SELECT' not in os.environ\n"
    )
    away = ("XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "DISPLAY", "NODEVICE_SELECT")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120,
        env={name: value for name, value in os.environ.items() if name not in away},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.device
def test_it_runs_without_llvmlite(device, tmp_path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from poot_core import Settings, f32\n"
        "from poot_kernel import IRBuilder, compile_kernels\n"
        "from poot_wgpu_device import open_device\n"
        "b = IRBuilder('one', level='lane', grid=[1], workgroup_size=32)\n"
        "y = b.array('y', f32, [1], access='w')\n"
        "b.store(y, 0, b.constant(1.0))\n"
        "with open_device(Settings(kernel_cache_dir=Path(sys.argv[1]))) as device:\n"
        "    found = compile_kernels([b.finish()], device.target, device.service, device.caps)\n"
        "    device.load(found)\n"
        "assert 'llvmlite' not in sys.modules\n"
        "print('ran')\n"
    )
    assert "ran" in _python(f"import sys; sys.argv.append({str(tmp_path)!r})\n{code}")


@pytest.mark.device
def test_a_software_adapter_says_so(device):
    assert device.caps.is_software == device._gpu.adapter.is_software


@pytest.mark.device
def test_an_unknown_adapter_is_refused(device):
    with pytest.raises(DeviceError, match="no WebGPU adapter 'no such card'; there are 0:"):
        open_device(Settings(device="no such card"))


def scale(kernel, buffer):
    arguments = (BufferArgument(buffer), ScalarArgument(2.0, f32), ScalarArgument(64, i64))
    return Launch(kernel=kernel, arguments=arguments, grid=(GridDim(),))


@pytest.mark.device
def test_a_device_lost_between_steps_is_one_error(own_device, functions, load):
    kernel = load(own_device, functions["scale"])["scale"]
    buffer = own_device.allocate(256, "x")
    sequence = own_device.prepare([scale(kernel, buffer)])
    own_device.run(sequence, {})
    gpu = own_device._gpu
    gpu.native.lib.wgpuDeviceDestroy(gpu.device)
    with pytest.raises(DeviceError, match="was lost"):
        own_device.run(sequence, {})
    with pytest.raises(DeviceError, match="was lost"):
        own_device.allocate(64, "y")
    with pytest.raises(DeviceError, match="was lost"):
        own_device.download(buffer)
    own_device.close()
    own_device.close()
    with pytest.raises(DeviceError, match="is closed"):
        own_device.run(sequence, {})


@pytest.mark.device
def test_a_refused_shader_keeps_its_source_and_the_device_goes_on(device, kernels):
    code = (
        "@group(0) @binding(0) var<uniform> p: vec4<u32>;\n"
        + array_section({0: ArrayAccess("u32", True, ("store",))})
        + "@compute @workgroup_size(64) fn main() { store0(0u, 1.5); }\n"
    )
    package = KernelPackage(
        name="wrong", code=code.encode(), threads=64, parameters=(("y", "pointer"),), grid=("1",)
    )
    compiled = CompiledObject(
        kind="gpu-package", target=device.target, entries=("wrong",), key="k" * 64,
        data=package.encode(),
    )  # fmt: skip
    kernel = device.load([compiled])[0]["wrong"]
    buffer = device.allocate(256, "x")
    step = Launch(kernel=kernel, arguments=(BufferArgument(buffer),), grid=(GridDim(),))
    with pytest.raises(CompileError, match="refuses kernel 'wrong'") as caught:
        device.prepare([step])
    with open(caught.value.path) as file:
        assert file.read() == code
    device.upload(buffer, np.ones(64, np.float32))
    device.run(device.prepare([scale(kernels["scale"], buffer)]), {})
    assert (device.download(buffer).view(np.float32) == 2).all()


@pytest.mark.device
def test_what_is_no_package_is_refused(device):
    good = KernelPackage(name="f", code=b"", threads=1).encode()
    compiled = CompiledObject(
        kind="gpu-package", target=device.target, entries=("f",), key="k" * 64, data=good
    )
    device.load([compiled])
    for data in (b"", b"spoiled", good[:20]):
        with pytest.raises(CompileError, match="no packaged GPU kernel"):
            device.load([replace(compiled, data=data)])
    with pytest.raises(CompileError, match="has no entry g"):
        device.load([replace(compiled, entries=("g",))])
    with pytest.raises(CompileError, match="cannot be loaded"):
        device.load([replace(compiled, kind="llvm-nvptx")])
