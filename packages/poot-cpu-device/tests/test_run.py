"""Steps: every tile exactly once, launches in order, arguments, sizes, timings."""

from __future__ import annotations

import time

import numpy as np
import pytest

from poot_core import DeviceError, ShapeError, bf16, f32, f64, i32, u8
from poot_cpu_device import CpuDevice
from poot_executor import (
    BufferArgument,
    GridArgument,
    GridDim,
    Launch,
    ScalarArgument,
    SymbolArgument,
)

RNG = np.random.default_rng(11)


def launch(kernel: object, *arguments: object, tiles: object = 1, **fields: object) -> Launch:
    grid = tiles if isinstance(tiles, tuple) else (tiles,)
    dims = tuple(dim if isinstance(dim, GridDim) else GridDim(dim) for dim in grid)
    return Launch(kernel=kernel, arguments=arguments, grid=dims, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("grain", [1, 3, 64])
@pytest.mark.parametrize("tiles", [0, 1, 2, 7, 64, 1001, 30000])
def test_every_tile_runs_once(device_and_kernels, tiles: int, grain: int) -> None:
    device, kernels = device_and_kernels
    counts = device.allocate(8 * 30001, "counts")
    step = device.prepare(
        [launch(kernels["count"], BufferArgument(counts), tiles=tiles, grain=grain)] * 3
    )
    for _ in range(4):
        device.run(step, {})
    got = device.view(counts).view(np.int64)
    assert (got[:tiles] == 12).all()
    assert not got[tiles:].any()


def test_launches_see_the_writes_before_them(device_and_kernels) -> None:
    # A chain over one array mixing parallel, serial and empty launches; order changes the result.
    device, kernels = device_and_kernels
    n = 5000
    x, y = RNG.standard_normal((2, n)).astype(np.float32)
    x_buffer, y_buffer = device.allocate(4 * n, "x"), device.allocate(4 * n, "y")
    device.upload(x_buffer, x)
    device.upload(y_buffer, y)
    expected = y.copy()
    launches = []
    for turn in range(120):
        kind = turn % 4
        count = (n, 1, 0, 3)[kind]
        if kind < 3:
            launches.append(
                launch(
                    kernels["scale"],
                    BufferArgument(y_buffer),
                    ScalarArgument(-1.03125, f32),
                    tiles=count,
                    grain=(7, 1, 1)[kind],
                )
            )
            expected[:count] *= np.float32(-1.03125)
        else:
            offset = 4 * (turn // 2)
            launches.append(
                launch(
                    kernels["add"],
                    BufferArgument(y_buffer, offset),
                    BufferArgument(y_buffer),
                    tiles=4,
                    grain=8,
                )
            )
            # y[i] += y[i + turn // 2], ascending; serial, so reads after writes are in order
            for i in range(4):
                expected[i] += expected[i + turn // 2]
    step = device.prepare(launches)
    device.run(step, {})
    np.testing.assert_array_equal(device.view(y_buffer).view(np.float32), expected)


def test_results_do_not_depend_on_the_number_of_threads(open_with) -> None:
    n = 4097
    x, y = RNG.standard_normal((2, n)).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 4):
        device, kernels = open_with(threads)
        a, b = device.allocate(4 * n, "a"), device.allocate(4 * n, "b")
        device.upload(a, x)
        device.upload(b, y)
        step = device.prepare(
            [
                launch(kernels["add"], BufferArgument(a), BufferArgument(b), tiles=n, grain=5),
                launch(kernels["add"], BufferArgument(b), BufferArgument(a), tiles=n, grain=9),
            ]
            * 10
        )
        device.run(step, {})
        results.append(device.download(a))
    for threads, result in enumerate(results[1:], start=2):
        np.testing.assert_array_equal(result, results[0], err_msg=f"{threads} threads")
    expected_a, expected_b = x.copy(), y.copy()
    for _ in range(10):
        expected_b = expected_a + expected_b
        expected_a = expected_b + expected_a
    np.testing.assert_array_equal(results[0].view(np.float32), expected_a)


def test_sizes_set_tiles_and_arguments(device_and_kernels) -> None:
    device, kernels = device_and_kernels
    counts, seen = device.allocate(8 * 1000, "counts"), device.allocate(24, "seen")
    grid = (GridDim(3, "T", 4), GridDim(5), GridDim(1, "R"))
    step = device.prepare(
        [
            launch(kernels["count"], BufferArgument(counts), tiles=grid),
            launch(
                kernels["stamp"],
                BufferArgument(seen),
                SymbolArgument("R"),
                GridArgument(0),
                SymbolArgument("T"),
                tiles=(GridDim(1, "T", 1000),),
            ),
        ]
    )
    assert set(step.symbols) == {"T", "R"}
    total = np.zeros(1000, np.int64)
    for t, r in [(1, 1), (9, 2), (4, 7), (0, 3), (33, 0), (9, 2)]:
        device.run(step, {"T": t, "R": r, "unused": 5})
        total[: -(-3 * t // 4) * 5 * r] += 1
        np.testing.assert_array_equal(device.view(counts).view(np.int64), total)
        if t:
            assert device.view(seen).view(np.int64).tolist() == [r, 1, t]


def test_grid_arguments_are_the_axes_tile_counts(device_and_kernels) -> None:
    device, kernels = device_and_kernels
    out = device.allocate(8 * 64, "out")
    step = device.prepare(
        [
            launch(
                kernels["shape"],
                BufferArgument(out),
                GridArgument(1),
                tiles=(GridDim(1, "R"), GridDim(2, "T", 3)),
            )
        ]
    )
    device.run(step, {"R": 5, "T": 7})
    expected = [1000 * row + column for row in range(5) for column in range(5)]
    assert device.view(out).view(np.int64)[:25].tolist() == expected
    fixed = device.prepare(
        [launch(kernels["shape"], BufferArgument(out), GridArgument(1), tiles=(4, 3))]
    )
    device.run(fixed, {})
    expected = [1000 * row + column for row in range(4) for column in range(3)]
    assert device.view(out).view(np.int64)[:12].tolist() == expected


def test_scalars_stand_in_the_low_bytes(open_with) -> None:
    device, kernels = open_with(1)
    out = device.allocate(24, "out")

    def slots(*arguments: ScalarArgument) -> bytes:
        device.run(device.prepare([launch(kernels["stamp"], BufferArgument(out), *arguments)]), {})
        return device.download(out).tobytes()

    got = slots(ScalarArgument(-7, i32), ScalarArgument(-2.5, f32), ScalarArgument(200, u8))
    expected = (
        np.int32(-7).tobytes() + bytes(4) + np.float32(-2.5).tobytes() + bytes(4) + bytes([200])
    )
    assert got == expected + bytes(7)
    got = slots(ScalarArgument(1.0, bf16), ScalarArgument(0.1, f64), ScalarArgument(1, i32))
    assert got[:2] == b"\x80\x3f"
    assert got[8:16] == np.float64(0.1).tobytes()


def test_each_thread_has_scratch_of_its_own(device_and_kernels) -> None:
    device, kernels = device_and_kernels
    n = 20000
    out = device.allocate(8 * n, "out")
    step = device.prepare(
        [launch(kernels["trail"], BufferArgument(out), tiles=n, scratch_bytes=100_000)]
    )
    device.run(step, {})
    np.testing.assert_array_equal(device.view(out).view(np.int64), 2 * np.arange(n))


def test_sequences_share_a_team_and_take_turns(open_with) -> None:
    device, kernels = open_with(2)
    counts = device.allocate(8 * 100, "counts")
    steps = [
        device.prepare([launch(kernels["count"], BufferArgument(counts), tiles=n)] * 5)
        for n in (100, 10, 50)
    ]
    for step in steps * 20:
        device.run(step, {})
    got = device.view(counts).view(np.int64)
    expected = np.repeat([300, 200, 100], [10, 40, 50])
    np.testing.assert_array_equal(got, expected)


def test_an_empty_sequence_runs(open_with) -> None:
    device, _ = open_with(2)
    device.run(device.prepare([]), {})


def test_times_add_up_to_the_step(open_with) -> None:
    device, kernels = open_with(2)
    counts = device.allocate(8 * 200_000, "counts")
    heavy = launch(kernels["count"], BufferArgument(counts), tiles=200_000, label="heavy")
    light = launch(kernels["empty"], tiles=1)
    none = launch(kernels["count"], BufferArgument(counts), tiles=0)
    step = device.prepare([light, heavy, none, light])
    assert step.labels == ("empty", "heavy", "count", "empty")
    times = device.time_sequence(step, {}, repeat=3)
    assert times.shape == (4,)
    assert times[2] == 0
    assert (times[[0, 1, 3]] > 0).all()
    start = time.perf_counter()
    device.run(step, {})
    assert times.sum() < 100 * (time.perf_counter() - start)  # the same unit, not the same value


def test_the_read_probe_reads(open_with) -> None:
    device, _ = open_with(2)
    assert 0.01 < device.read_bandwidth_gb_s(1 << 22, repeat=2) < 10_000


def test_missing_and_negative_sizes_are_refused(open_with) -> None:
    device, kernels = open_with(1)
    step = device.prepare([launch(kernels["empty"], tiles=(GridDim(1, "T"),))])
    for sizes in ({}, {"R": 1}, {"T": -1}):
        with pytest.raises(DeviceError, match="symbol 'T' has value"):
            device.run(step, sizes)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tiles": ()}, "0 grid axes"),
        ({"tiles": (1, 1, 1, 1)}, "4 grid axes"),
        ({"grain": 0}, "grain 0"),
        ({"tiles": (GridDim(1, "T", 0),)}, "divisor=0"),
        ({"tiles": (1 << 20, 1 << 20)}, "more than 2"),
    ],
)
def test_senseless_launches_are_refused(open_with, fields: dict[str, object], said: str) -> None:
    device, kernels = open_with(1)
    with pytest.raises(ShapeError, match=said):
        device.prepare([launch(kernels["empty"], **fields)])


def test_offsets_and_axes_out_of_range_are_refused(open_with) -> None:
    device, kernels = open_with(1)
    buffer = device.allocate(16, "small")
    for argument in (BufferArgument(buffer, 17), BufferArgument(buffer, -1), GridArgument(1)):
        with pytest.raises(ShapeError):
            device.prepare([launch(kernels["empty"], argument)])


def test_the_device_answers_for_the_protocol(open_with) -> None:
    from poot_executor import Device

    device, _ = open_with(2)
    assert isinstance(device, CpuDevice)
    members = {name for name in vars(Device) if not name.startswith("_")}
    assert members <= {*dir(device), "target", "caps"}
    assert device.caps.num_workers == 2
    assert device.capture(device.prepare([]), {}) is False
    device.synchronize()


@pytest.mark.parametrize("threads", [2, 4, 11])
def test_many_small_launches_keep_their_order(open_with, threads: int) -> None:
    # Scaling and adding do not commute, and there are more threads than cores, so that threads are
    # descheduled at every point.
    device, kernels = open_with(threads)
    rng = np.random.default_rng(5)
    n = 64
    x, y = device.allocate(4 * n, "x"), device.allocate(4 * n, "y")
    launches, program = [], []
    for _ in range(250):
        kind, count = rng.choice(["double", "halve", "add"]), int(rng.integers(0, n + 1))
        grain = int(rng.integers(1, 40))
        program.append((kind, count))
        if kind == "add":
            arguments = (BufferArgument(x), BufferArgument(y))
            launches.append(launch(kernels["add"], *arguments, tiles=count, grain=grain))
        else:
            factor = ScalarArgument(2.0 if kind == "double" else 0.5, f32)
            launches.append(
                launch(kernels["scale"], BufferArgument(y), factor, tiles=count, grain=grain)
            )
    step = device.prepare(launches)
    start_x, start_y = rng.standard_normal((2, n)).astype(np.float32)
    expected = start_y.copy()
    for kind, count in program:
        if kind == "add":
            expected[:count] += start_x[:count]
        else:
            expected[:count] *= np.float32(2.0 if kind == "double" else 0.5)
    device.upload(x, start_x)
    for _ in range(150):
        device.upload(y, start_y)
        device.run(step, {})
        np.testing.assert_array_equal(device.view(y).view(np.float32), expected)
