"""What is refused, and how: each fault is one typed error, and the process lives on."""

import sys
from hashlib import sha256
from threading import Thread

import numpy as np
import pytest

from poot_amd_sim import SimulatedHip, find_programs, record_image
from poot_core import CompileError, DeviceError, OutOfMemoryError, Settings, Target, f32
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument, SymbolArgument
from poot_kernel import compile_kernels
from poot_kernel.compile import CompiledObject, KernelPackage
from poot_rocm_device import Driver, Linker, lld_linker, open_device

pytestmark = pytest.mark.sim


def open_with(hip, service, settings=None, **options):
    options.setdefault("linker", Linker(lambda data, arch: data))
    return open_device(settings or Settings(), driver=Driver(hip), service=service, **options)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("failed to dlopen 'libamdhip64.so'"), "libamdhip64 is not there"),
        ("hipErrorNoDevice", "sees no GPU"),
        ("hipErrorInsufficientDriver", "too old"),
        ("hipErrorInvalidValue", "hipInit answered hipErrorInvalidValue"),
    ],
)
def test_an_absent_runtime_is_refused_with_its_reason(hip, service, answer, reason):
    hip.fail("hipInit", answer)
    with pytest.raises(DeviceError, match=f"HIP cannot be used: .*{reason}"):
        open_with(hip, service)


def test_an_absent_binding_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "hip", None)
    with pytest.raises(DeviceError, match="install hip-python"):
        open_device(Settings())


def test_this_machine_opens_or_says_why():
    """Without a stand-in: the real binding is loaded, and finds a GPU or no runtime."""
    try:
        device = open_device(Settings())
    except DeviceError as error:
        reason = error.message
    else:
        device.close()
        reason = f"HIP opens {device.target}"
    assert "HIP" in reason


def test_which_gpu_and_which_architecture(service):
    two = SimulatedHip(service.cache, "gfx942", num_devices=2)
    with open_with(two, service, Settings(device="1")) as device:
        assert device.caps.name == "Simulated GPU 1"
        assert (device.target.arch, device.caps.subgroup_size) == ("gfx942", 64)
        assert (device.caps.num_workers, device.caps.max_workgroup) == (4, 1024)
    with pytest.raises(
        DeviceError, match=r"no AMD GPU '2'; there are 0: Simulated GPU 0 \(gfx942\)"
    ):
        open_with(two, service, Settings(device="2"))
    with open_with(two, service, Settings(device="gpu 0")) as device:
        assert device.caps.name == "Simulated GPU 0"
    with pytest.raises(DeviceError, match="'gfx803' is not covered yet; covered are"):
        open_with(SimulatedHip(service.cache, "gfx803"), service)
    with pytest.raises(DeviceError, match="sees no GPU"):
        open_with(SimulatedHip(service.cache, num_devices=0), service)


def test_out_of_memory_says_how_much(device, hip):
    with pytest.raises(OutOfMemoryError, match="lower the number of KV blocks") as caught:
        device.allocate(1 << 40, "pool")
    assert caught.value.bytes_asked == 1 << 40
    assert caught.value.bytes_free == hip.memory.free_bytes
    assert device.allocate(64, "small").nbytes == 64  # the device still works


@pytest.fixture
def objects(device, kernel_list):
    return compile_kernels(kernel_list, device.target, device.service, device.caps)


def test_a_refused_code_object_is_kept(device, hip, objects):
    hip.fail("hipModuleLoadData", "hipErrorInvalidImage")
    hip.fail("hipModuleGetFunction", "hipErrorNotFound")
    with pytest.raises(CompileError, match=r"HIP refuses kernel .*hipErrorNotFound") as caught:
        device.load(objects[:1])
    with open(caught.value.path) as file:
        assert bytes.fromhex(file.read()[:8]) == b"\x7fELF"
    assert device.load(objects[:1])[0]["scale"].entry == "scale"


def test_a_code_object_is_linked_anew_where_the_runtime_refuses_the_cached_one(
    hip, service, objects
):
    links = []

    def link(data, arch):
        links.append(arch)
        return data

    with open_with(hip, service, linker=Linker(link)) as device:
        device.load(objects)
        links.clear()
        device.load(objects)
        assert not links
        hip.fail("hipModuleLoadData", "hipErrorInvalidImage")
        device.load(objects[:1])
        assert links == ["gfx1100"]


def test_a_refusing_linker_is_one_typed_error(hip, service, tmp_path):
    def link(data, arch):
        raise CompileError(f"undefined symbol for {arch}")

    with open_with(hip, service, linker=Linker(link)) as device:
        package = KernelPackage(name="f", code=b"\x7fELF and more", threads=32)
        found = CompiledObject(
            target=device.target, data=package.encode(), kind="gpu-package", entries=("f",),
            key="0" * 64,
        )  # fmt: skip
        with pytest.raises(CompileError, match="undefined symbol for gfx1100"):
            device.load([found])


