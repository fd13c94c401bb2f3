"""Steps: launches in order, arguments, grids, bindings, replay, timings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poot_core import DeviceError, ShapeError, UnsupportedError, f32, i64
from poot_executor import (
    BufferArgument,
    GridArgument,
    GridDim,
    Launch,
    ScalarArgument,
    SymbolArgument,
)

RNG = np.random.default_rng(4)
pytestmark = pytest.mark.device


ONE = (GridDim(),)


def launch(kernel, *arguments, grid=ONE, label=""):
    return Launch(kernel=kernel, arguments=arguments, grid=grid, label=label)


def filled(device, data, label="data"):
    buffer = device.allocate(data.nbytes, label)
    device.upload(buffer, data)
    return buffer


def floats(device, buffer):
    return device.download(buffer).view(np.float32)


def scale_by(kernels, buffer, factor, count):
    n = SymbolArgument(count) if isinstance(count, str) else ScalarArgument(count, i64)
    symbol = count if isinstance(count, str) else None
    number = 1 if isinstance(count, str) else count
    return launch(
        kernels["scale"], BufferArgument(buffer), ScalarArgument(factor, f32), n,
        grid=(GridDim(number, symbol, 64),), label=f"scale {factor}",
    )  # fmt: skip


def add_to(kernels, x, y, count, x_at=0, y_at=0):
    return launch(
        kernels["add"], BufferArgument(x, x_at), BufferArgument(y, y_at),
        ScalarArgument(count, i64), grid=(GridDim(count, None, 64),), label="add",
    )  # fmt: skip


def test_launches_see_what_those_before_them_wrote(device, kernels):
    x, y = (RNG.standard_normal(200).astype(np.float32) for _ in range(2))
    a, b = filled(device, x), filled(device, y)
    steps = [add_to(kernels, a, b, 200), scale_by(kernels, b, 0.5, 200), add_to(kernels, b, a, 200)]
    sequence = device.prepare(steps * 3)
    device.run(sequence, {})
    for _ in range(3):
        y = (x + y) * np.float32(0.5)
        x = x + y
    np.testing.assert_array_equal(floats(device, a), x)
    np.testing.assert_array_equal(floats(device, b), y)
    assert sequence.labels[:2] == ("add", "scale 0.5")


def test_one_buffer_is_read_and_written_at_odd_places(device, kernels):
    data = RNG.standard_normal(400).astype(np.float32)
    buffer = filled(device, data)
    device.run(device.prepare([add_to(kernels, buffer, buffer, 90, 4 * 7, 4 * 203)]), {})
    data[203:293] += data[7:97]
    np.testing.assert_array_equal(floats(device, buffer), data)


def test_symbols_choose_grid_and_arguments(device, kernels):
    data = RNG.standard_normal(1000).astype(np.float32)
    buffer = filled(device, data)
    sequence = device.prepare([scale_by(kernels, buffer, 3.0, "T")])
    assert sequence.symbols == ("T",)
    for count in (1, 64, 65, 0, 1000, 1):  # queued without waiting in between
        device.run(sequence, {"T": count})
        data[:count] *= np.float32(3)
    np.testing.assert_array_equal(floats(device, buffer), data)


def test_replay_equals_eager(device, kernels):
    data = RNG.standard_normal(300).astype(np.float32)
    buffers = [filled(device, data) for _ in range(2)]
    sequences = [
        device.prepare([scale_by(kernels, b, 1.7, "R"), add_to(kernels, b, b, 5, 400, 800)])
        for b in buffers
    ]
    for size in (1, 2, 4, 300):
        assert device.capture(sequences[0], {"R": size})
    before = floats(device, buffers[0])
    np.testing.assert_array_equal(before, data)  # nothing ran
    for size in (300, 2, 4, 4, 1, 17):
        for sequence in sequences:
            device.run(sequence, {"R": size})
    np.testing.assert_array_equal(floats(device, buffers[0]), floats(device, buffers[1]))
    assert not np.array_equal(floats(device, buffers[0]), data)


@pytest.mark.parametrize(
    ("columns", "rows"), [(1, 1), (3, 5), (70000, 1), (7, 30001), (0, 4), (4, 0)]
)
def test_every_workgroup_of_a_grid_runs_once(device, kernels, columns, rows):
    counts, seen = device.allocate(max(4, 4 * columns), "counts"), device.allocate(4, "seen")
    arguments = (GridArgument(0), GridArgument(1))
    step = launch(
        kernels["count"], BufferArgument(counts), BufferArgument(seen), *arguments,
        grid=(GridDim(columns), GridDim(1, "R")),
    )  # fmt: skip
    device.run(device.prepare([step]), {"R": rows})
    found = device.download(counts).view(np.int32)
    assert (found[:columns] == rows).all()
    assert device.download(seen).view(np.int32)[0] == (rows if columns else 0)


@pytest.mark.parametrize("count", [2, 7, 31])
def test_arrays_of_many_buffers(device, load_sum, count):
    data = RNG.standard_normal((count, 64)).astype(np.float32)
    buffers = [filled(device, row) for row in data]
    result = device.allocate(256, "sum")
    arguments = [BufferArgument(b) for b in (*buffers, result)]
    device.run(device.prepare([launch(load_sum(device, count), *arguments)]), {})
    wanted = data[0]
    for row in data[1:]:
        wanted = wanted + row
    np.testing.assert_array_equal(floats(device, result), wanted)


def test_more_arrays_than_bindings_share_those_of_their_buffer(device, load_sum):
    count = int(device._limits.max_bindings) + 8
    data = RNG.standard_normal((count, 64)).astype(np.float32)
    pools = [filled(device, part) for part in np.array_split(data, 3)]
    places = [
        BufferArgument(pool, 256 * i)
        for pool, part in zip(pools, np.array_split(data, 3), strict=True)
        for i in range(len(part))
    ]
    result = device.allocate(256, "sum")
    kernel = load_sum(device, count)
    device.run(device.prepare([launch(kernel, *places, BufferArgument(result))]), {})
    wanted = data[0]
    for row in data[1:]:
        wanted = wanted + row
    np.testing.assert_array_equal(floats(device, result), wanted)
    alone = [BufferArgument(filled(device, row)) for row in data]
    with pytest.raises(UnsupportedError, match=f"binds {count + 1} storage buffers, the adapter"):
        device.prepare([launch(kernel, *alone, BufferArgument(result))])


def test_an_array_far_inside_of_a_large_buffer(device, kernels):
    limit = device.caps.max_binding_bytes
    if limit > 1 << 28:
        pytest.skip("the adapter binds more than 256 MiB")
    buffer = device.allocate(limit + (1 << 20), "large")
    data = RNG.standard_normal(64).astype(np.float32)
    device.upload(buffer, data, limit + 4096)
    device.run(device.prepare([add_to(kernels, buffer, buffer, 64, limit + 4096, limit + 512)]), {})
    found = device.download(buffer, limit + 512, 256).view(np.float32)
    np.testing.assert_array_equal(found, data)
    buffer.free()


def test_arrays_longer_than_a_binding_take_several(device, kernels, monkeypatch):
    monkeypatch.setattr(device, "_limits", replace(device._limits, max_bytes=4096))
    x, y = (RNG.standard_normal(5000).astype(np.float32) for _ in range(2))
    a, b = filled(device, x), filled(device, y)
    device.run(device.prepare([add_to(kernels, a, b, 4000, 4 * 900, 4 * 1000)]), {})
    y[1000:] += x[900:4900]
    np.testing.assert_array_equal(floats(device, b), y)
    counts, seen = device.allocate(4 * 3000, "counts"), device.allocate(4, "seen")
    arguments = (GridArgument(0), GridArgument(1))
    step = launch(
        kernels["count"], BufferArgument(counts), BufferArgument(seen), *arguments,
        grid=(GridDim(3000), GridDim(2)),
    )  # fmt: skip
    device.run(device.prepare([step]), {})
    assert (device.download(counts).view(np.int32) == 2).all()


def test_an_empty_sequence_runs(device):
    device.run(device.prepare([]), {})
    device.synchronize()


def test_bad_launches_are_refused(device, kernels):
    buffer = device.allocate(256, "x")
    with pytest.raises(ShapeError, match="passes 1 arguments, the kernel takes 3"):
        device.prepare([launch(kernels["scale"], BufferArgument(buffer))])
    with pytest.raises(ShapeError, match="0 grid axes"):
        device.prepare(
            [
                launch(
                    kernels["scale"], BufferArgument(buffer), *[ScalarArgument(1, i64)] * 2, grid=()
                )
            ]
        )
    with pytest.raises(ShapeError, match="takes byte 6 of"):
        device.prepare([add_to(kernels, buffer, buffer, 4, 6)])
    with pytest.raises(ShapeError, match="for parameter 'a', a f32"):
        device.prepare([launch(kernels["scale"], *[BufferArgument(buffer)] * 3)])
    with pytest.raises(UnsupportedError, match="integers have 32 bits"):
        device.prepare([add_to(kernels, buffer, buffer, 1 << 40)])
    sequence = device.prepare([scale_by(kernels, buffer, 1.0, "T")])
    with pytest.raises(DeviceError, match="symbol 'T' has no value"):
        device.run(sequence, {"R": 1})
    with pytest.raises(DeviceError, match="negative"):
        device.run(sequence, {"T": -1})


def test_times_of_launches(device, kernels):
    buffer = device.allocate(4 << 20, "x")
    sequence = device.prepare(
        [scale_by(kernels, buffer, 1.0, 1 << 20), scale_by(kernels, buffer, 1.0, "T")]
    )
    seconds = device.time_sequence(sequence, {"T": 0}, repeat=3)
    assert seconds.shape == (2,)
    assert seconds[0] > 0
    assert seconds[1] == 0
    assert device.read_bandwidth_gb_s(1 << 20, repeat=2) > 0
