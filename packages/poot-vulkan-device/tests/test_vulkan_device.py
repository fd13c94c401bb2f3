"""Memory, launches, replay and refusals of a real Vulkan device."""

import struct

import numpy as np
import pytest

from poot_core import (
    CompileError,
    DeviceError,
    OutOfMemoryError,
    ShapeError,
    f32,
    i32,
    i64,
)
from poot_executor import (
    BufferArgument,
    GridArgument,
    GridDim,
    Launch,
    ScalarArgument,
    SymbolArgument,
)
from poot_kernel import IRBuilder, KernelFunction, compile_kernels
from poot_kernel.compile import CompiledObject, KernelPackage

pytestmark = pytest.mark.device("vulkan")
RNG = np.random.default_rng(4)


def load(device, function: KernelFunction):
    (compiled,) = compile_kernels([function], device.target, device.service, device.caps)
    return device.load([compiled])[0][function.name]


def scale_kernel(extra: int = 0) -> KernelFunction:
    """y[i] = x[i] * factor + offset for i < n, with ``extra`` integers added to the first element."""
    b = IRBuilder(f"scale{extra}", level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
    x, y = b.array("x", f32, ["n"]), b.array("y", f32, ["n"], access="w")
    n, factor = b.scalar("n"), b.scalar("factor", f32)
    more = [b.scalar(f"extra{i}", i32) for i in range(extra)]
    start = b.mul(b.workgroup_id(), 64)
    with b.foreach(start, b.minimum(b.add(start, 64), n)) as loop:
        value = b.mul(b.load(x, loop.index), factor)
        for number in more:
            value = b.add(value, b.convert(number, f32))
        b.store(y, loop.index, value)
    return b.finish()


def launch_of(kernel, x, y, factor: float, numbers=()) -> Launch:
    arguments = [
        BufferArgument(x), BufferArgument(y), SymbolArgument("N"), ScalarArgument(factor, f32),
        *(ScalarArgument(number, i32) for number in numbers),
    ]  # fmt: skip
    grid = (GridDim(symbol="N", divisor=64),)
    return Launch(kernel=kernel, arguments=tuple(arguments), grid=grid, label="scale")


def test_bytes_come_back_and_fresh_memory_is_zero(device):
    buffer = device.allocate(1000, "bytes")
    assert not device.download(buffer).any()
    data = RNG.integers(0, 256, 300, dtype=np.uint8)
    device.upload(buffer, data, 17)
    np.testing.assert_array_equal(device.download(buffer, 17, 300), data)
    assert device.download(buffer)[317:].sum() == 0
    with pytest.raises(
        ShapeError, match=r"bytes 900\.\.1200 lie outside of 'bytes', which has 1000"
    ):
        device.upload(buffer, data, 900)
    with pytest.raises(ShapeError, match="C-contiguous"):
        device.upload(buffer, np.ones((4, 4), np.float32).T[1:])
    buffer.free()
    buffer.free()
    with pytest.raises(DeviceError, match="no live buffer"):
        device.download(buffer)


def test_more_memory_than_there_is(device):
    with pytest.raises(OutOfMemoryError, match=r"'too much' needs .* lower") as found:
        device.allocate(1 << 44, "too much")
    assert found.value.bytes_asked == 1 << 44
    assert 0 < found.value.bytes_free < 1 << 44
    buffer = device.allocate(64, "still works")
    buffer.free()


def test_sequences_run_and_replay_with_other_sizes(device):
    kernel = load(device, scale_kernel())
    values = RNG.standard_normal(500).astype(np.float32)
    x, y, z = (device.allocate(2000, name) for name in "xyz")
    device.upload(x, values)
    chain = [launch_of(kernel, x, y, 2.0), launch_of(kernel, y, z, -3.0)]
    prepared = device.prepare(chain)
    assert prepared.symbols == ("N",)
    assert prepared.labels == ("scale", "scale")
    assert device.capture(prepared, {"N": 500})
    for count in (500, 7, 65, 500, 0):
        device.upload(z, np.full(500, 9, np.float32))
        device.run(prepared, {"N": count})
        found = device.download(z).view(np.float32)
        np.testing.assert_array_equal(found[:count], values[:count] * 2 * -3)
        assert (found[count:] == 9).all()
    with pytest.raises(DeviceError, match="no value for the symbols N"):
        device.run(prepared, {})
    times = device.time_sequence(prepared, {"N": 500}, repeat=3)
    assert times.shape == (2,)
    assert (times >= 0).all()
    assert device.time_replay(prepared, {"N": 500}, repeat=2) > 0


def test_more_sizes_than_recordings_are_kept(device):
    kernel = load(device, scale_kernel())
    x, y = (device.allocate(1200, name) for name in "xy")
    device.upload(x, np.ones(300, np.float32))
    prepared = device.prepare([launch_of(kernel, x, y, 4.0)])
    for count in [*range(1, 160), 3]:
        device.run(prepared, {"N": count})
    found = device.download(y).view(np.float32)
    assert (found[:159] == 4).all()
    assert not found[159:].any()


def test_arguments_beyond_push_constants(device):
    kernel = load(device, scale_kernel(extra=40))
    x, y = (device.allocate(64, name) for name in "xy")
    device.upload(x, np.arange(16, dtype=np.float32))
    numbers = list(range(-20, 20))
    prepared = device.prepare([launch_of(kernel, x, y, 0.5, numbers)])
    device.run(prepared, {"N": 16})
    expected = np.arange(16) * 0.5 + sum(numbers)
    np.testing.assert_array_equal(device.download(y).view(np.float32), expected)


def test_grids_have_three_axes_and_tell_their_extents(device):
    b = IRBuilder("grid", level="lane", grid=["n", 3, 2], workgroup_size=32)
    y = b.array("y", i64, ["n", 3, 2], access="w")
    b.scalar("n")
    places = [b.workgroup_id(axis) for axis in range(3)]
    code = b.add(b.mul(b.add(b.mul(places[0], 10), places[1]), 10), places[2])
    b.store(y, places, b.add(b.mul(code, 1000), b.grid_size(0)))
    kernel = load(device, b.finish())
    buffer = device.allocate(8 * 4 * 6, "y")
    launch = Launch(
        kernel=kernel, arguments=(BufferArgument(buffer), GridArgument(0)),
        grid=(GridDim(symbol="N"), GridDim(coefficient=3), GridDim(coefficient=2)),
    )  # fmt: skip
    device.run(device.prepare([launch]), {"N": 4})
    found = device.download(buffer).view(np.int64).reshape(4, 3, 2)
    i, j, k = np.indices((4, 3, 2))
    np.testing.assert_array_equal(found, (i * 100 + j * 10 + k) * 1000 + 4)


def test_widened_integers_compare_with_literals(device):
    """What indices from memory are checked by; some drivers get it wrong at 64 bits."""
    b = IRBuilder("order", level="lane", grid=["n"], workgroup_size=32)
    x, y = b.array("x", i32, ["n"]), b.array("y", i32, ["n", 6], access="w")
    b.scalar("n")
    row = b.workgroup_id()
    wide, five = b.convert(b.load(x, row), i64), b.constant(5, i64)
    found = [b.compare(name, wide, five) for name in ("lt", "le", "gt", "ge")]
    found += [b.compare("lt", wide, 0), b.compare("gt", five, wide)]
    for column, value in enumerate(found):
        b.store(y, [row, column], b.convert(value, i32))
    values = np.array([3, 5, 6, -1, -(1 << 31), (1 << 31) - 1], np.int32)
    kernel = load(device, b.finish())
    source, target = device.allocate(values.nbytes, "x"), device.allocate(4 * 36, "y")
    device.upload(source, values)
    arguments = (BufferArgument(source), BufferArgument(target), ScalarArgument(6, i64))
    launch = Launch(kernel=kernel, arguments=arguments, grid=(GridDim(coefficient=6),))
    device.run(device.prepare([launch]), {})
    expected = [values < 5, values <= 5, values > 5, values >= 5, values < 0, values < 5]
    found = device.download(target).view(np.int32).reshape(6, 6)
    np.testing.assert_array_equal(found.T, np.array(expected, np.int32))


def test_wrong_argument_counts_and_grids_are_refused(device):
    kernel = load(device, scale_kernel())
    x = device.allocate(64, "x")
    with pytest.raises(ShapeError, match="takes 4 arguments, 'scale' passes 5"):
        device.prepare([launch_of(kernel, x, x, 1.0, [1])])
    launch = Launch(
        kernel=kernel, arguments=launch_of(kernel, x, x, 1.0).arguments,
        grid=(GridDim(), GridDim(coefficient=1 << 20)), label="wide",
    )  # fmt: skip
    with pytest.raises(DeviceError, match="'wide' needs a grid of"):
        device.run(device.prepare([launch]), {"N": 1})


def test_broken_packages_are_refused_and_the_device_lives(device):
    (compiled,) = compile_kernels([scale_kernel()], device.target, device.service, device.caps)

    def changed(data: bytes, kind="gpu-package") -> CompiledObject:
        return CompiledObject(
            kind=kind, target=device.target, entries=("scale0",), key=str(hash(data)), data=data
        )

    package = KernelPackage.decode(compiled.data)
    with pytest.raises(CompileError, match="no packaged GPU kernel"):
        device.load([changed(compiled.data[1:])])
    with pytest.raises(CompileError, match="llvm-host-object for vulkan"):
        device.load([changed(compiled.data, "llvm-host-object")])
    fields = {f: getattr(package, f) for f in ("name", "threads", "parameters", "grid")}
    broken = KernelPackage(code=struct.pack("<5I", 1, 2, 3, 4, 5), **fields)
    with pytest.raises(CompileError, match="refuses kernel 'scale0': 20 bytes are no SPIR-V"):
        device.load([changed(broken.encode())])
    test_arguments_beyond_push_constants(device)


def test_bandwidth_is_measured(device):
    assert device.read_bandwidth_gb_s(1 << 22, repeat=2) > 0


class _Lost:
    """The library of a driver whose device is lost, as a call says from now on."""

    def __init__(self, lib, calls) -> None:
        self._lib, self._calls = lib, calls

    def __getattr__(self, name: str):
        if name in self._calls:
            return lambda *_: -4
        return getattr(self._lib, name)


@pytest.mark.parametrize(
    "calls",
    [("vkQueueSubmit",), ("vkGetFenceStatus", "vkWaitForFences")],
    ids=["handed over", "waiting"],
)
def test_a_lost_device_says_so_and_closes(device, calls):
    from poot_core import Settings
    from poot_vulkan_device import open_device

    other = open_device(Settings())
    kernel = load(other, scale_kernel())
    x = other.allocate(64, "x")
    prepared = other.prepare([launch_of(kernel, x, x, 1.0)])
    other._context.api.lib = _Lost(other._context.api.lib, calls)

    def step() -> None:
        other.run(prepared, {"N": 1})
        other.synchronize()  # in the middle of the step: it is handed over and does not end

    for _ in range(2):
        with pytest.raises(DeviceError, match=r"was lost.*; close this engine and open a new one"):
            step()
    with pytest.raises(DeviceError, match=r"was lost"):
        other.download(x)
    other.close()
    other.close()
    with pytest.raises(DeviceError, match="closed"):
        other.synchronize()
