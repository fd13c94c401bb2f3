# ruff: noqa: F821 -- array extents in annotations name the kernels' parameters
"""The interpreter catches races, bounds, uninitialised reads and false promises."""

import copy as python_copy

import numpy as np
import pytest

from poot_core import f32, i32, i64
from poot_kernel import KernelFunction, Region, parse_kernel, print_kernel
from poot_kernel.interpreter import (
    BoundsFault,
    KernelFault,
    RaceFault,
    UninitialisedFault,
    interpret,
)
from poot_kernel.language import (
    Array,
    InOut,
    Out,
    RawInOut,
    atomic,
    barrier,
    clamp_index,
    copy,
    foreach,
    kernel,
    load,
    load_part,
    local_id,
    local_size,
    pipeline,
    shared,
    store,
    subgroup_lane,
    subgroup_shuffle_xor,
    workgroup_id,
    workgroup_reduce,
    zeros,
)

RNG = np.random.default_rng(7)
ORDERS = ["ascending", "descending", "random"]


def without(function: KernelFunction, opcode: str, number: int) -> KernelFunction:
    """Return a mutant that lacks one operation."""
    mutant = parse_kernel(print_kernel(function))
    seen = 0

    def prune(region: Region) -> None:
        nonlocal seen
        for op in list(region.operations):
            for inner in op.regions:
                prune(inner)
            if op.opcode == opcode:
                if seen == number:
                    region.operations.remove(op)
                seen += 1

    prune(mutant.body)
    assert seen > number
    return mutant


@kernel(level="lane", grid=["rows"], workgroup_size=48)
def reverse_rounds(rows: i64, x: Array[f32, "rows", 48], y: Out[f32, "rows", 48]):
    """Reverse a row through workgroup memory twice, adding one in between."""
    line = shared(f32, 48)
    lane = local_id()
    line[lane] = x[workgroup_id(), lane]
    barrier()
    turned = line[47 - lane]
    barrier()
    line[lane] = turned + 1.0
    barrier()
    y[workgroup_id(), lane] = line[47 - lane]


@pytest.mark.parametrize("order", ORDERS)
def test_barriers_suffice(order):
    x = RNG.standard_normal((3, 48)).astype(np.float32)
    y = np.zeros_like(x)
    interpret(reverse_rounds.specialise(), [3, x, y], workgroup_order=order, subgroup_size=16)
    np.testing.assert_array_equal(y, x + np.float32(1))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_every_barrier_is_needed(number, order):
    mutant = without(reverse_rounds.specialise(), "barrier", number)
    x = RNG.standard_normal((3, 48)).astype(np.float32)
    expected = UninitialisedFault if number == 3 else (RaceFault, UninitialisedFault)
    with pytest.raises(expected, match="reverse_rounds"):
        interpret(mutant, [3, x, np.zeros_like(x)], workgroup_order=order, subgroup_size=16)


@kernel(level="lane", grid=[1], workgroup_size=32)
def exchange(y: Out[f32, 32]):
    line = shared(f32, 32)
    line[local_id()] = f32(local_id())
    barrier("subgroup")
    y[local_id()] = line[local_id() ^ 8]


def test_subgroup_barrier_settles_only_its_subgroup():
    y = np.zeros(32, np.float32)
    interpret(exchange.specialise(), [y], subgroup_size=16)
    np.testing.assert_array_equal(y, np.arange(32) ^ 8)
    with pytest.raises(RaceFault):
        interpret(exchange.specialise(), [y], subgroup_size=8)


@kernel(level="lane", grid=[4], workgroup_size=8)
def overlapping(y: InOut[i32, 40]):
    store(y[workgroup_id() * 7 + local_id()], i32(workgroup_id()))


@kernel(level="lane", grid=[4], workgroup_size=8)
def histogram(x: Array[i32, 32], count: InOut[i32, 4]):
    atomic("add", count[x[workgroup_id() * 8 + local_id()]], 1)


@pytest.mark.parametrize("order", ORDERS)
def test_workgroups_have_no_barrier(order):
    with pytest.raises(RaceFault, match="write here, write by another invocation"):
        interpret(overlapping.specialise(), [np.zeros(40, np.int32)], workgroup_order=order)
    x = RNG.integers(0, 4, 32, np.int32)
    count = np.zeros(4, np.int32)
    interpret(histogram.specialise(), [x, count], workgroup_order=order)
    np.testing.assert_array_equal(count, np.bincount(x, minlength=4))


@kernel(level="lane", grid=[1], workgroup_size=8)
def out_of_bounds(n: i64, x: Array[f32, "n"], y: Out[f32, "n"]):
    y[local_id()] = load(x[local_id() + 1], mask=local_id() + 1 < n, other=5.0)
    y[local_id()] = x[local_id() + 1]


def test_bounds_are_checked_where_active():
    x, y = RNG.standard_normal(8).astype(np.float32), np.zeros(8, np.float32)
    with pytest.raises(BoundsFault, match=r"index \[8\] is outside of 'x' of extents \[8\]"):
        interpret(out_of_bounds.specialise(), [8, x, y])
    np.testing.assert_array_equal(y, [*x[1:], 5])


def test_false_extent_is_found_inside_of_the_buffer():
    @kernel(level="lane", grid=[1], workgroup_size=1)
    def skips_a_row(x: InOut[f32, 2, 3]):
        x[0, 4] = 1.0

    with pytest.raises(BoundsFault, match=r"index \[0, 4\]"):
        interpret(skips_a_row.specialise(), [np.ones((2, 3), np.float32)])
    x = np.ones((2, 3), np.float32)
    interpret(skips_a_row.specialise(), [x], check=False)


