"""Lane kernels through LLVM on this host, with AVX-512 and with AVX2 alone, against NumPy."""

import ctypes
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_core import Settings, Target, UnsupportedError, bf16, boolean, f16, f32, i8, i32, i64, u32
from poot_kernel import IRBuilder, KernelFunction, ScalarType
from poot_kernel.compile import CompileRequest, CompileService, host_target, load_objects
from poot_kernel.targets.host.lane_lower import lower_lane_kernel

RNG = np.random.default_rng(3)
SIZES = [1, 3, 4, 8, 15, 16, 17, 64, 100, 257]

AVX2 = frozenset({"avx2"})


def targets() -> list[Target]:
    """Return this host's target, and on x86-64 the same without AVX-512."""
    best = host_target(Settings())
    if "avx512f" not in best.features:
        return [best]
    return [best, host_target(Settings(cpu_features=AVX2))]


def slots(kernel: KernelFunction, arguments: Sequence[Any]) -> bytes:
    """Return the argument slots of the host ABI."""
    parts: list[bytes] = []
    for value, argument in zip(kernel.parameters, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            parts.append(struct.pack("<Q", argument.ctypes.data))
        elif isinstance(value.type, ScalarType) and value.type.dtype.is_float:
            parts.append(struct.pack("<fxxxx", argument))
        else:
            parts.append(struct.pack("<q", argument))
    return b"".join(parts)


class Runner:
    """Compiled kernels, by target and identity."""

    def __init__(self, service: CompileService, target: Target) -> None:
        self.service, self.target = service, target

    def __call__(
        self, kernel: KernelFunction, arguments: Sequence[Any], tiles: int, scratch: int = 1 << 20
    ) -> None:
        """Run workgroups 0..tiles."""
        request = CompileRequest(
            kind="llvm-host-object", ir=lower_lane_kernel(kernel, self.target),
            target=self.target, entries=(kernel.name,),
        )  # fmt: skip
        code = load_objects([self.service.compile([request])[0].data], self.target.arch)
        kind = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )
        memory = np.full(scratch + 64, 0xA5, np.uint8)
        base = memory.ctypes.data + -memory.ctypes.data % 64
        packed = ctypes.create_string_buffer(slots(kernel, arguments))
        kind(code.symbols[0][kernel.name])(ctypes.addressof(packed), 0, tiles, base)
        code.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileService]:
    settings = Settings(kernel_cache_dir=Path(tmp_path_factory.mktemp("kernels")))
    with CompileService(settings, num_workers=1) as found:
        yield found


@pytest.fixture(params=targets(), ids=lambda target: f"{len(target.features)}features")
def run(request: pytest.FixtureRequest, service: CompileService) -> Runner:
    return Runner(service, request.param)


def _data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_elementwise_with_a_tail_leaves_the_rest_alone(run: Runner) -> None:
    b = IRBuilder("scaled", level="lane", grid=["rows"])
    n, rows = b.scalar("n"), b.scalar("rows")
    x, y = b.array("x", f32, ["rows", "n"]), b.array("y", f32, ["rows", "n"], access="w")
    row = b.workgroup_id()
    with b.foreach(0, n) as loop:
        b.store(y, [row, loop.index], b.fma(b.load(x, [row, loop.index]), 2.0, 1.0))
    kernel = b.finish()
    assert rows.name == "rows"
    for size in SIZES:
        a = _data(3, size)
        out = np.full((4, size), 7, np.float32)
        run(kernel, [size, 3, a, out], 3)
        np.testing.assert_array_equal(out[:3], a * 2 + 1)
        assert (out[3] == 7).all()


def test_constant_bounds_and_strided_access(run: Runner) -> None:
    for size in (5, 16, 40):
        b = IRBuilder("turned", level="lane", grid=[1])
        x, y = b.array("x", f32, [size, 3]), b.array("y", f32, [3, size], access="w")
        for column in range(3):
            with b.foreach(0, size) as loop:
                b.store(y, [column, loop.index], b.load(x, [loop.index, column]))
        a, out = _data(size, 3), np.zeros((3, size), np.float32)
        run(b.finish(), [a, out], 1)
        np.testing.assert_array_equal(out, a.T)


