"""Generated WGSL on the adapter at hand, against NumPy and the interpreter."""

# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from poot_core import bf16, f16, f32, i8, i32, i64, u8, u32
from poot_kernel import IRBuilder
from poot_kernel.interpreter import interpret
from poot_kernel.language import (
    Array,
    Const,
    Out,
    foreach,
    kernel,
    rsqrt,
    workgroup_id,
    workgroup_reduce,
)
from poot_kernel.targets.wgsl import compile_wgsl


def _module(name):
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GPU = _module("wgsl_run")
KERNELS = _module("gpu_kernels")
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(7)
pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def caps():
    return GPU.open_adapter()[1]


@pytest.fixture(params=["subgroups", "workgroup memory"])
def run(request, caps):
    """Run a kernel on arrays in place, with the adapter's subgroups or with virtual ones of 16."""
    has_subgroups = request.param == "subgroups"
    used = caps if has_subgroups else replace(caps, subgroup_size=16)
    features = frozenset({"subgroups"} if has_subgroups else ())

    def run_one(function, *arguments, threads=None):
        package = compile_wgsl(function, caps=used, threads=threads, features=features)
        GPU.run_shader(function, package, *arguments)

    run_one.subgroup_size = used.subgroup_size
    return run_one


@kernel(level="lane", grid=["T"], workgroup_size=64)
def rms_norm(
    T: i64, n: i64, x: Array[f32, "T", "n"], y: Out[f32, "T", "n"], EPS: Const[float] = 1e-5
):
    row = workgroup_id()
    total = 0.0
    for i in foreach(n):
        total += x[row, i] * x[row, i]
    scale = rsqrt(workgroup_reduce(total, "add") / f32(n) + EPS)
    for i in foreach(n):
        y[row, i] = x[row, i] * scale


def test_a_normalisation_equals_numpy(run):
    x = RNG.standard_normal((9, 77)).astype(np.float32)
    y = np.full_like(x, np.nan)
    run(rms_norm.specialise(), 9, 77, x, y)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, wanted, rtol=2e-6)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_16_bit_floats_round_as_numpy_does(run, dtype):
    b = IRBuilder("rounded", level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
    b.scalar("n")
    x, y = b.array("x", f32, ["n"]), b.array("y", dtype, ["n"], access="w")
    z = b.array("z", f32, ["n"], access="w")
    index = b.add(b.mul(b.workgroup_id(), 64), b.convert(b.query("local_id"), i64))
    narrow = b.convert(b.load(x, index), dtype)
    b.store(y, index, narrow)
    b.store(z, index, b.convert(narrow, f32))
    # Every exponent, ties and their neighbours, what is subnormal in half, infinities.
    bits = np.arange(0x8000, dtype=np.uint32) << 16
    bits |= RNG.choice([0, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0x2FFF, 0x3000],
                       bits.shape).astype(np.uint32)  # fmt: skip
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    values = np.concatenate([values, -values, [np.inf, -np.inf]]).astype(np.float32)
    values = values[: len(values) // 64 * 64]
    found = np.zeros(len(values), dtype.numpy)
    wide = np.zeros(len(values), np.float32)
    run(b.finish(), len(values), values, found, wide)
    with np.errstate(over="ignore"):
        wanted = values.astype(dtype.numpy)
    np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))
    np.testing.assert_array_equal(wide, wanted.astype(np.float32))


@pytest.mark.parametrize("dtype", [i8, u8, f16, bf16], ids=str)
def test_neighbours_of_narrow_elements_stay(run, dtype):
    b = IRBuilder("every_third", level="lane", grid=[2], workgroup_size=64)
    x, y = b.array("x", dtype, [384]), b.array("y", dtype, [384], access="rw")
    index = b.add(b.mul(b.workgroup_id(), 64), b.convert(b.query("local_id"), i64))
    place = b.mul(index, 3)
    b.store(y, place, b.load(x, place))
    bits = {8: np.uint8, 16: np.uint16}[dtype.bits]
    x_bits, y_bits = (RNG.integers(0, 1 << dtype.bits, 384).astype(bits) for _ in range(2))
    wanted = y_bits.copy()
    wanted[::3] = x_bits[::3]
    run(b.finish(), x_bits.view(dtype.numpy), y_bits.view(dtype.numpy))
    np.testing.assert_array_equal(y_bits, wanted)


