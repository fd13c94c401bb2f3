"""Row programs through LLVM on this host against their NumPy meaning."""

import ctypes
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_core import DeviceCaps, Settings, Target, UnsupportedError, dtype_by_name
from poot_kernel import KernelFunction, verify_kernel
from poot_kernel.compile import CompileRequest, CompileService, host_target, load_objects
from poot_kernel.targets.host.lane_lower import lower_lane_kernel
from poot_kernelgen import generate, reference
from poot_kernelgen.requests import KvLayout, RowInput, RowNode, RowOutput, RowProgram
from poot_kernelgen.rows._generate import row_kernel

RNG = np.random.default_rng(11)
HOST = host_target(Settings())
TARGETS = [HOST]
if "avx512f" in HOST.features:
    TARGETS.append(host_target(Settings(cpu_features=frozenset({"avx2"}))))
# Elementwise results differ from NumPy's by our own functions' last bits, sums by their order:
# 1e-6 of the value for short chains in f32, more where a case says so.
CLOSE = {"rtol": 2e-6, "atol": 2e-6}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileService]:
    settings = Settings(kernel_cache_dir=Path(tmp_path_factory.mktemp("kernels")))
    with CompileService(settings, num_workers=1) as found:
        yield found


@pytest.fixture(params=TARGETS, ids=lambda t: "avx512" if "avx512f" in t.features else "base")
def runner(request: pytest.FixtureRequest, service: CompileService) -> "Runner":
    return Runner(service, request.param)