def test_foreign_objects_are_refused(device):
    package = KernelPackage(name="f", code=b"text", threads=32)
    facts = {"entries": ("f",), "key": "0" * 64, "kind": "gpu-package"}
    other = CompiledObject(target=Target("rocm", "gfx942"), data=package.encode(), **facts)
    with pytest.raises(CompileError, match="cannot be loaded on rocm:gfx1100"):
        device.load([other])
    broken = CompiledObject(target=device.target, data=b"nonsense", **facts)
    with pytest.raises(CompileError, match="no packaged GPU kernel"):
        device.load([broken])
    no_elf = CompiledObject(target=device.target, data=package.encode(), **facts)
    with pytest.raises(CompileError, match="is no ELF object"):
        device.load([no_elf])
    renamed = {**facts, "entries": ("g",)}
    with pytest.raises(CompileError, match="has no entry g"):
        device.load([CompiledObject(target=device.target, data=package.encode(), **renamed)])


def step_of(device, kernels):
    buffer = device.allocate(256, "x")
    device.upload(buffer, np.ones(64, np.float32))
    launch = Launch(
        kernel=kernels["scale"],
        arguments=(SymbolArgument("T"), ScalarArgument(2.0, f32), BufferArgument(buffer)),
        grid=(GridDim(symbol="T", divisor=64),),
    )
    return device.prepare([launch] * 2), buffer


def test_a_lost_device_refuses_everything_after(device, kernels, hip):
    step, buffer = step_of(device, kernels)
    hip.fail("hipStreamSynchronize", "hipErrorIllegalAddress")
    device.run(step, {"T": 64})
    with pytest.raises(DeviceError, match="device was lost: hipStreamSynchronize"):
        device.synchronize()
    before = len(hip.calls)
    for call in (
        lambda: device.run(step, {"T": 64}),
        lambda: device.download(buffer),
        lambda: device.allocate(4, "y"),
        device.synchronize,
    ):
        with pytest.raises(DeviceError, match=r"was lost \(hipErrorIllegalAddress\)"):
            call()
    buffer.free()
    device.close()  # raises nothing, and asks nothing of a dead device
    assert len(hip.calls) == before


@pytest.mark.parametrize(
    ("call", "after"),
    [("hipModuleLaunchKernel", 1), ("hipGraphInstantiateWithFlags", 0), ("hipGraphUpload", 0)],
)
def test_a_capture_that_fails_half_way_leaves_no_graph_behind(device, kernels, hip, call, after):
    step, buffer = step_of(device, kernels)
    hip.fail(call, "hipErrorLaunchOutOfResources", after=after)
    with pytest.raises(DeviceError, match="LaunchOutOfResources"):
        device.capture(step, {"T": 64})
    assert not hip.live.get("graph")
    assert not hip.live.get("executable")
    device.run(step, {"T": 64})
    assert (device.download(buffer).view(np.float32) == 4).all()


def test_closing_gives_back_what_was_taken(hip, service, kernel_list):
    device = open_with(hip, service)
    objects = compile_kernels(kernel_list, device.target, service, device.caps)
    device.load(objects)
    buffer = device.allocate(256, "x")
    device.upload(buffer, np.ones(64, np.float32))
    buffer.free()
    device.close()
    device.close()
    assert hip.names()[-1] == "hipStreamDestroy"
    assert not any(hip.live.values())
    with pytest.raises(DeviceError, match="closed"):
        device.allocate(4, "y")


def test_other_threads_get_the_same_gpu(device, hip):
    thread = Thread(target=lambda: device.allocate(64, "x").free())
    before = hip.names().count("hipSetDevice")
    thread.start()
    thread.join()
    assert hip.names().count("hipSetDevice") == before + 1


def test_a_linked_code_object_runs(hip, service, objects):
    """As on a real machine: what the linker made is what the runtime loads."""
    lld = lld_linker()
    if lld is None:
        pytest.skip("no LLVM linker (Debian: lld-19)")

    def link(data, arch):
        image = lld(data, arch)
        assert image != data
        record_image(
            service.cache, image, service.cache.get("amd-assembly", sha256(data).hexdigest())
        )
        return image

    with open_with(hip, service, linker=Linker(link)) as device:
        hip.fail("hipModuleLoadData", "hipErrorInvalidImage")  # so that the cached one is not taken
        (found,) = device.load(objects[:1])
        buffer = device.allocate(256, "x")
        device.upload(buffer, np.ones(64, np.float32))
        launch = Launch(
            kernel=found["scale"],
            arguments=(SymbolArgument("T"), ScalarArgument(2.0, f32), BufferArgument(buffer)),
            grid=(GridDim(symbol="T", divisor=64),),
        )
        device.run(device.prepare([launch]), {"T": 64})
        assert (device.download(buffer).view(np.float32) == 2).all()
    assert find_programs(service.cache, b"something else") is None
