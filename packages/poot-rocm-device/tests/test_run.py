"""Memory, launches, arguments, grids, graphs and timings, over the simulated runtime."""

from dataclasses import replace

import numpy as np
import pytest

from poot_core import DeviceError, ShapeError, f32, i64
from poot_executor import (
    BufferArgument,
    GridArgument,
    GridDim,
    Launch,
    ScalarArgument,
    SymbolArgument,
)

RNG = np.random.default_rng(3)
pytestmark = pytest.mark.sim


def floats(device, count, label="x"):
    data = RNG.standard_normal(count).astype(np.float32)
    buffer = device.allocate(4 * count, label)
    device.upload(buffer, data)
    return buffer, data


def read(device, buffer):
    return device.download(buffer).view(np.float32)


def scaled(kernels, buffer, factor, symbol="T"):
    return Launch(
        kernel=kernels["scale"],
        arguments=(SymbolArgument(symbol), ScalarArgument(factor, f32), BufferArgument(buffer)),
        grid=(GridDim(symbol=symbol, divisor=64),),
        label="scale",
    )


def grids(hip):
    return [a[1:4] for name, a in hip.calls if name == "hipModuleLaunchKernel"]


def test_memory_is_zeroed_copied_and_given_back(device, hip):
    buffer = device.allocate(1000, "b")
    assert not device.download(buffer).any()
    data = RNG.integers(0, 255, 300, np.uint8)
    device.upload(buffer, data, 500)
    assert (device.download(buffer, 500, 300) == data).all()
    assert not device.download(buffer, 0, 500).any()
    assert device.view(buffer) is None
    assert device.import_host(data, "d") is None
    used = hip.live["memory"]
    buffer.free()
    buffer.free()
    assert hip.live["memory"] == used - 1
    with pytest.raises(DeviceError, match="'b' was freed"):
        device.download(buffer)
    with pytest.raises(ShapeError, match=r"bytes 0\.\.8 lie outside"):
        device.upload(device.allocate(4, "c"), np.ones(8, np.uint8))


