"""Launches, arguments, grids, graphs and timings, over the driver that stands in."""

from concurrent.futures import ThreadPoolExecutor

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
from poot_kernel import compile_kernels

RNG = np.random.default_rng(3)


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


def test_memory_is_zeroed_copied_and_given_back(device, fake):
    buffer = device.allocate(1000, "b")
    assert not device.download(buffer).any()
    data = RNG.integers(0, 255, 300, np.uint8)
    device.upload(buffer, data, 500)
    assert (device.download(buffer, 500, 300) == data).all()
    assert not device.download(buffer, 0, 500).any()
    assert device.view(buffer) is None
    assert device.import_host(data, "d") is None
    used = len(fake.memory)
    buffer.free()
    buffer.free()
    assert len(fake.memory) == used - 1
    with pytest.raises(DeviceError, match="'b' was freed"):
        device.download(buffer)
    with pytest.raises(ShapeError, match=r"bytes 0\.\.8 lie outside"):
        device.upload(device.allocate(4, "c"), np.ones(8, np.uint8))


def test_large_uploads_go_through_two_pinned_blocks(device, fake):
    size = (70 << 20) + 12345
    data = RNG.integers(0, 255, size, np.uint8)
    buffer = device.allocate(size, "big")
    device.upload(buffer, data)
    assert (device.download(buffer) == data).all()
    assert len(fake.hosts) == 2
    copies = [a[2] for name, a in fake.calls if name == "cuMemcpyHtoDAsync"]
    assert sum(copies) == size
    # A block is filled again only after the event behind its last copy.
    order = [n for n in fake.names() if n in ("cuEventRecord", "cuEventSynchronize")]
    assert order == ["cuEventRecord", "cuEventSynchronize"] * (len(order) // 2)
    assert len(order) >= 4


def test_symbols_set_arguments_and_grid(device, kernels, fake):
    buffer, data = floats(device, 500)
    step = device.prepare([scaled(kernels, buffer, 2.5)])
    assert step.symbols == ("T",)
    assert step.labels == ("scale",)
    expected = data.copy()
    for count in (130, 1, 500, 0):
        device.run(step, {"T": count, "R": 3})
        expected[:count] *= np.float32(2.5)
    assert (read(device, buffer) == expected).all()
    assert [x["grid"][0] for x in fake.launches] == [3, 1, 8]  # none for an empty grid
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


def test_the_kernels_own_grid_counts(device, kernels, fake):
    # A planner merges axes; the kernel's grid is what its code reads.
    buffer = device.allocate(4 * 15, "y")
    launch = Launch(
        kernel=kernels["places"],
        arguments=(ScalarArgument(5, i64), ScalarArgument(3, i64), BufferArgument(buffer)),
        grid=(GridDim(coefficient=15),),
    )
    device.run(device.prepare([launch]), {})
    assert fake.launches[0]["grid"] == (5, 3, 1)
    expected = 100 * np.arange(3)[:, None] + np.arange(5)
    assert (read(device, buffer).reshape(3, 5) == expected).all()


def test_replay_equals_eager(device, kernels, fake):
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
    assert fake.live_graphs == 3
    assert not fake.launches
    for rows in (300, 1, 7, 2, 300):
        for step in steps:
            device.run(step, {"T": 300, "R": rows})
    assert (read(device, buffer) == read(device, other)).all()
    assert fake.names().count("cuGraphLaunch") == 4  # R = 2 ran launch by launch
    # Whoever frees a buffer must not pull it from under a graph.
    address = buffer.address
    buffer.free()
    device.run(steps[0], {"T": 300, "R": 7})
    assert address in fake.memory


def test_kernels_of_one_sequence_may_overlap(device, kernels, fake):
    buffer, _ = floats(device, 64)
    device.run(device.prepare([scaled(kernels, buffer, 2.0)] * 3), {"T": 64})
    assert [x["early"] for x in fake.launches] == [False, True, True]


def bf16(device, *shape):
    import ml_dtypes

    data = RNG.standard_normal(shape).astype(ml_dtypes.bfloat16)
    buffer = device.allocate(data.nbytes, "operand")
    device.upload(buffer, data.view(np.uint8))
    return buffer, data.astype(np.float64)


def test_subgroups_and_their_memory_are_settled_at_launch(device, fake, own_kernels):
    function = own_kernels.product.specialise()
    fake.kernels["product"] = function
    (loaded,) = device.load(compile_kernels([function], device.target, device.service, device.caps))
    split = loaded["product"].package.split
    region = loaded["product"].package.shared_bytes
    for rows, columns, depth, subgroups in ((5, 40, 2112, 3), (1, 16, 64, 1)):
        x, left = bf16(device, rows, depth)
        w, right = bf16(device, columns, depth)
        y = device.allocate(4 * rows * columns, "y")
        sizes = [ScalarArgument(size, i64) for size in (rows, columns, depth)]
        places = [BufferArgument(each) for each in (x, w, y)]
        launch = Launch(kernel=loaded["product"], arguments=(*sizes, *places), grid=(GridDim(),))
        device.run(device.prepare([launch]), {})
        found = read(device, y).reshape(rows, columns)
        np.testing.assert_allclose(found, left @ right.T, atol=1e-3)
        done = fake.launches[-1]
        assert done["grid"] == (-(-columns // 16), -(-rows // 8), 1)
        assert done["threads"] == 32 * subgroups
        assert done["shared"] == subgroups * (region + split.partial_bytes)


def test_timings_are_medians_by_launch(device, kernels):
    buffer, _ = floats(device, 64)
    step = device.prepare([scaled(kernels, buffer, 1.0), scaled(kernels, buffer, 1.0, "R")])
    seconds = device.time_sequence(step, {"T": 64, "R": 0}, repeat=3)
    np.testing.assert_allclose(seconds, [1e-3, 0.0])  # the stand-in's kernels take a millisecond
    assert device.time_replay(step, {"T": 64, "R": 64}) == pytest.approx(2e-3)


def test_senseless_launches_are_refused(device, kernels):
    buffer, _ = floats(device, 8)
    good = scaled(kernels, buffer, 1.0)

    def changed(**fields):
        from dataclasses import replace

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


def test_downloads_wait_for_their_own_place_in_the_queue_and_alternate(device, fake, kernels):
    buffer, data = floats(device, 100)
    prepared = device.prepare([scaled(kernels, buffer, 2.0)])
    pending = []
    fake.calls.clear()
    for _ in range(2):
        device.run(prepared, {"T": 100})
        pending.append(device.start_download([(buffer, 0, 400), (buffer, 8, 4), (buffer, 0, 0)]))
    names = fake.names()
    # Nobody has waited for anything so far: both steps and both copies are queued.
    assert "cuStreamSynchronize" not in names
    assert "cuEventSynchronize" not in names
    for factor, found in zip((2, 4), pending, strict=True):
        whole, piece, nothing = found.wait()
        np.testing.assert_array_equal(whole.view(np.float32), factor * data)
        assert (piece == whole[8:12]).all()
        assert nothing.size == 0
    assert "cuStreamSynchronize" not in fake.names()
    assert fake.names().count("cuEventSynchronize") == 2
    first, *_ = [device.start_download([(buffer, 0, 4)]) for _ in range(3)]
    with pytest.raises(DeviceError, match="two later downloads were started"):
        first.wait()
    assert device.start_download([]).wait() == ()
    with pytest.raises(ShapeError, match="lie outside"):
        device.start_download([(buffer, 396, 8)])


def test_a_larger_download_takes_a_larger_block_once_the_last_has_come(device, fake):
    data = RNG.integers(0, 255, 300_000, np.uint8)
    buffer = device.allocate(data.nbytes, "much")
    device.upload(buffer, data)
    for size in (100, 100, 300_000, 300_000, 50):
        (found,) = device.start_download([(buffer, 0, size)]).wait()
        assert (found == data[:size]).all()
    device.close()
    assert not fake.hosts


def test_another_thread_may_wait(device, fake):
    buffer = device.allocate(64, "b")
    pending = device.start_download([(buffer, 0, 64)])
    fake.calls.clear()
    with ThreadPoolExecutor(1) as thread:
        (found,) = thread.submit(pending.wait).result()
    assert not found.any()
    # A driver knows its machine by the thread that asks.
    assert fake.names() == ["cuCtxSetCurrent", "cuEventSynchronize"]
    device.start_download([(buffer, 0, 64)])
    pending = device.start_download([(buffer, 0, 64)])
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        pending.wait()


def test_a_device_that_is_lost_says_so_to_who_waits(device, fake):
    buffer = device.allocate(64, "b")
    pending = device.start_download([(buffer, 0, 64)])
    fake.fail("cuEventSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(DeviceError, match="lost"):
        pending.wait()
