"""What is refused, and how: each fault is one typed error, and the process lives on."""

import importlib
import sys
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest

from poot_core import CompileError, DeviceError, OutOfMemoryError, Target, f32
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument, SymbolArgument
from poot_kernel import compile_kernels
from poot_kernel.compile import CompiledObject, KernelPackage
from poot_ptx_device import Driver, open_device


def open_with(fake, settings, **options):
    return open_device(settings, driver=Driver(fake), **options)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("Failed to dlopen libcuda.so.1"), "libcuda"),
        ("CUDA_ERROR_NO_DEVICE", "sees no GPU"),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "two versions"),
        ("CUDA_ERROR_STUB_LIBRARY", "stub"),
    ],
)
def test_an_absent_driver_is_refused_with_its_reason(fake, settings, answer, reason):
    fake.fail("cuInit", answer)
    with pytest.raises(DeviceError, match=f"no NVIDIA driver can be used: .*{reason}"):
        open_with(fake, settings)


def test_an_absent_binding_is_refused(monkeypatch, settings):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(DeviceError, match="install cuda-bindings"):
        open_device(settings)


def test_this_machine_opens_or_says_why(settings):
    driver = importlib.import_module("cuda.bindings.driver")
    assert driver.CUresult.CUDA_SUCCESS == 0
    try:
        device = open_device(settings)
    except DeviceError as error:
        reason = error.message
    else:
        device.close()
        reason = f"{device.target} and an NVIDIA driver"
    assert "NVIDIA driver" in reason


def test_index_and_age(fake, settings):
    with open_with(fake, settings, index=1) as device:
        assert device.caps.name == "Fake GPU 1"
        assert device.target.arch == "sm_90a"
        assert (device.caps.num_workers, device.caps.max_workgroup) == (132, 1024)
    with pytest.raises(DeviceError, match=r"no GPU 2; the driver shows 0 'Fake GPU 0', 1 "):
        open_with(fake, settings, index=2)
    for name, number in (("gpu 1", 1), ("Fake", 0), ("1", 1)):
        with open_with(fake, replace(settings, device=name)) as device:
            assert device.caps.name == f"Fake GPU {number}"
    with pytest.raises(DeviceError, match="no GPU is called 'B200'"):
        open_with(fake, replace(settings, device="B200"))
    fake.facts["COMPUTE_CAPABILITY_MAJOR"] = 7
    with pytest.raises(DeviceError, match="sm_70; poot's kernels need sm_75"):
        open_with(fake, settings)


