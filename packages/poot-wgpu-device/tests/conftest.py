"""The first adapter as a device, and small kernels from poot's own generator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from poot_core import DeviceError, Settings, f32, i32, i64
from poot_kernel import IRBuilder, KernelFunction, compile_kernels
from poot_wgpu_device import WgpuDevice, open_device


def lane_index(b: IRBuilder):
    """Return the invocation's number in the grid of workgroups of 64."""
    return b.add(b.mul(b.workgroup_id(), 64), b.convert(b.query("local_id"), i64))


def add_kernel() -> KernelFunction:
    """y[i] += x[i] for i below n."""
    b = IRBuilder("add", level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
    x, y = b.array("x", f32, ["n"]), b.array("y", f32, ["n"], access="rw")
    n = b.scalar("n")
    index = lane_index(b)
    with b.if_(b.compare("lt", index, n)) as branch, branch.then():
        b.store(y, index, b.add(b.load(x, index), b.load(y, index)))
    return b.finish()


def scale_kernel() -> KernelFunction:
    """y[i] *= a for i below n."""
    b = IRBuilder("scale", level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
    y, a, n = b.array("y", f32, ["n"], access="rw"), b.scalar("a", f32), b.scalar("n")
    index = lane_index(b)
    with b.if_(b.compare("lt", index, n)) as branch, branch.then():
        b.store(y, index, b.mul(b.load(y, index), a))
    return b.finish()


def count_kernel() -> KernelFunction:
    """counts[column] += 1 for each workgroup of a grid of columns by rows; seen[0] = rows."""
    b = IRBuilder("count", level="lane", grid=["columns", "rows"], workgroup_size=32)
    counts, seen = (
        b.array("counts", i32, ["columns"], access="rw"),
        b.array("seen", i32, [1], access="w"),
    )
    b.scalar("columns")
    rows = b.scalar("rows")
    first = b.compare("eq", b.convert(b.query("local_id"), i64), 0)
    with b.if_(first) as branch, branch.then():
        b.atomic("add", counts, b.workgroup_id(0), b.constant(1, i32))
        b.store(seen, 0, b.convert(rows, i32))
    return b.finish()


def sum_kernel(count: int) -> KernelFunction:
    """y[i] = the sum of ``count`` arrays at i, 64 elements each."""
    b = IRBuilder(f"sum{count}", level="lane", grid=[1], workgroup_size=64)
    arrays = [b.array(f"x{number}", f32, [64]) for number in range(count)]
    y = b.array("y", f32, [64], access="w")
    index = lane_index(b)
    total = b.load(arrays[0], index)
    for array in arrays[1:]:
        total = b.add(total, b.load(array, index))
    b.store(y, index, total)
    return b.finish()


def load_kernels(device: WgpuDevice, *functions: KernelFunction):
    """Return loaded kernels by name."""
    objects = compile_kernels(functions, device.target, device.service, device.caps)
    return {name: kernel for found in device.load(objects) for name, kernel in found.items()}


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(kernel_cache_dir=tmp_path_factory.mktemp("kernels"))


def open_or_skip(settings: Settings) -> WgpuDevice:
    try:
        return open_device(settings)
    except DeviceError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def device(settings: Settings) -> Iterator[WgpuDevice]:
    with open_or_skip(settings) as found:
        yield found


@pytest.fixture
def own_device(settings: Settings) -> Iterator[WgpuDevice]:
    """A device that a test may break."""
    with open_or_skip(settings) as found:
        yield found


@pytest.fixture(scope="session")
def functions():
    """Kernels by name, not compiled."""
    return {f.name: f for f in (add_kernel(), scale_kernel(), count_kernel())}


@pytest.fixture(scope="session")
def kernels(device: WgpuDevice, functions):
    return load_kernels(device, *functions.values())


@pytest.fixture
def load():
    """Return ``load_kernels``."""
    return load_kernels


@pytest.fixture
def load_sum():
    """Return a function that loads the kernel which adds so many arrays."""

    def load_one(device: WgpuDevice, count: int):
        return load_kernels(device, sum_kernel(count))[f"sum{count}"]

    return load_one
