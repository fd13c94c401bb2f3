"""Every primitive against direct NumPy over random data, odd and empty sizes included."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from poot_core import DTYPES, Shape, bf16, dtype_of, f8e4m3, f16, f32, f64, i8, i32, i64, u8, u32
from poot_eval import evaluate
from poot_eval.rules import RULES
from poot_graph_ir import PRIMITIVES, Builder, Tracer, ops
from poot_quant import FORMATS, decode, random_blocks

settings.register_profile("short", max_examples=40, deadline=None)
settings.load_profile("short")

FLOATS = (f64, f32, f16, bf16)
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 5, 1))


def run(function, *arrays: np.ndarray) -> np.ndarray:
    """Return function over traced arrays, evaluated with every check on."""
    b = Builder("t")
    tracers = [b.slot(f"x{i}", a.shape, dtype_of(a)) for i, a in enumerate(arrays)]
    results = function(*tracers)
    results = results if isinstance(results, tuple) else (results,)
    for i, result in enumerate(results):
        b.output(f"y{i}", result)
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    outputs = evaluate(b.finish(), inputs, lambda name: np.zeros(0), check=True).outputs
    values = tuple(outputs[f"y{i}"] for i in range(len(results)))
    return values if len(values) > 1 else values[0]


def random(shape: Shape, dtype=f32, seed: int = 0, low: float = -3.0, high: float = 3.0):
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.kind == "uint":
        low, high = 0.0, 2 * high
    return np.asarray(rng.uniform(low, high, shape)).astype(dtype.numpy)


def test_every_primitive_has_a_rule() -> None:
    assert RULES.keys() == PRIMITIVES.keys()


UNARY = {
    "neg": (lambda x: -x, -3, 3),
    "abs": (np.abs, -3, 3),
    "sign": (np.sign, -3, 3),
    "exp": (np.exp, -3, 3),
    "log": (np.log, 0.1, 9),
    "sqrt": (np.sqrt, 0, 9),
    "rsqrt": (lambda x: x**-0.5, 0.1, 9),
    "sin": (np.sin, -9, 9),
    "cos": (np.cos, -9, 9),
    "tanh": (np.tanh, -3, 3),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), -3, 3),
    "floor": (np.floor, -3, 3),
}
# Half a unit in the last place of each type's fraction, doubled for f32 and f64 library functions.
ULP = {f64: 2.0**-52, f32: 2.0**-22, f16: 2.0**-11, bf16: 2.0**-8}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype) -> None:
    function, low, high = UNARY[name]
    for shape in SHAPES:
        x = random(shape, dtype, 1, low, high)
        result = run(getattr(ops, name), x)
        expected = function(x.astype(np.float64))
        assert result.dtype == dtype.numpy
        np.testing.assert_allclose(
            result.astype(np.float64), expected, rtol=ULP[dtype], atol=ULP[dtype] * 1e-2
        )


def test_signs_and_not_of_integers_and_booleans() -> None:
    x = np.array([-128, -3, 0, 5], np.int8)
    assert run(ops.neg, x).tolist() == [-128, 3, 0, -5]
    assert run(ops.abs, x[1:]).tolist() == [3, 0, 5]
    assert run(ops.sign, x).tolist() == [-1, -1, 0, 1]
    assert run(ops.logical_not, np.array([True, False])).tolist() == [False, True]


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_floats(name: str, dtype) -> None:
    for shape in SHAPES:
        a, b = random(shape, dtype, 1, 0.5, 3), random(shape, dtype, 2, 0.5, 3)
        result = run(getattr(ops, name), a, b)
        expected = BINARY[name](a.astype(np.float64), b.astype(np.float64))
        np.testing.assert_allclose(result.astype(np.float64), expected, rtol=ULP[dtype])


@pytest.mark.parametrize("dtype", [i8, u8, i32, u32, i64], ids=str)
def test_integers_wrap(dtype) -> None:
    info = np.iinfo(dtype.numpy)
    a = np.array([info.max, info.min, 7], dtype.numpy)
    b = np.array([1, 1, 9], dtype.numpy)
    span = 1 << dtype.bits
    for name in ("add", "sub", "mul"):
        exact = [
            {"add": x + y, "sub": x - y, "mul": x * y}[name]
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        wrapped = [(value - info.min) % span + info.min for value in exact]
        assert run(getattr(ops, name), a, b).tolist() == wrapped


def test_maximum_and_minimum_propagate_nan() -> None:
    a, b = np.array([np.nan, 1, 2], np.float32), np.array([1, np.nan, 3], np.float32)
    assert np.isnan(run(ops.maximum, a, b)).tolist() == [True, True, False]
    assert np.isnan(run(ops.minimum, a, b)).tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [f32, bf16, i32, u8], ids=str)
def test_comparisons_logic_and_select(dtype) -> None:
    for shape in SHAPES:
        a, b = random(shape, dtype, 1), random(shape, dtype, 2)
        pairs = {
            "less": a < b,
            "less_equal": a <= b,
            "greater": a > b,
            "greater_equal": a >= b,
            "equal": a == b,
            "not_equal": a != b,
        }
        for name, expected in pairs.items():
            np.testing.assert_array_equal(run(getattr(ops, name), a, b), expected)
        p, q = a < b, a > 1
        np.testing.assert_array_equal(run(ops.logical_and, p, q), p & q)
        np.testing.assert_array_equal(run(ops.logical_or, p, q), p | q)
        np.testing.assert_array_equal(run(ops.select, p, a, b), np.where(p, a, b))


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_convert_of_small_integers_is_exact_everywhere(source, target) -> None:
    values = np.array([0, 1, 1, 0] if "bool" in {source.kind, target.kind} else [0, 1, 2, 5])
    x = values.astype(source.numpy)
    assert run(lambda t: ops.convert(t, target), x).astype(np.float64).tolist() == values.tolist()


def test_convert_rounds_to_even_truncates_and_saturates() -> None:
    x = np.array([1 + 2**-9, 1 + 3 * 2**-9, 65519.0, 65520.0], np.float32)
    as_f16 = run(lambda t: t.astype(f16), x[2:])
    assert as_f16.tolist() == [65504.0, np.inf]
    # bf16 keeps 7 fraction bits: 1 + 2^-8 ties to even, down; 1 + 3 * 2^-8 ties up.
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert run(lambda t: t.astype(bf16), ties).astype(float).tolist() == [1.0, 1 + 2**-6]
    wild = np.array([2.9, -2.9, 1e30, -1e30, np.nan, np.inf], np.float32)
    assert run(lambda t: t.astype(i8), wild).tolist() == [2, -2, 127, -128, 0, 127]
    top = 2**63 - 1
    assert run(lambda t: t.astype(i64), wild).tolist() == [2, -2, top, -(2**63), 0, top]
    assert run(lambda t: t.astype(u8), wild).tolist() == [2, 0, 255, 0, 0, 255]
    small = np.array([447.0, 0.3], np.float32)
    expected = small.astype(ml_dtypes.float8_e4m3fn).astype(float).tolist()
    assert run(lambda t: t.astype(f8e4m3), small).astype(float).tolist() == expected


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, min_side=0))
def test_arithmetic_broadcasts_as_numpy(shapes) -> None:
    a, b = (random(s, f32, i) for i, s in enumerate(shapes.input_shapes))
    np.testing.assert_array_equal(run(ops.mul, a, b), a * b)


@given(st.data(), hnp.array_shapes(max_dims=4, min_side=0, max_side=5))
def test_indexing_as_numpy(data, shape) -> None:
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, slice) and (i.step or 1) < 0 for i in items):
        return
    x = random(shape, i32, 3, -99, 99)
    np.testing.assert_array_equal(run(lambda t: t[index], x), x[index])


@given(st.data(), hnp.array_shapes(max_dims=4, min_side=0, max_side=5))
def test_views_as_numpy(data, shape) -> None:
    x = random(shape, f32, 4)
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    np.testing.assert_array_equal(run(lambda t: t.transpose(*axes), x), x.transpose(axes))
    flat = run(lambda t: t.transpose(*axes).reshape(-1), x)
    np.testing.assert_array_equal(flat, x.transpose(axes).ravel())
    counts = st.tuples(*(st.integers(0, 2) for _ in shape))
    low, high = data.draw(counts), data.draw(counts)
    expected = np.pad(x, list(zip(low, high, strict=True)), constant_values=-2.5)
    np.testing.assert_array_equal(run(lambda t: ops.pad(t, low, high, -2.5), x), expected)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    joined = run(lambda t: ops.concatenate([t, -t, t], axis), x)
    np.testing.assert_array_equal(joined, np.concatenate([x, -x, x], axis))


@given(st.data(), hnp.array_shapes(max_dims=4, min_side=1, max_side=6))
def test_reductions_as_numpy(data, shape) -> None:
    x = random(shape, f32, 5)
    axes = data.draw(hnp.valid_tuple_axes(len(shape), min_size=1))
    keep = data.draw(st.booleans())
    result = run(lambda t: t.sum(axes, keepdims=keep), x)
    exact = x.astype(np.float64).sum(axis=axes, keepdims=keep)
    np.testing.assert_allclose(result, exact, atol=1e-5)
    np.testing.assert_array_equal(run(lambda t: t.max(axes), x), x.max(axis=axes))
    np.testing.assert_array_equal(run(lambda t: t.min(axes), x), x.min(axis=axes))
    np.testing.assert_allclose(run(lambda t: t.mean(axes), x), x.mean(axis=axes), atol=1e-5)
    axis = data.draw(st.integers(0, len(shape) - 1))
    np.testing.assert_array_equal(run(lambda t: ops.argmax(t, axis), x), x.argmax(axis))
    running = run(lambda t: ops.cumsum(t, axis), x)
    np.testing.assert_allclose(running, x.astype(np.float64).cumsum(axis), atol=1e-5)


def test_empty_sums_are_zero_and_narrow_ones_accumulate_wide() -> None:
    assert run(lambda t: t.sum(1), np.zeros((2, 0), np.float32)).tolist() == [0, 0]
    many = np.full(4096, 1.0, ml_dtypes.bfloat16)
    assert float(run(lambda t: t.sum(0), many)) == 4096.0  # bf16 sums stop at 256
    assert run(lambda t: t.sum(0), np.full(300, 1, np.int8)).item() == 300 - 256


@given(st.integers(0, 6), st.lists(st.integers(-2, 2), min_size=6, max_size=6))
def test_top_k_falls_and_takes_the_lower_index_on_a_tie(k, numbers) -> None:
    x = np.array([numbers, numbers[::-1]], np.float32)
    b = Builder("t")
    values, indices = ops.top_k(b.slot("x", x.shape, f32), k)
    b.output("values", values)
    b.output("indices", indices)
    got = evaluate(b.finish(), {"x": x}, lambda name: x, check=True).outputs
    for row in range(2):
        order = sorted(range(6), key=lambda i: (-x[row, i], i))[:k]
        assert got["indices"][row].tolist() == order
        assert got["values"][row].tolist() == x[row, order].tolist()


def test_creation() -> None:
    def make(x: Tracer) -> tuple[Tracer, ...]:
        numbers = x.trace.literal(np.array([[1.5, -2.0]], np.float32))
        return x.trace.iota((2, 3), 1), x.trace.full((2, 2), 0.5, bf16), numbers

    column, half, numbers = run(make, np.zeros(1, np.float32))
    assert column.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert half.astype(float).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert numbers.tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("left", "right", "batch", "contract", "equation"),
    [
        ((3, 5), (7, 5), ((), ()), (1, 1), "mk,nk->mn"),
        ((3, 5), (5, 7), ((), ()), (1, 0), "mk,kn->mn"),
        ((4, 3, 5), (5, 7, 4), (0, 2), (2, 0), "bmk,knb->bmn"),
        ((2, 3, 4, 5), (4, 2, 5, 6), ((0,), (1,)), ((2, 3), (0, 2)), "bmij,ibjn->bmn"),
        ((2, 3), (4, 5), ((), ()), ((), ()), "ab,cd->abcd"),
        ((3, 0), (7, 0), ((), ()), (1, 1), "mk,nk->mn"),
        ((0, 5), (7, 5), ((), ()), (1, 1), "mk,nk->mn"),
        ((5,), (5,), ((), ()), (0, 0), "k,k->"),
        ((3, 5), (3, 5), ((0, 1), (0, 1)), ((), ()), "ab,ab->ab"),
    ],
)
def test_dot_general_as_einsum(left, right, batch, contract, equation, dtype) -> None:
    a, b = random(left, dtype, 1), random(right, dtype, 2)
    result = run(lambda x, y: ops.dot_general(x, y, batch=batch, contract=contract), a, b)
    expected = np.einsum(equation, a.astype(np.float64), b.astype(np.float64))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@given(st.data(), hnp.array_shapes(max_dims=3, min_side=1, max_side=5))
def test_gather_clamps(data, shape) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = random(shape, f32, 6)
    indices = np.array([[-5, 0, 1], [shape[axis] - 1, shape[axis], 99]], np.int32)
    clamped = np.clip(indices, 0, shape[axis] - 1)
    result = run(lambda t, i: ops.gather(t, i, axis), x, indices)
    np.testing.assert_array_equal(result, np.take(x, clamped, axis=axis))


@pytest.mark.parametrize("leading", [1, 2])
def test_scatter_drops_indices_out_of_range_and_the_last_of_equal_ones_wins(leading) -> None:
    x = random((4, 3, 2), f32, 7)
    rows = x.reshape(12, 2) if leading == 2 else x
    indices = np.array([2, -1, 0, 2, len(rows), 3], np.int32)
    updates = random((6, *rows.shape[1:]), f32, 8)
    expected = rows.copy()
    for index, update in zip(indices, updates, strict=True):
        if 0 <= index < len(rows):
            expected[index] = update
    before = x.copy()
    result = run(lambda t, i, u: ops.scatter(t, i, u, leading=leading), x, indices, updates)
    np.testing.assert_array_equal(result, expected.reshape(x.shape))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_packed_weights_decode_and_move_by_rows(name: str) -> None:
    packed = FORMATS[name]
    shape = (5, 2 * packed.block_elements)
    raw = random_blocks(packed, shape, np.random.default_rng(9))
    values = decode(packed, raw)
    b = Builder("t")
    w = b.const("w", shape, packed)
    b.output("all", ops.dequantize(w))
    b.output("rows", ops.embedding(w, b.slot("ids", (4,), i32)))
    both = ops.concatenate([w[1:3], w[0:1]], 0).reshape(3, 1, -1).transpose(1, 0, 2)
    b.output("moved", ops.dequantize(both))
    ids = np.array([4, 0, 9, -2], np.int32)
    outputs = evaluate(b.finish(), {"ids": ids}, lambda name: raw, check=True).outputs
    np.testing.assert_array_equal(outputs["all"], values)
    np.testing.assert_array_equal(outputs["rows"], values[[4, 0, 4, 0]])
    np.testing.assert_array_equal(outputs["moved"], values[[1, 2, 0]][None])