def test_out_of_memory_says_how_much(device, fake):
    fake.fail("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(OutOfMemoryError, match="lower the number of KV blocks") as caught:
        device.allocate(1 << 40, "pool")
    assert caught.value.bytes_asked == 1 << 40
    assert caught.value.bytes_free == fake.total
    assert device.allocate(64, "small").nbytes == 64  # the device still works


def test_a_refused_kernel_keeps_its_text(device, fake, settings):
    kernels = fake.kernels.values()
    objects = compile_kernels(list(kernels), device.target, device.service, device.caps)
    fake.fail("cuLinkComplete", "CUDA_ERROR_INVALID_PTX")
    with pytest.raises(CompileError, match=r"refuses kernel .*CUDA_ERROR_INVALID_PTX") as caught:
        device.load(objects[:1])
    with open(caught.value.path) as file:
        assert ".visible .entry scale" in file.read()
    assert fake.names()[-1] == "cuLinkDestroy"
    assert device.load(objects[:1])[0]["scale"].entry == "scale"


def test_foreign_objects_are_refused(device):
    package = KernelPackage(name="f", code=b"", threads=32)
    facts = {"entries": ("f",), "key": "0" * 64, "kind": "gpu-package"}
    other = CompiledObject(target=Target("ptx", "sm_80"), data=package.encode(), **facts)
    with pytest.raises(CompileError, match="cannot be loaded on ptx:sm_90a"):
        device.load([other])
    broken = CompiledObject(target=device.target, data=b"nonsense", **facts)
    with pytest.raises(CompileError, match="no packaged GPU kernel"):
        device.load([broken])
    with pytest.raises(CompileError, match="has no entry g"):
        device.load([
            CompiledObject(
                target=device.target, data=package.encode(), kind="gpu-package", entries=("g",),
                key="0" * 64,
            )
        ])  # fmt: skip


def test_cubins_are_cached_and_survive_corruption(fake, settings):
    kernels = list(fake.kernels.values())

    def links(driver):
        with open_with(driver, settings) as device:
            device.load(compile_kernels(kernels, device.target, device.service, device.caps))
        return driver.names().count("cuLinkComplete")

    assert links(fake) == len(kernels)
    again = type(fake)(kernels)
    assert links(again) == 0
    # A damaged entry is linked again; so is one that the driver does not take.
    for path in settings.kernel_cache_dir.rglob("cubin-*"):
        path.write_bytes(path.read_bytes()[:-3])
        break
    assert links(type(fake)(kernels)) == 1
    picky = type(fake)(kernels)
    picky.fail("cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE")
    assert links(picky) == 1


def test_without_a_linker_the_driver_compiles_on_load(fake, settings):
    kernels = list(fake.kernels.values())
    fake.fail("cuLinkCreate", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND")
    with open_with(fake, settings) as device:
        objects = compile_kernels(kernels[:1], device.target, device.service, device.caps)
        device.load(objects)
    images = [a[0] for n, a in fake.calls if n == "cuModuleLoadData"]
    assert images[0].startswith(b".version")


def test_kernels_that_hand_registers_over_are_compiled_on_load(fake, settings):
    kernels = list(fake.kernels.values())
    with open_with(fake, settings) as device:
        compiled = compile_kernels(kernels, device.target, device.service, device.caps)
        packages = [KernelPackage.decode(found.data) for found in compiled]
        changed = replace(packages[0], code=packages[0].code + b"// setmaxnreg")
        moving = replace(compiled[0], data=changed.encode())
        loaded = device.load([moving, *compiled[1:]])
        assert [name for one in loaded for name in one] == [p.name for p in packages]
    # The linker would ignore it; the others are linked as ever.
    assert fake.names().count("cuLinkComplete") == len(kernels) - 1
    images = [a[0] for n, a in fake.calls if n == "cuModuleLoadData"]
    assert sum(image.rstrip(b"\0").endswith(b"// setmaxnreg") for image in images) == 1


def test_a_lost_device_refuses_everything_after(device, kernels, fake):
    buffer = device.allocate(256, "x")
    device.upload(buffer, np.ones(64, np.float32))
    launch = Launch(
        kernel=kernels["scale"],
        arguments=(SymbolArgument("T"), ScalarArgument(2.0, f32), BufferArgument(buffer)),
        grid=(GridDim(symbol="T", divisor=64),),
    )
    step = device.prepare([launch] * 2)
    fake.fail("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")
    device.run(step, {"T": 64})
    with pytest.raises(DeviceError, match="device was lost: cuStreamSynchronize"):
        device.synchronize()
    before = len(fake.calls)
    for call in (
        lambda: device.run(step, {"T": 64}),
        lambda: device.download(buffer),
        lambda: device.allocate(4, "y"),
        device.synchronize,
    ):
        with pytest.raises(DeviceError, match=r"was lost \(CUDA_ERROR_ILLEGAL_ADDRESS\)"):
            call()
    buffer.free()
    device.close()  # raises nothing, and asks nothing of a dead context
    assert len(fake.calls) == before


def doubled(device, kernels):
    """Return a sequence that doubles 64 ones twice, and their buffer."""
    buffer = device.allocate(256, "x")
    device.upload(buffer, np.ones(64, np.float32))
    launch = Launch(
        kernel=kernels["scale"],
        arguments=(SymbolArgument("T"), ScalarArgument(2.0, f32), BufferArgument(buffer)),
        grid=(GridDim(symbol="T", divisor=64),),
    )
    return device.prepare([launch] * 2), buffer


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("cuStreamBeginCapture", 0),
        ("cuLaunchKernelEx", 1),
        ("cuStreamEndCapture", 0),
        ("cuGraphInstantiate", 0),
        ("cuGraphUpload", 0),
    ],
)
def test_a_capture_that_fails_half_way_leaves_no_graph_behind(device, kernels, fake, call, after):
    step, buffer = doubled(device, kernels)
    fake.fail(call, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", after=after)
    with pytest.raises(DeviceError, match=f"{call} answered CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        device.capture(step, {"T": 64})
    assert (fake.live_recordings, fake.live_graphs) == (0, 0)
    assert fake.capturing is None
    device.run(step, {"T": 64})  # launch by launch
    assert (device.download(buffer).view(np.float32) == 4).all()
    device.capture(step, {"T": 64})
    assert (fake.live_recordings, fake.live_graphs) == (0, 1)


def test_the_oldest_of_too_many_graphs_goes(device, kernels, fake):
    step, _ = doubled(device, kernels)
    for count in range(1, 131):
        device.capture(step, {"T": count})
    assert (fake.live_recordings, fake.live_graphs) == (0, 128)
    device.run(step, {"T": 1})
    assert "cuGraphLaunch" not in fake.names()
    device.run(step, {"T": 3})
    assert fake.names()[-1] == "cuGraphLaunch"


def test_another_thread_has_the_same_context(device, fake):
    thread = Thread(target=lambda: device.allocate(64, "x").free())
    before = fake.names().count("cuCtxSetCurrent")
    thread.start()
    thread.join()
    assert fake.names().count("cuCtxSetCurrent") == before + 1


def test_closing_gives_back_what_was_taken_in_order(fake, settings):
    device = open_with(fake, settings)
    objects = compile_kernels(
        list(fake.kernels.values()), device.target, device.service, device.caps
    )
    device.load(objects)
    buffer = device.allocate(256, "x")
    device.upload(buffer, np.ones(64, np.float32))
    buffer.free()
    device.close()
    device.close()
    names = fake.names()
    assert names[-1] == "cuStreamDestroy"
    assert names.count("cuModuleUnload") == len(objects)
    assert not fake.hosts
    assert not fake.memory
    with pytest.raises(DeviceError, match="closed"):
        device.allocate(4, "y")