def test_integers_of_every_sign(run):
    b = IRBuilder("whole", level="lane", grid=[4], workgroup_size=64)
    x, z = b.array("x", i32, [256]), b.array("z", i32, [256])
    names = ("add", "mul", "min", "max", "shr", "mul_high", "floordiv", "mod", "unsigned")
    out = {name: b.array(name, i32, [256], access="w") for name in names}
    index = b.add(b.mul(b.workgroup_id(), 64), b.convert(b.query("local_id"), i64))
    p, q = b.load(x, index), b.load(z, index)
    for name in ("add", "mul", "min", "max", "mul_high"):
        b.store(out[name], index, b.binary(name, p, q))
    b.store(out["shr"], index, b.binary("shr", p, b.constant(5, i32)))
    b.store(out["floordiv"], index, b.binary("floordiv", p, b.constant(7, i32)))
    b.store(out["mod"], index, b.binary("mod", p, b.constant(7, i32)))
    words = [b.bitcast(v, u32) for v in (p, q)]
    b.store(out["unsigned"], index, b.bitcast(b.binary("mul_high", *words), i32))
    left, right = (RNG.integers(-(2**31), 2**31, 256).astype(np.int32) for _ in range(2))
    arrays = {name: np.zeros(256, np.int32) for name in names}
    run(b.finish(), left, right, *arrays.values())
    wide = left.astype(np.int64), right.astype(np.int64)
    words = [w & 0xFFFFFFFF for w in wide]
    wanted = {
        "add": wide[0] + wide[1], "mul": wide[0] * wide[1], "min": np.minimum(*wide),
        "max": np.maximum(*wide), "shr": left >> 5, "mul_high": wide[0] * wide[1] >> 32,
        "floordiv": left // 7, "mod": left % 7,
        "unsigned": (words[0].astype(object) * words[1] >> 32).astype(np.uint64),
    }  # fmt: skip
    for name in names:
        np.testing.assert_array_equal(arrays[name], wanted[name].astype(np.int32), err_msg=name)


@pytest.mark.parametrize("signs", [(True, True), (True, False), (False, True), (False, False)])
def test_byte_products_are_exact(run, signs):
    b = IRBuilder("dots", level="lane", grid=[1], workgroup_size=64)
    x, z = b.array("x", u32, [64]), b.array("z", u32, [64])
    y = b.array("y", i32, [64], access="w")
    lane = b.convert(b.query("local_id"), i64)
    acc = b.convert(lane, i32)
    b.store(
        y, lane, b.dot4(b.load(x, lane), b.load(z, lane), acc, a_signed=signs[0], b_signed=signs[1])
    )
    left, right = (RNG.integers(0, 2**32, 64).astype(np.uint32) for _ in range(2))
    found = np.zeros(64, np.int32)
    run(b.finish(), left, right, found)
    kinds = [np.int8 if signed else np.uint8 for signed in signs]
    bytes_ = [
        w[:, None].view(k).astype(np.int64) for w, k in zip((left, right), kinds, strict=True)
    ]
    np.testing.assert_array_equal(found, (bytes_[0] * bytes_[1]).sum(1) + np.arange(64))


