"""Builder, verifier, text and hash of kernel IR."""

import numpy as np
import pytest

from poot_core import DTypeError, KernelSyntaxError, VerifyError, bf16, f16, f32, i8, i32, u8, u32
from poot_kernel import (
    OPCODES,
    IRBuilder,
    KernelFunction,
    Layout,
    Location,
    Module,
    Size,
    TileType,
    Uniformity,
    analyse_uniformity,
    ceildiv,
    interleaved,
    parse_kernel,
    parse_module,
    print_kernel,
    print_module,
    structural_hash,
    structurally_equal,
    verify_kernel,
)

BLOCK_BYTES = 64 + 256  # f16 scales, f16 minima, 4-bit quants of 16 rows x 32 k


def int8_block_gemm(tokens: int = 4) -> KernelFunction:
    """Q4_1 weights x int8 activations: the shape of the fastest host kernel."""
    b = IRBuilder("q4_1_gemm", level="tile", grid=["ceildiv(N, 16)", f"ceildiv(T, {tokens})"])
    n, _t, k = b.scalar("N"), b.scalar("T"), b.scalar("K")
    w = b.raw("w")
    x = b.array("x", i8, ["T", "K"])
    x_scale = b.array("x_scale", f32, ["T", "(K // 32)"])
    x_sum = b.array("x_sum", f32, ["T", "(K // 32)"])
    y = b.array("y", f32, ["T", "N"], access="w")
    rows, first_token = b.workgroup_id(0), b.mul(b.workgroup_id(1), tokens)
    num_blocks = b.floordiv(k, 32)
    base = b.mul(rows, b.mul(num_blocks, BLOCK_BYTES))
    acc = b.tile_zeros((tokens, 16), f32)
    half = Layout.parse("rn: r1@0 n16@2")
    nibbles = interleaved("kn", "k4n16", (16, 16))
    with b.pipeline(0, num_blocks, 1, [acc], stages=1) as pipe:
        with pipe.load() as block:
            at = b.add(base, b.mul(block, BLOCK_BYTES))
            scale = b.copy(w, at, layout=half, dtype=f16)
            minimum = b.copy(w, b.add(at, 32), layout=half, dtype=f16)
            quants = b.copy(w, b.add(at, 64), layout=nibbles, alignment=64)
            xs = b.copy(x, [first_token, b.mul(block, 32)], (tokens, 32), bounds="masked")
            ds = b.copy(x_scale, [first_token, block], (tokens, 1), bounds="masked")
            ss = b.copy(x_sum, [first_token, block], (tokens, 1), bounds="masked")
            pipe.yield_(scale, minimum, quants, xs, ds, ss)
        with pipe.compute() as (scale, minimum, quants, xs, ds, ss):
            low = b.map(lambda q: b.and_(q, 15), quants)
            high = b.map(lambda q: b.shr(q, 4), quants)
            weights = b.interleave(low, high, axis=0, block=4)  # (32, 16) u8
            dot = b.mma(xs, weights, b.tile_zeros((tokens, 16), i32), signature="exact")

            def combine(a, d, dw, mw, dx, sx):
                a = b.fma(b.convert(d, f32), b.mul(b.convert(dw, f32), dx), a)
                return b.fma(b.convert(mw, f32), sx, a)

            pipe.yield_(b.map(combine, pipe.carried[0], dot, scale, minimum, ds, ss))
    b.store_tile(y, pipe.result, [first_token, b.mul(rows, 16)], bounds="masked")
    assert n.name == "N"
    return b.finish()


def lane_kernel() -> KernelFunction:
    b = IRBuilder("norm", level="lane", grid=["T"], workgroup_size=64, fastmath=["contract"])
    b.scalar("T")
    n = b.scalar("n")
    x = b.array("x", bf16, ["T", "n"])
    y = b.array("y", f32, ["T", "n"], access="rw", strides=["(n + 8)", 1])
    row = b.workgroup_id()
    with b.foreach(0, n, [b.constant(0.0)]) as loop:
        value = b.convert(b.load(x, [row, loop.index]), f32)
        loop.yield_(b.fma(value, value, loop.carried[0]))
    total = b.workgroup_reduce(loop.result, "add")
    with b.while_([total]) as steps:
        with steps.condition() as (value,):
            steps.test(b.compare("gt", value, 1.5))
        with steps.body() as (value,):
            steps.yield_(b.mul(value, 0.5))
    with b.if_(b.compare("lt", b.query("local_id"), 1)) as branch:
        with branch.then():
            branch.yield_(b.unary("rsqrt", steps.result))
        with branch.otherwise():
            branch.yield_(b.constant(float("-inf")))
    b.store(y, [row, b.query("local_id")], branch.result)
    return b.finish()


@pytest.mark.parametrize("make", [int8_block_gemm, lane_kernel])
def test_text_round_trip(make):
    kernel = make()
    text = print_kernel(kernel)
    parsed = parse_kernel(text)
    verify_kernel(parsed)
    assert print_kernel(parsed) == text
    assert structurally_equal(parsed, kernel)
    assert structural_hash(parsed) == structural_hash(kernel)


def test_module_round_trip():
    module = Module([int8_block_gemm(), lane_kernel()])
    text = print_module(module)
    copy = parse_module(text)
    assert [kernel.name for kernel in copy.kernels] == [kernel.name for kernel in module.kernels]
    assert print_module(copy) == text