@kernel(level="lane", grid=[1], workgroup_size=8)
def reads_unwritten(y: Out[f32, 8]):
    line = shared(f32, 9)
    line[local_id()] = 1.0
    barrier()
    y[local_id()] = line[local_id() + 1]


def test_workgroup_memory_is_poisoned():
    with pytest.raises(UninitialisedFault, match="element 8"):
        interpret(reads_unwritten.specialise(), [np.zeros(8, np.float32)])


@kernel(level="lane", grid=["rows"])
def gather(
    rows: i64, n: i64, at: Array[i64, "rows"], x: Array[f32, "n"], y: Out[f32, "rows"],
    status: InOut[i32, "rows"],
):  # fmt: skip
    row = workgroup_id()
    found = clamp_index(status, at[row], n, row, bit=3)
    y[row] = x[found]


def test_clamped_index_marks_its_row():
    x, y = RNG.standard_normal(5).astype(np.float32), np.zeros(4, np.float32)
    status = np.zeros(4, np.int32)
    interpret(gather.specialise(), [4, 5, np.array([3, -1, 5, 0]), x, y, status])
    np.testing.assert_array_equal(y, x[[3, 0, 4, 0]])
    np.testing.assert_array_equal(status, [0, 8, 8, 0])


@pytest.mark.parametrize("subgroup_size", [8, 16, 64])
@pytest.mark.parametrize("workgroup_size", [8, 24, 64])
def test_reduction_of_any_size(subgroup_size, workgroup_size):
    x = RNG.integers(-50, 50, 101).astype(np.float32)  # exact sums
    y = np.zeros(1, np.float32)
    found = total.specialise()
    interpret(found, [101, x, y], subgroup_size=subgroup_size, workgroup_size=workgroup_size)
    assert y[0] == x.sum()


@kernel(level="lane", grid=[1])
def total(n: i64, x: Array[f32, "n"], y: Out[f32, 1]):
    acc = 0.0
    for i in foreach(n):
        acc += x[i]
    y[0] = workgroup_reduce(acc, "add")


@kernel(level="lane", grid=[1], workgroup_size=16)
def butterfly(x: Array[f32, 16], y: Out[f32, 16]):
    v = x[local_id()]
    if subgroup_lane() < 100:
        v = v - subgroup_shuffle_xor(v, 2)
    y[local_id()] = v + f32(local_size())


def test_shuffle():
    x, y = RNG.standard_normal(16).astype(np.float32), np.zeros(16, np.float32)
    interpret(butterfly.specialise(), [x, y], subgroup_size=8)
    np.testing.assert_array_equal(y, x - x[np.arange(16) ^ 2] + np.float32(16))
    with pytest.raises(KernelFault, match=r"lane outside of \[0, 2\)"):
        interpret(butterfly.specialise(), [x, y], subgroup_size=2)


@kernel(level="tile", grid=[1])
def dependent_pipeline(x: InOut[f32, 40]):
    for k in pipeline(0, 32, 8, stages=2):
        with load_part():
            tile = copy(x[k : k + 8])
        x[k + 8 : k + 16] = tile + 1.0


def test_a_pipeline_runs_ahead():
    """A load that depends on the compute part before it gives another result with two stages."""
    found = dependent_pipeline.specialise()
    plain = python_copy.deepcopy(found)
    next(op for op in plain.body.walk() if op.opcode == "pipeline").attributes["stages"] = 1
    x = RNG.standard_normal(40).astype(np.float32)
    one, two = x.copy(), x.copy()
    interpret(plain, [one])
    interpret(found, [two])
    np.testing.assert_allclose(one[32:], x[:8] + 4, rtol=1e-6)
    assert (one != two).any()


@kernel(level="tile", grid=[1])
def beyond(x: Array[f32, 5], y: Out[f32, 8]):
    y[0:8] = zeros((8,), f32) + copy(x[0:8])


def test_tile_bounds():
    with pytest.raises(BoundsFault, match="3 elements are"):
        interpret(beyond.specialise(), [np.ones(5, np.float32), np.zeros(8, np.float32)])


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.zeros(9, np.float64), "must be f32"),
        (np.zeros((3, 3), np.float32), r"must have shape \(10,\)"),
        (np.zeros(9, np.float32), r"must have shape \(10,\)"),
    ],
)
def test_wrong_arguments(x, match):
    with pytest.raises((TypeError, ValueError), match=match):
        interpret(total.specialise(), [10, x, np.zeros(1, np.float32)])
    with pytest.raises(ValueError, match="takes 3 arguments"):
        interpret(total.specialise(), [10, x])


@kernel(level="lane", grid=[1], workgroup_size=8)
def raw_bytes(w: RawInOut, y: Out[f32, 8]):
    store(w[local_id() * 4], f32(local_id()))
    barrier()
    y[local_id()] = load(w[28 - local_id() * 4], dtype=f32)


def test_raw_bytes_race_too():
    y = np.zeros(8, np.float32)
    interpret(raw_bytes.specialise(), [np.zeros(32, np.uint8), y])
    np.testing.assert_array_equal(y, np.arange(8)[::-1])
    with pytest.raises(RaceFault, match="race on element 28 of 'w'"):
        interpret(without(raw_bytes.specialise(), "barrier", 0), [np.zeros(32, np.uint8), y])