class Runner:
    """Runs kernels and row programs on NumPy arrays."""

    def __init__(self, service: CompileService, target: Target) -> None:
        self.service, self.target = service, target

    def call(self, kernel: KernelFunction, arguments: Sequence[Any], tiles: range) -> None:
        request = CompileRequest(
            kind="llvm-host-object", ir=lower_lane_kernel(kernel, self.target),
            target=self.target, entries=(kernel.name,),
        )  # fmt: skip
        code = load_objects([self.service.compile([request])[0].data], self.target.arch)
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                 ctypes.c_void_p)(code.symbols[0][kernel.name])  # fmt: skip
        packed = b"".join(
            struct.pack("<Q", a.ctypes.data) if isinstance(a, np.ndarray) else struct.pack("<q", a)
            for a in arguments
        )
        slots = ctypes.create_string_buffer(packed)
        scratch = np.full((1 << 20) + 64, 0xA5, np.uint8)
        base = scratch.ctypes.data + -scratch.ctypes.data % 64
        entry(ctypes.addressof(slots), tiles.start, tiles.stop, base)
        code.close()

    def program(
        self, program: RowProgram, inputs: Sequence[np.ndarray], rows: int,
        pools: dict[int, np.ndarray] | None = None, tiles: range | None = None,
    ) -> tuple[list[Any], np.ndarray]:  # fmt: skip
        """Return the outputs as the reference gives them, and the status flags."""
        arguments: list[Any] = []
        for spec, array in zip(program.inputs, inputs, strict=True):
            arguments.append(array)
            if spec.indexed_by is not None:
                arguments.append(len(array))
        outputs: list[Any] = []
        for index, output in enumerate(program.outputs):
            shape = _shape(program, output.value)
            size = math.prod(shape)
            if output.kind == "kv":
                assert pools is not None
                assert output.layout is not None
                outputs.append(None)
                arguments += [pools[index], len(pools[index]) * output.layout.block_size]
                continue
            if output.kind in {"i8", "i8r", "u8r"}:
                codes = np.full((2, rows, size), 77, np.uint8 if output.kind == "u8r" else np.int8)
                scales = np.full((3, rows, size // 32), 7.5, "f4")
                rest = (None, None) if output.kind == "i8" else (codes[1], scales[2])
                found = reference.QuantisedActivation(codes[0], scales[0], scales[1], *rest)
                arguments += [array for array in found if array is not None]
            else:
                dtype = np.uint16 if output.kind == "bf16" else dtype_by_name(output.dtype).numpy
                found = np.full(
                    (rows, *shape) if output.kind == "plain" else (rows, size), 3, dtype
                )
                arguments.append(found)
            outputs.append(found)
        status = np.zeros(rows, np.int32)
        arguments.append(rows)
        if any(o.kind == "kv" for o in program.outputs) or any(
            s.indexed_by is not None for s in program.inputs
        ):
            arguments.append(status)
        kernel = row_kernel(program, self.target)
        verify_kernel(kernel)
        self.call(kernel, arguments, range(rows) if tiles is None else tiles)
        return outputs, status


def _shape(program: RowProgram, value: int) -> tuple[int, ...]:
    inputs = len(program.inputs)
    return program.inputs[value].shape if value < inputs else program.nodes[value - inputs].shape


class Tape:
    """Writes a row program; values are numbers."""

    def __init__(self, *inputs: RowInput) -> None:
        self.inputs, self.nodes = inputs, list[RowNode]()
        self.shapes = [spec.shape for spec in inputs]

    def __call__(
        self, op: str, *operands: int, shape: tuple[int, ...] | None = None, dtype: str = "f32",
        **attributes: object,
    ) -> int:  # fmt: skip
        found = self.shapes[operands[0]] if shape is None else shape
        self.nodes.append(
            RowNode(op=op, operands=operands, shape=found, dtype=dtype,
                    attributes=tuple(sorted(attributes.items())))
        )  # fmt: skip
        self.shapes.append(found)
        return len(self.shapes) - 1

    def literal(self, value: float, like: int | None = None) -> int:
        number = self("literal", shape=(), value=value)
        return number if like is None else self.spread(number, self.shapes[like])

    def spread(self, value: int, shape: tuple[int, ...], *dimensions: int) -> int:
        return self("broadcast", value, shape=shape, dimensions=dimensions)

    def rms_norm(self, x: int, weight: int, eps: float = 1e-5) -> int:
        *outer, size = shape = self.shapes[x]
        axis = len(outer)
        total = self("reduce_sum", self("mul", x, x), shape=tuple(outer), axes=(axis,))
        mean = self("div", total, self.literal(float(size), total))
        scale = self("rsqrt", self("add", mean, self.literal(eps, mean)))
        normed = self("mul", x, self.spread(scale, shape, *range(axis)))
        return self("mul", normed, self.spread(weight, shape, axis))

    def rotate(self, x: int, cosine: int, sine: int) -> int:
        heads, dim = self.shapes[x]
        half = dim // 2
        low = self("slice", x, shape=(heads, half), starts=(0, 0), limits=(heads, half))
        high = self("slice", x, shape=(heads, half), starts=(0, half), limits=(heads, dim))
        turned = self("concatenate", self("neg", high), low, shape=(heads, dim), axis=1)
        cosines = self.spread(cosine, (heads, dim), 1)
        sines = self.spread(sine, (heads, dim), 1)
        return self("add", self("mul", x, cosines), self("mul", turned, sines))

    def program(self, *outputs: RowOutput | int) -> RowProgram:
        return RowProgram(
            inputs=self.inputs, nodes=tuple(self.nodes),
            outputs=tuple(RowOutput(value=o) if isinstance(o, int) else o for o in outputs),
        )  # fmt: skip


def _rows(*shape: int, **options: Any) -> RowInput:
    return RowInput(dtype=options.pop("dtype", "f32"), shape=shape, **options)


def _data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [32, 64, 80, 96, 576, 1152])
def test_residual_norm_and_quantise(runner: Runner, size: int) -> None:
    t = Tape(_rows(size), _rows(size), _rows(size, per_row=False))
    hidden = t("add", 0, 1)
    normed = t.rms_norm(hidden, 2)
    program = t.program(
        hidden, RowOutput(value=normed, kind="i8" if size % 32 == 0 else "plain"),
        RowOutput(value=normed, kind="bf16"),
    )  # fmt: skip
    inputs = [_data(5, size), _data(5, size), _data(size)]
    (plain, packed, half), _ = runner.program(program, inputs, 5)
    wanted = reference.run_row_program(program, inputs, 5)
    np.testing.assert_array_equal(plain, wanted[0])
    # One code step or one bf16 step where a value lies on the border of rounding.
    assert np.abs(half.astype(np.int32) - wanted[2].astype(np.int32)).max() <= 1
    if size % 32:
        np.testing.assert_allclose(packed, wanted[1], **CLOSE)
        return
    assert np.abs(packed.codes.astype(int) - wanted[1].codes).max() <= 1
    assert (packed.codes != wanted[1].codes).mean() < 1e-2
    np.testing.assert_allclose(packed.scales, wanted[1].scales, rtol=1e-6)
    block_sums = packed.codes.reshape(5, -1, 32).sum(-1, dtype=np.float32)
    np.testing.assert_array_equal(packed.sums, packed.scales * block_sums)


@pytest.mark.parametrize("size", [64, 96, 576])
@pytest.mark.parametrize("is_input", [True, False])
def test_blocks_with_outliers_keep_what_rounding_lost(
    runner: Runner, size: int, is_input: bool
) -> None:
    t = Tape(_rows(size), _rows(size, per_row=False))
    value = 0 if is_input else t.rms_norm(0, 1)
    program = t.program(RowOutput(value=value, kind="i8r"))
    inputs = [_data(6, size), np.ones(size, np.float32)]
    inputs[0][0, 3] = 400.0  # its block alone is an outlier's
    inputs[0][1, [5, 40]] = 300.0, -500.0
    inputs[0][2] = 0.0
    (packed,), _ = runner.program(program, inputs, 6)
    wanted = reference.run_row_program(program, inputs, 6)[0]
    has_rest = packed.residual_scales > 0
    np.testing.assert_array_equal(has_rest, wanted.residual_scales > 0)
    assert has_rest.any()
    assert not has_rest.all()
    assert not packed.residual_codes.reshape(6, -1, 32)[~has_rest].any()
    np.testing.assert_allclose(packed.sums, wanted.sums, rtol=2e-5, atol=1e-5)
    # The two planes together stand for the value to half a 256th of a code step, or to a whole one
    # where 128 of them did not fit.
    step = np.repeat(np.where(has_rest, packed.scales / 128, packed.scales), 32, axis=-1)
    exact = inputs[0] if is_input else reference.run_row_program(t.program(value), inputs, 6)[0]
    got = reference.dequantise_activation(packed)
    assert (np.abs(got - exact) <= 0.51 * step + 1e-6 * np.abs(exact)).all()


@pytest.mark.parametrize("is_input", [True, False])
def test_lifted_codes_are_the_others_and_128(runner: Runner, is_input: bool) -> None:
    t = Tape(_rows(96))
    value = 0 if is_input else t("neg", 0)
    inputs = [_data(5, 96)]
    inputs[0][0, 3] = 400.0
    inputs[0][2] = 0.0
    (plain,), _ = runner.program(t.program(RowOutput(value=value, kind="i8r")), inputs, 5)
    (lifted,), _ = runner.program(t.program(RowOutput(value=value, kind="u8r")), inputs, 5)
    for name in ("codes", "residual_codes"):
        np.testing.assert_array_equal(getattr(lifted, name), getattr(plain, name).astype(int) + 128)
    for name in ("scales", "sums", "residual_scales"):
        np.testing.assert_array_equal(getattr(lifted, name), getattr(plain, name))
    assert plain.residual_scales.any()


@pytest.mark.parametrize("is_input", [True, False])
@pytest.mark.parametrize(
    "target",
    [
        Target("ptx", "sm_90a"),
        Target("rocm", "gfx1100"),
        Target("vulkan", "spirv1.6"),
        Target("wgpu", "wgsl"),
    ],
    ids=lambda target: target.api,
)
def test_lifted_codes_are_a_matter_of_the_host(target: Target, is_input: bool) -> None:
    caps = DeviceCaps(
        name="a GPU", vector_bytes=16, subgroup_size=32, num_workers=1, shared_bytes=32 << 10,
        memory_bytes=1 << 33, max_workgroup=256,
    )  # fmt: skip
    t = Tape(_rows(96))
    value = 0 if is_input else t("neg", 0)
    for kind in ("i8", "i8r"):  # what is refused is the lift and nothing else
        assert generate(t.program(RowOutput(value=value, kind=kind)), target, caps)
    with pytest.raises(UnsupportedError, match="codes as i8, not lifted to u8"):
        generate(t.program(RowOutput(value=value, kind="u8r")), target, caps)


def test_zero_blocks_quantise_to_zero(runner: Runner) -> None:
    t = Tape(_rows(64))
    program = t.program(RowOutput(value=t("neg", 0), kind="i8"))
    inputs = [np.concatenate([np.zeros((2, 32), np.float32), _data(2, 32)], axis=1)]
    (packed,), _ = runner.program(program, inputs, 2)
    wanted = reference.run_row_program(program, inputs, 2)[0]
    for got, expected in zip(packed, wanted, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("heads", "dim", "width"), [(9, 64, 3), (4, 256, 1), (5, 80, 2), (3, 24, 3)]
)
@pytest.mark.parametrize("pool", ["f32", "f16", "bf16", "pairs"])
def test_rotary_with_head_norm_into_the_pools(
    runner: Runner, heads: int, dim: int, width: int, pool: str
) -> None:
    """q and k come as one row of a joint projection; k and v go into paged pools."""
    rows, block, blocks = 6, 16, 3
    pairs, pool = pool == "pairs", "bf16" if pool == "pairs" else pool
    total = (heads + 2 * width) * dim
    t = Tape(
        _rows(total), _rows(dim, per_row=False), _rows(dim, per_row=False),
        _rows(dim), _rows(dim), _rows(dtype="i32"),
    )  # fmt: skip
    parts, start = [], 0
    for count in (heads, width, width):
        piece = t("slice", 0, shape=(count * dim,), starts=(start,), limits=(start + count * dim,))
        parts.append(t("reshape", piece, shape=(count, dim)))
        start += count * dim
    query = t.rotate(t.rms_norm(parts[0], 1), 3, 4)
    key = t.rotate(t.rms_norm(parts[1], 2), 3, 4)
    layouts = [
        KvLayout(
            role=role, num_kv_heads=width, head_dim=dim, block_size=block, dtype=pool, pairs=pairs
        )
        for role in ("key", "value")
    ]
    program = t.program(
        query,
        RowOutput(value=key, kind="kv", slot_input=5, layout=layouts[0]),
        RowOutput(value=parts[2], kind="kv", slot_input=5, layout=layouts[1]),
    )
    slots = np.array([0, 17, -1, 31, 48, 40], np.int32)
    inputs = [_data(rows, total), _data(dim), _data(dim), _data(rows, dim), _data(rows, dim), slots]
    dtype = dtype_by_name(pool).numpy
    pools = {
        index: _data(*reference.kv_pool_shape(layouts[index - 1], blocks)).astype(dtype)
        for index in (1, 2)
    }
    wanted_pools = {index: array.copy() for index, array in pools.items()}
    wanted_status = np.zeros(rows, np.int32)
    wanted = reference.run_row_program(
        program, inputs, rows, pools=wanted_pools, status=wanted_status
    )
    outputs, status = runner.program(program, inputs, rows, pools)
    np.testing.assert_allclose(outputs[0], wanted[0], rtol=2e-6, atol=4e-6)
    assert status.tolist() == wanted_status.tolist() == [0, 0, 0, 0, 1, 0]
    # Half a step of the pool's dtype at values up to about 8, and the f32 difference itself.
    step = {"f32": 4e-6, "f16": 8e-3, "bf16": 6e-2}[pool]
    for index in (1, 2):
        np.testing.assert_allclose(
            pools[index].astype(np.float32), wanted_pools[index].astype(np.float32), atol=step
        )
    np.testing.assert_array_equal(pools[2].view("u1"), wanted_pools[2].view("u1"))


def test_layer_norm_and_gelu(runner: Runner) -> None:
    size = 100
    t = Tape(_rows(size), _rows(size, per_row=False), _rows(size, per_row=False))
    mean = t("div", t("reduce_sum", 0, shape=(), axes=(0,)), t.literal(float(size)))
    centred = t("sub", 0, t.spread(mean, (size,)))
    square = t("reduce_sum", t("mul", centred, centred), shape=(), axes=(0,))
    variance = t("div", square, t.literal(float(size)))
    scale = t("rsqrt", t("add", variance, t.literal(1e-5)))
    normed = t("add", t("mul", t("mul", centred, t.spread(scale, (size,))), 1), 2)
    half = t("mul", normed, t.literal(0.5, normed))
    argument = t("mul", normed, t.literal(1 / math.sqrt(2), normed))
    gelu = t("mul", half, t("add", t("erf", argument), t.literal(1.0, normed)))
    cube = t("pow", normed, t.literal(3.0, normed))
    program = t.program(gelu, cube)
    inputs = [_data(4, size), _data(size), _data(size)]
    outputs, _ = runner.program(program, inputs, 4)
    for got, expected in zip(outputs, reference.run_row_program(program, inputs, 4), strict=True):
        np.testing.assert_allclose(got, expected, rtol=4e-6, atol=4e-6)


def test_every_elementwise_operation(runner: Runner) -> None:
    size = 37
    t = Tape(_rows(size), _rows(size), _rows(size, dtype="f16"), _rows(size, dtype="bf16"))
    positive = t("add", t("abs", 0), t.literal(0.1, 0))
    results = [
        t(op, 0) for op in ("neg", "abs", "sign", "exp", "sin", "cos", "tanh", "erf", "floor")
    ]
    results += [t(op, positive) for op in ("log", "sqrt", "rsqrt")]
    results += [t(op, 0, 1) for op in ("add", "sub", "mul", "div", "maximum", "minimum")]
    results += [t("pow", positive, 1)]
    flags = [t(op, 0, 1, dtype="boolean") for op in
             ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")]  # fmt: skip
    both = t("logical_and", flags[2], t("logical_not", flags[0], dtype="boolean"), dtype="boolean")
    either = t("logical_or", both, flags[5], dtype="boolean")
    results += [t("select", both, 0, 1), t("select", either, 1, 0)]
    results += [
        t("convert", t("add", 2, 2, dtype="f16")),
        t("convert", t("mul", 3, 3, dtype="bf16")),
    ]
    whole = t("convert", t("mul", 0, t.literal(50.0, 0)), dtype="i32")
    ramp = t("iota", shape=(size,), dtype="i32", axis=0)
    results += [t("convert", t("add", whole, ramp, dtype="i32"))]
    outputs = [RowOutput(value=r) for r in results]
    outputs += [RowOutput(value=f, dtype="boolean") for f in [*flags, both]]
    program = t.program(*outputs)
    inputs = [_data(3, size), _data(3, size), _data(3, size).astype(np.float16),
              _data(3, size).astype(dtype_by_name("bf16").numpy)]  # fmt: skip
    inputs[1][0, :5] = inputs[0][0, :5]
    got, _ = runner.program(program, inputs, 3)
    for index, expected in enumerate(reference.run_row_program(program, inputs, 3)):
        np.testing.assert_allclose(got[index], expected, **CLOSE, err_msg=str(index))


def test_views_of_views(runner: Runner) -> None:
    """Transposes, strided slices and concatenations that straddle each other's pieces."""
    t = Tape(_rows(6, 8), _rows(6, 3))
    joined = t("concatenate", 0, 1, shape=(6, 11), axis=1)
    turned = t("transpose", joined, shape=(11, 6), permutation=(1, 0))
    picked = t("slice", turned, shape=(4, 3), starts=(1, 0), limits=(11, 5), strides=(3, 2))
    flat = t("reshape", joined, shape=(66,))
    cut = t("slice", flat, shape=(40,), starts=(13,), limits=(53,))
    tall = t("reshape", cut, shape=(5, 8))
    paired = t("concatenate", tall, t("mul", tall, tall), shape=(10, 8), axis=0)
    row_sums = t("reduce_sum", paired, shape=(10,), axes=(1,))
    column_most = t("reduce_max", paired, shape=(8,), axes=(0,))
    program = t.program(turned, picked, cut, paired, row_sums, column_most)
    inputs = [_data(3, 6, 8), _data(3, 6, 3)]
    got, _ = runner.program(program, inputs, 3)
    for index, expected in enumerate(reference.run_row_program(program, inputs, 3)):
        np.testing.assert_allclose(got[index], expected, **CLOSE, err_msg=str(index))


def test_interleaved_rotary(runner: Runner) -> None:
    """Neighbouring pairs rotate: strided slices and a concatenation along a new last axis."""
    heads, half = 3, 16
    t = Tape(_rows(heads, 2 * half), _rows(half), _rows(half))
    ends = (heads, 2 * half)
    even = t("slice", 0, shape=(heads, half), starts=(0, 0), limits=ends, strides=(1, 2))
    odd = t("slice", 0, shape=(heads, half), starts=(0, 1), limits=ends, strides=(1, 2))
    cosine, sine = (t.spread(v, (heads, half), 1) for v in (1, 2))
    first = t("sub", t("mul", even, cosine), t("mul", odd, sine))
    second = t("add", t("mul", odd, cosine), t("mul", even, sine))
    shaped = [t("reshape", v, shape=(heads, half, 1)) for v in (first, second)]
    pairs = t("concatenate", *shaped, shape=(heads, half, 2), axis=2)
    program = t.program(t("reshape", pairs, shape=(heads, 2 * half)))
    inputs = [_data(4, heads, 2 * half), _data(4, half), _data(4, half)]
    got, _ = runner.program(program, inputs, 4)
    np.testing.assert_allclose(got[0], reference.run_row_program(program, inputs, 4)[0], **CLOSE)


def test_indexed_table_is_clamped_and_flagged(runner: Runner) -> None:
    t = Tape(_rows(40, indexed_by=1), _rows(dtype="i32"), _rows(40))
    program = t.program(t("mul", 0, 2))
    inputs = [_data(7, 40), np.array([0, 6, 7, -3, 2], np.int32), _data(5, 40)]
    # The index must be read before the table it picks from: inputs may come in any order.
    wanted_status = np.zeros(5, np.int32)
    wanted = reference.run_row_program(program, inputs, 5, status=wanted_status)
    got, status = runner.program(program, inputs, 5)
    np.testing.assert_array_equal(got[0], wanted[0])
    assert status.tolist() == wanted_status.tolist() == [0, 0, 1, 1, 0]


def test_table_of_angles(runner: Runner) -> None:
    half = 32
    t = Tape(_rows(dtype="i32"), _rows(half, per_row=False))
    position = t.spread(t("convert", 0), (half,))
    angle = t("mul", position, 1)
    both = t("concatenate", angle, angle, shape=(2 * half,), axis=0)
    program = t.program(t("cos", both), t("sin", both))
    frequency = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
    inputs = [np.array([0, 1, 511, 8191, 131071], np.int32), frequency]
    got, _ = runner.program(program, inputs, 5)
    for index, expected in enumerate(reference.run_row_program(program, inputs, 5)):
        np.testing.assert_allclose(got[index], expected, rtol=0, atol=2e-7)


def test_rows_are_the_same_bits_alone_and_among_others(runner: Runner) -> None:
    size = 192
    t = Tape(_rows(size), _rows(size, per_row=False))
    program = t.program(RowOutput(value=t.rms_norm(0, 1)), RowOutput(value=t("tanh", 0), kind="i8"))
    inputs = [_data(9, size), _data(size)]
    together, _ = runner.program(program, inputs, 9)
    for row in (0, 4, 8):
        alone, _ = runner.program(program, [inputs[0][row : row + 1], inputs[1]], 1)
        np.testing.assert_array_equal(alone[0][0], together[0][row])
        for one, all_rows in zip(alone[1][:3], together[1][:3], strict=True):
            np.testing.assert_array_equal(one[0], all_rows[row])
    part, _ = runner.program(program, inputs, 9, tiles=range(2, 5))
    np.testing.assert_array_equal(part[0][2:5], together[0][2:5])
    assert (part[0][5:] == 3).all()


def test_neon_compiles(service: CompileService) -> None:
    t = Tape(_rows(96), _rows(96, per_row=False))
    normed = t.rms_norm(0, 1)
    program = t.program(t("tanh", normed), RowOutput(value=normed, kind="i8"))
    target = Target("cpu", "aarch64", frozenset({"neon"}))
    ir = lower_lane_kernel(row_kernel(program, target), target)
    request = CompileRequest(kind="llvm-host-object", ir=ir, target=target, entries=("row",))
    assert service.compile([request])[0].data[:4] == b"\x7fELF"


def test_refusals() -> None:
    t = Tape(_rows(40))
    with pytest.raises(UnsupportedError, match="blocks of 32, its rows have 40"):
        row_kernel(t.program(RowOutput(value=t("neg", 0), kind="i8")), HOST)
    t = Tape(_rows(40))
    with pytest.raises(UnsupportedError, match="no operation 'sort'"):
        row_kernel(t.program(t("sort", 0)), HOST)