def test_hash_sees_structure_but_not_locations():
    assert structural_hash(int8_block_gemm(4)) != structural_hash(int8_block_gemm(8))
    kernel = lane_kernel()
    before = structural_hash(kernel)
    kernel.body.operations[0].location = Location("k.py", 3, 4)
    assert structural_hash(kernel) == before
    text = print_kernel(kernel, locations=True)
    assert parse_kernel(text).body.operations[0].location == Location("k.py", 3, 4)


def test_gemm_types():
    kernel = int8_block_gemm(4)
    product = next(op for op in kernel.body.walk() if op.opcode == "mma")
    assert product.operands[1].type == TileType((32, 16), u8)
    assert product.result.type == TileType((4, 16), i32, "accumulator")


def test_uniformity_of_reduction():
    kernel = lane_kernel()
    found = analyse_uniformity(kernel)
    loop = next(op for op in kernel.body.walk() if op.opcode == "foreach")
    total = next(op for op in kernel.body.walk() if op.opcode == "workgroup_reduce")
    assert found.of(loop.results[0]) is Uniformity.VARYING
    assert found.of(total.result) is Uniformity.WORKGROUP


def test_layout_matches_numpy_interleaving():
    rng = np.random.default_rng(1)
    w = rng.integers(0, 255, (32, 32), np.uint8)  # rows, k
    packed = w.reshape(2, 16, 8, 4).transpose(0, 2, 1, 3).ravel()
    layout = interleaved("kn", "k4n16", (32, 32))
    got = [[packed[layout.offset((k, n), (512,))] for k in range(32)] for n in range(32)]
    np.testing.assert_array_equal(got, w)
    assert Layout.parse(str(layout)) == layout


def test_sizes():
    size = (ceildiv("N", 16) + 3) * "K"
    assert size.evaluate({"N": 40, "K": 2}) == 12
    assert Size.parse(str(size)) == size
    assert size.parameters() == {"N", "K"}


def _lane(**options) -> IRBuilder:
    return IRBuilder("k", **({"level": "lane", "grid": [1]} | options))


def test_builder_names_operation_and_place():
    b = _lane()
    x = b.constant(1.0)
    b.location = Location("model.py", 7, 2)
    with pytest.raises(DTypeError, match=r"'and' .*kind bits, got f32 at model.py:7:2"):
        b.and_(x, 3)
    with pytest.raises(DTypeError, match="differ in type: f32 and u32"):
        b.add(x, b.constant(1, u32))
    with pytest.raises(DTypeError, match="does not fit u8"):
        b.constant(256, u8)
    with pytest.raises(VerifyError, match="'addd' is no opcode"):
        b.op("addd", [x, x])
    with pytest.raises(DTypeError, match="no attribute 'colour'"):
        b.op("barrier", colour=1)


def test_barrier_under_varying_control_flow_is_refused():
    b = _lane()
    with b.if_(b.compare("lt", b.query("local_id"), 3)) as branch, branch.then():
        b.barrier()
    with pytest.raises(VerifyError, match="'barrier' needs workgroup-uniform control flow"):
        b.finish()


def test_tile_operation_in_lane_kernel_is_refused():
    b = _lane()
    b.tile_zeros((4, 4), f32)
    with pytest.raises(VerifyError, match="'tile_full' belongs to tile kernels"):
        b.finish()


def test_use_before_definition_is_refused():
    b = _lane()
    x = b.constant(1.0)
    b.add(x, x)
    b.kernel.body.operations.reverse()
    with pytest.raises(VerifyError, match=r"'add' uses .* not defined before"):
        b.finish()


def test_value_does_not_escape_its_region():
    b = _lane()
    with b.for_(0, 4) as loop:
        inner = b.add(loop.index, 1)
    b.add(inner, 1)
    with pytest.raises(VerifyError, match="not defined before"):
        b.finish()


def test_wrong_result_type_is_refused():
    kernel = lane_kernel()
    op = next(op for op in kernel.body.walk() if op.opcode == "fma")
    op.results[0].type = TileType((2,), f32)
    with pytest.raises(VerifyError):
        verify_kernel(kernel)


def test_writing_a_read_only_array_is_refused():
    b = _lane()
    x = b.array("x", f32, [4])
    with pytest.raises(DTypeError, match="read-only"):
        b.store(x, 0, b.constant(1.0))


def test_map_body_holds_element_operations_only():
    b = _lane(level="tile")
    x = b.array("x", f32, [4])
    tile = b.tile_zeros((4,), f32)
    b.map(lambda e: b.add(e, b.load(x, 0)), tile)
    with pytest.raises(VerifyError, match="'load' is no element operation"):
        b.finish()


def test_grid_over_unknown_parameter_is_refused():
    with pytest.raises(VerifyError, match=r"\['N'\]"):
        _lane(grid=["N"]).finish()


def test_parser_names_line_and_column():
    with pytest.raises(KernelSyntaxError, match="line 2, column 3"):
        parse_kernel('kernel @k() level(lane) grid("1") index(64) {\n  = add\n}')


def test_every_opcode_is_documented():
    assert all(spec.doc and spec.name == name for name, spec in OPCODES.items())