def test_reductions_scans_and_shuffles_equal_the_interpreter(run):
    b = IRBuilder("lanes", level="lane", grid=[2], workgroup_size=64)
    x = b.array("x", f32, [128])
    names = ("sum", "most", "all", "scan", "turned", "first", "votes")
    out = {n: b.array(n, i32 if n == "votes" else f32, [128], access="w") for n in names}
    index = b.add(b.mul(b.workgroup_id(), 64), b.convert(b.query("local_id"), i64))
    value = b.load(x, index)
    last = b.sub(b.query("subgroup_size"), 1)
    b.store(out["sum"], index, b.subgroup_reduce(value, "add"))
    b.store(out["most"], index, b.subgroup_reduce(value, "max"))
    b.store(out["all"], index, b.workgroup_reduce(value, "add"))
    b.store(out["scan"], index, b.subgroup_scan(value, "add"))
    b.store(out["turned"], index, b.subgroup_shuffle(value, b.sub(last, b.query("subgroup_lane"))))
    b.store(out["first"], index, b.subgroup_broadcast(value, b.constant(3, i64)))
    vote = b.subgroup_vote(b.compare("gt", value, 1.0), "any")
    b.store(out["votes"], index, b.convert(vote, i32))
    function = b.finish()
    data = RNG.standard_normal(128).astype(np.float32)
    found = [np.zeros(128, np.int32 if n == "votes" else np.float32) for n in names]
    wanted = [a.copy() for a in found]
    run(function, data, *found)
    interpret(function, [data, *wanted], subgroup_size=run.subgroup_size)
    for name, left, right in zip(names, found, wanted, strict=True):
        # A scan adds in log steps: a sum of 16 values differs by a few roundings.
        within = 2e-6 if name == "scan" else 0
        np.testing.assert_allclose(left, right, rtol=within, atol=within, err_msg=name)


def test_atomics_count_every_invocation(run):
    b = IRBuilder("counts", level="lane", grid=[8], workgroup_size=64)
    x, y = b.array("x", i32, [512]), b.array("y", i32, [16], access="rw")
    z = b.array("z", i32, [1], access="rw")
    index = b.add(b.mul(b.workgroup_id(), 64), b.convert(b.query("local_id"), i64))
    value = b.load(x, index)
    b.atomic("add", y, b.convert(b.binary("and", value, b.constant(15, i32)), i64), value)
    b.atomic("max", z, 0, value)
    data = RNG.integers(-1000, 1000, 512).astype(np.int32)
    sums, most = np.zeros(16, np.int32), np.full(1, -5000, np.int32)
    run(b.finish(), data, sums, most)
    np.testing.assert_array_equal(sums, np.bincount(data & 15, data, 16).astype(np.int32))
    assert most[0] == data.max()


def test_an_index_out_of_range_marks_its_row_alone(run):
    b = IRBuilder("picked", level="lane", grid=["T"], workgroup_size=64)
    b.scalar("T")
    n = b.scalar("n")
    ids, x = b.array("ids", i32, ["T"]), b.array("x", f32, ["n"])
    y = b.array("y", f32, ["T"], access="w")
    status = b.array("status", i32, ["T"], access="rw")
    row = b.workgroup_id()
    index = b.clamp_index(status, b.convert(b.load(ids, row), i64), n, row, bit=0)
    b.store(y, row, b.load(x, index))
    wanted_ids = np.array([3, -1, 0, 7, 8, 2], np.int32)
    data, found = RNG.standard_normal(8).astype(np.float32), np.zeros(6, np.float32)
    flags = np.zeros(6, np.int32)
    run(b.finish(), 6, 8, wanted_ids, data, found, flags)
    np.testing.assert_array_equal(found, data[np.clip(wanted_ids, 0, 7)])
    np.testing.assert_array_equal(flags, [0, 1, 0, 0, 1, 0])


def test_tables(run):
    b = IRBuilder("looked_up", level="lane", grid=[1], workgroup_size=64)
    x, y = b.array("x", i32, [64]), b.array("y", i32, [64], access="w")
    words = RNG.integers(0, 2**31, 21)
    table = b.constant_table([int(word) for word in words], i32, [21])
    small = b.constant_table([5, 9], i32, [2])
    lane = b.convert(b.query("local_id"), i64)
    index = b.convert(b.load(x, lane), i64)
    b.store(y, lane, b.add(b.load(table, index), b.load(small, b.mod(lane, 2))))
    data, found = RNG.integers(0, 21, 64).astype(np.int32), np.zeros(64, np.int32)
    run(b.finish(), data, found)
    wanted = words[data] + np.where(np.arange(64) % 2, 9, 5)
    np.testing.assert_array_equal(found, wanted.astype(np.int32))