def test_large_uploads_go_through_two_pinned_blocks(device, hip):
    size = (70 << 20) + 12345
    data = RNG.integers(0, 255, size, np.uint8)
    buffer = device.allocate(size, "big")
    device.upload(buffer, data)
    assert (device.download(buffer) == data).all()
    assert hip.live["host"] == 2
    assert sum(a[2] for name, a in hip.calls if name == "hipMemcpyHtoDAsync") == size
    # A block is filled again only after the event behind its last copy.
    order = [n for n in hip.names() if n in ("hipEventRecord", "hipEventSynchronize")]
    assert order == ["hipEventRecord", "hipEventSynchronize"] * (len(order) // 2)
    assert len(order) >= 4


def test_symbols_set_arguments_and_grid(device, kernels, hip):
    buffer, data = floats(device, 500)
    step = device.prepare([scaled(kernels, buffer, 2.5)])
    assert step.symbols == ("T",)
    assert step.labels == ("scale",)
    expected = data.copy()
    for count in (130, 1, 500, 0):
        device.run(step, {"T": count, "R": 3})
        expected[:count] *= np.float32(2.5)
    assert (read(device, buffer) == expected).all()
    assert [grid[0] for grid in grids(hip)] == [3, 1, 8]  # none for an empty grid
    with pytest.raises(DeviceError, match="'T' has no value"):
        device.run(step, {"R": 1})
    with pytest.raises(DeviceError, match="negative"):
        device.run(step, {"T": -1})


def test_offsets_scalars_and_grid_arguments(device, kernels):
    buffer, data = floats(device, 12 * 7)
    sums = device.allocate(4 * 12, "sums")
    launch = Launch(
        kernel=kernels["row_sums"],
        arguments=(
            GridArgument(0),
            ScalarArgument(7, i64),
            BufferArgument(buffer, 4 * 7),
            BufferArgument(sums),
        ),
        grid=(GridDim(coefficient=2, symbol="R"),),
    )
    device.run(device.prepare([launch]), {"R": 5})
    found = read(device, sums)
    expected = data.reshape(12, 7)[1:11].astype(np.float64).sum(1)
    np.testing.assert_allclose(found[:10], expected, atol=1e-5)
    assert not found[10:].any()


def test_the_kernels_own_grid_counts(device, kernels, hip):
    # A planner merges axes; the kernel's grid is what its code reads.
    buffer = device.allocate(4 * 15, "y")
    launch = Launch(
        kernel=kernels["places"],
        arguments=(ScalarArgument(5, i64), ScalarArgument(3, i64), BufferArgument(buffer)),
        grid=(GridDim(coefficient=15),),
    )
    device.run(device.prepare([launch]), {})
    assert grids(hip) == [(5, 3, 1)]
    expected = 100 * np.arange(3)[:, None] + np.arange(5)
    assert (read(device, buffer).reshape(3, 5) == expected).all()


def test_replay_equals_eager(device, kernels, hip):
    buffer, data = floats(device, 300)
    other, _ = floats(device, 300, "other")
    device.upload(other, data)
    steps = [
        device.prepare([scaled(kernels, b, 1.5), scaled(kernels, b, -0.3, "R")])
        for b in (buffer, other)
    ]
    for rows in (1, 7, 300):
        assert device.capture(steps[0], {"T": 300, "R": rows})
        assert device.capture(steps[0], {"T": 300, "R": rows})  # a second time is free
    assert hip.live["executable"] == 3
    assert hip.live["graph"] == 0
    assert (read(device, buffer) == data).all()  # capturing runs nothing
    for rows in (300, 1, 7, 2, 300):
        for step in steps:
            device.run(step, {"T": 300, "R": rows})
    assert (read(device, buffer) == read(device, other)).all()
    assert hip.names().count("hipGraphLaunch") == 4  # R = 2 ran launch by launch
    # Whoever frees a buffer must not pull it from under a graph.
    used = hip.live["memory"]
    buffer.free()
    device.run(steps[0], {"T": 300, "R": 7})
    assert hip.live["memory"] == used


def test_timings_are_medians_by_launch(device, kernels):
    buffer, _ = floats(device, 64)
    step = device.prepare([scaled(kernels, buffer, 1.0), scaled(kernels, buffer, 1.0, "R")])
    seconds = device.time_sequence(step, {"T": 64, "R": 0}, repeat=3)
    # The stand-in's clock goes on by a millisecond at each event.
    np.testing.assert_allclose(seconds, [1e-3, 1e-3])


def test_the_read_probe_reads_everything(device, hip):
    assert device.read_bandwidth_gb_s(1 << 20, repeat=1) > 0
    assert hip.executed > 0


def test_senseless_launches_are_refused(device, kernels):
    buffer, _ = floats(device, 8)
    good = scaled(kernels, buffer, 1.0)

    def changed(**fields):
        return device.prepare([replace(good, **fields)])

    with pytest.raises(ShapeError, match="grid axis"):
        changed(grid=(GridDim(divisor=0),))
    with pytest.raises(ShapeError, match="0 grid axes"):
        changed(grid=())
    with pytest.raises(ShapeError, match="passes 1 arguments, the kernel takes 3"):
        changed(arguments=good.arguments[:1])
    with pytest.raises(ShapeError, match="takes byte 33"):
        changed(arguments=(*good.arguments[:2], BufferArgument(buffer, 33)))
    with pytest.raises(ShapeError, match="axis 1 of a grid of 1"):
        changed(arguments=(GridArgument(1), *good.arguments[1:]))
    too_many = device.prepare([good])
    with pytest.raises(
        ShapeError, match="4294967295 invocations along the first axis; lower the tokens"
    ):
        device.run(too_many, {"T": 1 << 32})