def test_scatter_and_gather_by_data(run: Runner) -> None:
    b = IRBuilder("permuted", level="lane", grid=[1])
    n = b.scalar("n")
    x, order = b.array("x", f32, ["n"]), b.array("order", i32, ["n"])
    y, z = b.array("y", f32, ["n"], access="w"), b.array("z", f32, ["n"], access="w")
    with b.foreach(0, n) as loop:
        where = b.convert(b.load(order, loop.index), i64)
        b.store(y, loop.index, b.load(x, where))
        b.store(z, where, b.load(x, loop.index))
    kernel = b.finish()
    for size in SIZES:
        a, order_data = _data(size), RNG.permutation(size).astype(np.int32)
        gathered, scattered = np.zeros((2, size), np.float32)
        run(kernel, [size, a, order_data, gathered, scattered], 1)
        np.testing.assert_array_equal(gathered, a[order_data])
        np.testing.assert_array_equal(scattered[order_data], a)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_products_of_pairs(run: Runner, count: int) -> None:
    """Pairs of small whole numbers are exact; those of any numbers round twice in f32."""
    b = IRBuilder("pairs", level="lane", grid=[1])
    n = b.scalar("n")
    x, w = b.array("x", u32, ["n"]), b.array("w", u32, ["n"])
    y = b.array("y", f32, ["n"])
    z = b.array("z", f32, ["n"], access="w")
    with b.foreach(0, b.floordiv(n, count)) as loop:
        at = b.mul(loop.index, count)
        one, two, total = (b.load(memory, at, count=count) for memory in (x, w, y))
        b.store(z, at, b.dot2(one, two, total, bf16))
    kernel = b.finish()
    for size in (16 * count, 21 * count, 3 * count):
        pairs = [_data(size, 2).astype(bf16.numpy) for _ in range(2)]
        whole = [np.rint(4 * pair.astype(np.float32)).astype(bf16.numpy) for pair in pairs]
        for operands, close in ((whole, 0.0), (pairs, 3e-7)):
            start, out = np.rint(_data(size)), np.full(size, np.nan, np.float32)
            words = [np.ascontiguousarray(pair).view(np.uint32).reshape(size) for pair in operands]
            run(kernel, [size, *words, start, out], 1)
            exact = start + np.prod([p.astype(np.float64) for p in operands], axis=0).sum(axis=-1)
            np.testing.assert_allclose(out, exact, rtol=0, atol=close * 16)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_reduction_order_is_lanes_then_halving(run: Runner, count: int) -> None:
    from poot_kernel.targets.host.lane_values import lane_count

    lanes = lane_count(run.target)
    width = lanes * count
    size = width * 5
    b = IRBuilder("summed", level="lane", grid=[1])
    x, y = b.array("x", f32, [size]), b.array("y", f32, [2], access="w")
    zero = b.constant(0.0)
    start = b.splat(zero, count) if count > 1 else zero
    with b.foreach(0, size // count, [start]) as loop:
        value = b.load(x, b.mul(loop.index, count), count=count)
        loop.yield_(b.add(loop.carried[0], value))
    total = b.workgroup_reduce(loop.result, "add")
    b.store(y, 0, b.vector_reduce(total, "add"))
    top = b.workgroup_reduce(loop.result, "max")
    b.store(y, 1, b.vector_reduce(top, "max"))
    a, out = _data(size), np.zeros(2, np.float32)
    run(b.finish(), [a, out], 1)
    parts = np.zeros(width, np.float32)
    for block in a.reshape(-1, width):
        parts += block
    assert out[1] == parts.max()
    while len(parts) > count:
        parts = parts[: len(parts) // 2] + parts[len(parts) // 2 :]
    total_value = parts[0]
    for part in parts[1:]:
        total_value = total_value + part
    assert out[0] == total_value


def test_tail_of_a_reduction_is_neutral(run: Runner) -> None:
    b = IRBuilder("extremes", level="lane", grid=[1])
    n = b.scalar("n")
    x, y = b.array("x", f32, ["n"]), b.array("y", f32, [2], access="w")
    bounds = [b.constant(float("inf")), b.constant(0.0)]
    with b.foreach(0, n, bounds) as loop:
        value = b.load(x, loop.index)
        loop.yield_(b.minimum(loop.carried[0], value), b.add(loop.carried[1], b.constant(1.0)))
    b.store(y, 0, b.workgroup_reduce(loop.results[0], "min"))
    b.store(y, 1, b.workgroup_reduce(loop.results[1], "add"))
    kernel = b.finish()
    for size in SIZES:
        a, out = _data(size) + 10, np.zeros(2, np.float32)
        run(kernel, [size, a, out], 1)
        assert out.tolist() == [a.min(), size]


def test_conversions(run: Runner) -> None:
    size = 37
    b = IRBuilder("converted", level="lane", grid=[1])
    x = b.array("x", f32, [size])
    results = {
        dtype: b.array(dtype.name, dtype, [size], access="w") for dtype in (f16, bf16, i8, i32)
    }
    flags = b.array("flags", boolean, [size], access="w")
    back = b.array("back", f32, [size], access="w")
    with b.foreach(0, size) as loop:
        value = b.load(x, loop.index)
        for dtype, array in results.items():
            b.store(array, loop.index, b.convert(value, dtype))
        b.store(flags, loop.index, b.compare("gt", value, 0.0))
        b.store(back, loop.index, b.convert(b.convert(value, bf16), f32))
    a = (RNG.standard_normal(size) * 40).astype(np.float32)
    outs = [np.zeros(size, dtype.numpy) for dtype in results]
    flag_out, back_out = np.zeros(size, np.bool_), np.zeros(size, np.float32)
    run(b.finish(), [a, *outs, flag_out, back_out], 1)
    for dtype, out in zip(results, outs, strict=True):
        np.testing.assert_array_equal(out, np.trunc(a).astype(dtype.numpy) if dtype.is_integer
                                      else a.astype(dtype.numpy))  # fmt: skip
    np.testing.assert_array_equal(flag_out, a > 0)
    np.testing.assert_array_equal(back_out, a.astype(bf16.numpy).astype(np.float32))


def test_masks_of_branches(run: Runner) -> None:
    b = IRBuilder("branching", level="lane", grid=[1])
    n, limit = b.scalar("n"), b.scalar("limit", f32)
    x = b.array("x", f32, ["n"])
    y = b.array("y", f32, ["n"], access="rw")
    with b.foreach(0, n) as loop:
        value = b.load(x, loop.index)
        with b.if_(b.compare("lt", value, limit)) as branch:
            with branch.then():
                b.store(y, loop.index, b.unary("exp", value))
                branch.yield_(b.constant(1.0))
            with branch.otherwise():
                branch.yield_(b.mul(value, 3.0))
        old = b.load(y, loop.index)
        b.store(y, loop.index, b.add(old, branch.result))
    kernel = b.finish()
    for size in SIZES:
        a, out = _data(size), np.zeros(size, np.float32)
        run(kernel, [size, 0.3, a, out], 1)
        wanted = np.where(a < np.float32(0.3), np.exp(a) + 1, a * 3)
        np.testing.assert_allclose(out, wanted, rtol=3e-7)


def test_uniform_loops_branches_and_scans(run: Runner) -> None:
    b = IRBuilder("counted", level="lane", grid=[1])
    n = b.scalar("n")
    x, y = b.array("x", i32, ["n"]), b.array("y", i32, [8], access="w")
    zero = b.constant(0, i32)
    with b.for_(0, n, 1, [zero]) as loop:
        value = b.load(x, loop.index)
        with b.if_(b.compare("gt", value, zero)) as branch:
            with branch.then():
                branch.yield_(value)
            with branch.otherwise():
                branch.yield_(b.unary("neg", value))
        loop.yield_(b.add(loop.carried[0], branch.result))
    b.store(y, 0, loop.result)
    b.store(y, 1, b.floordiv(b.load(x, 0), b.constant(-3, i32)))
    b.store(y, 2, b.mod(b.load(x, 0), b.constant(7, i32)))
    b.store(y, 3, b.floordiv(b.load(x, 0), b.constant(8, i32)))
    with b.while_([b.constant(1, i32)]) as loop:
        with loop.condition() as (value,):
            loop.test(b.compare("lt", value, b.constant(1000, i32)))
        with loop.body() as (value,):
            loop.yield_(b.mul(value, b.constant(3, i32)))
    b.store(y, 4, loop.result)
    lane = b.convert(b.query("subgroup_lane"), i32)
    b.store(y, 5, b.workgroup_reduce(b.subgroup_scan(lane, "add"), "max"))
    b.store(y, 6, b.workgroup_reduce(b.subgroup_shuffle_xor(lane, 1), "add"))
    vote = b.subgroup_vote(b.compare("lt", lane, b.constant(2, i32)), "all")
    b.store(y, 7, b.select(vote, b.constant(1, i32), zero))
    kernel = b.finish()
    a, out = RNG.integers(-99, 99, 21).astype(np.int32), np.zeros(8, np.int32)
    run(kernel, [21, a, out], 1)
    from poot_kernel.targets.host.lane_values import lane_count

    lanes = lane_count(run.target)
    total = lanes * (lanes - 1) // 2
    assert out.tolist() == [
        np.abs(a).sum(), a[0] // -3, a[0] % 7, a[0] // 8, 2187, total, total, 0
    ]  # fmt: skip


def test_clamped_index_marks_its_row_alone(run: Runner) -> None:
    b = IRBuilder("picked", level="lane", grid=["rows"])
    n = b.scalar("n")
    b.scalar("rows")
    table, ids = b.array("table", f32, ["n", 4]), b.array("ids", i32, ["rows"])
    y = b.array("y", f32, ["rows", 4], access="w")
    status = b.array("status", i32, ["rows"], access="rw")
    row = b.workgroup_id()
    picked = b.clamp_index(status, b.load(ids, row), n, row, bit=0)
    with b.foreach(0, 4) as loop:
        b.store(y, [row, loop.index], b.load(table, [picked, loop.index]))
    data, wanted = _data(5, 4), np.array([0, 4, 5, -1, 2], np.int32)
    out, flags = np.zeros((5, 4), np.float32), np.array([0, 2, 2, 0, 0], np.int32)
    run(b.finish(), [5, 5, data, wanted, out, flags], 5)
    np.testing.assert_array_equal(out, data[np.clip(wanted, 0, 4)])
    assert flags.tolist() == [0, 2, 3, 1, 0]


def test_scratch_and_second_axis(run: Runner) -> None:
    b = IRBuilder("staged", level="lane", grid=[3, "rows"])
    b.scalar("rows")
    x = b.array("x", f32, ["rows", 3, 20])
    y = b.array("y", f32, ["rows", 3, 20], access="w")
    stage = b.shared_alloc(f32, [20])
    column, row = b.workgroup_id(0), b.workgroup_id(1)
    with b.foreach(0, 20) as loop:
        b.store(stage, loop.index, b.load(x, [row, column, loop.index]))
    with b.foreach(0, 20) as loop:
        b.store(y, [row, column, loop.index], b.load(stage, b.sub(19, loop.index)))
    a, out = _data(2, 3, 20), np.zeros((2, 3, 20), np.float32)
    run(b.finish(), [2, a, out], 6)
    np.testing.assert_array_equal(out, a[:, :, ::-1])


def test_neon_compiles(service: CompileService) -> None:
    b = IRBuilder("gelu", level="lane", grid=[1])
    n = b.scalar("n")
    x, y = b.array("x", f16, ["n"]), b.array("y", bf16, ["n"], access="w")
    with b.foreach(0, n) as loop:
        value = b.convert(b.load(x, loop.index), f32)
        b.store(y, loop.index, b.convert(b.mul(value, b.unary("erf", value)), bf16))
    target = Target("cpu", "aarch64", frozenset({"neon"}))
    ir = lower_lane_kernel(b.finish(), target)
    request = CompileRequest(kind="llvm-host-object", ir=ir, target=target, entries=("gelu",))
    assert service.compile([request])[0].data[:4] == b"\x7fELF"


def test_a_host_without_vectors_is_refused() -> None:
    b = IRBuilder("nothing", level="lane", grid=[1])
    with pytest.raises(UnsupportedError, match="AVX2 with FMA"):
        lower_lane_kernel(b.finish(), Target("cpu", "x86-64", frozenset({"sse4.2"})))