def test_branches_and_loops_by_data(run):
    b = IRBuilder("steps", level="lane", grid=[1], workgroup_size=64)
    x, y = b.array("x", i32, [64]), b.array("y", i32, [64], access="w")
    lane = b.convert(b.query("local_id"), i64)
    start = b.load(x, lane)
    with b.while_([start, b.constant(0, i32)]) as loop:
        with loop.condition() as (value, _count):
            loop.test(b.compare("ne", value, b.constant(1, i32)))
        with loop.body() as (value, count):
            odd = b.compare("eq", b.binary("and", value, b.constant(1, i32)), b.constant(1, i32))
            with b.if_(odd) as branch:
                with branch.then():
                    branch.yield_(b.add(b.mul(value, b.constant(3, i32)), b.constant(1, i32)))
                with branch.otherwise():
                    branch.yield_(b.binary("shr", value, b.constant(1, i32)))
            loop.yield_(branch.result, b.add(count, b.constant(1, i32)))
    b.store(y, lane, loop.results[1])
    data, found = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
    run(b.finish(), data, found)

    def collatz(n):
        count = 0
        while n != 1:
            n, count = (3 * n + 1 if n & 1 else n >> 1), count + 1
        return count

    np.testing.assert_array_equal(found, [collatz(int(n)) for n in data])


def relative(found, wanted):
    return np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("shape", [(40, 72, 56), (32, 32, 32)], ids=["edges", "whole"])
def test_product_of_16_bit_floats(run, shape):
    m, n, k = shape
    a, b = (RNG.standard_normal(s).astype(BF16) for s in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, np.float32)
    run(KERNELS.product.specialise(TM=32, TN=32, TK=16, STAGES=2), m, n, k, a, b, c)
    # f32 chains of exact products: a few roundings of 2**-24 each.
    assert relative(c, a.astype(np.float64) @ b.astype(np.float64).T) < 1e-6


def test_product_of_nibbles_equals_the_interpreter(run):
    w = RNG.integers(0, 256, (32, 64)).astype(np.uint8)
    x = RNG.integers(-127, 128, (1, 128)).astype(np.int8)
    found, wanted = (np.full((1, 32), np.nan, np.float32) for _ in range(2))
    run(KERNELS.nibbles.specialise(), 32, 128, w, x, found)
    KERNELS.nibbles(32, 128, w, x, wanted)
    np.testing.assert_array_equal(found, wanted)


def test_attention(run):
    length = 40
    q, k, v = (RNG.standard_normal((length, 32)).astype(BF16) for _ in range(3))
    out = np.zeros((length, 32)).astype(BF16)
    run(KERNELS.attention.specialise(), length, q, k, v, out)
    scores = q.astype(np.float64) @ k.astype(np.float64).T
    scores[np.triu_indices(length, 1)] = -np.inf
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    # Weights and results are rounded to bf16: 2**-9 relative each.
    assert relative(out, wanted) < 4e-3


@pytest.mark.parametrize("name", ["sin", "cos", "exp", "log", "tanh", "erf"])
def test_functions_are_as_exact_as_f32_allows(run, name):
    b = IRBuilder("function", level="lane", grid=[64], workgroup_size=64)
    x, y = b.array("x", f32, [4096]), b.array("y", f32, [4096], access="w")
    index = b.add(b.mul(b.workgroup_id(), 64), b.convert(b.query("local_id"), i64))
    b.store(y, index, b.unary(name, b.load(x, index)))
    spread = {"sin": 30000.0, "cos": 30000.0, "exp": 80.0, "log": 50.0, "tanh": 5.0, "erf": 3.0}
    data = RNG.uniform(-spread[name], spread[name], 4096).astype(np.float32)
    data = np.abs(data) if name == "log" else data
    found = np.zeros(4096, np.float32)
    run(b.finish(), data, found)
    exact = math.erf if name == "erf" else getattr(math, name)
    wanted = np.array([exact(float(v)) for v in data])
    # A few roundings of 2**-24; of the argument's reduction too, where fma rounds twice.
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=3e-7)
