# ruff: noqa: F821 -- array extents in annotations name the kernels' parameters
"""Rules of the interpreter against NumPy, exact rational arithmetic and hand calculation."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_core import bf16, f16, f32, i8, i32, i64, u8, u32
from poot_kernel import OPCODES, IRBuilder, Layout, interleaved
from poot_kernel.interpreter import INTERPRETER_RULES, interpret
from poot_kernel.interpreter._rounding import fused_multiply_add, narrow
from poot_kernel.language import (
    Array,
    Const,
    Out,
    Raw,
    bitcast,
    concatenate,
    convert,
    copy,
    copy_rows,
    dot2,
    dot4,
    fma,
    full,
    interleave,
    iota,
    kernel,
    load,
    local_id,
    lut16,
    map,
    mma,
    reduce,
    reshape,
    store,
    store_rows,
    subgroup_scan,
    transpose,
    vector_reduce,
    where,
)

RNG = np.random.default_rng(11)
finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def test_every_opcode_has_a_rule():
    ends = {name for name, spec in OPCODES.items() if spec.is_terminator}
    assert set(INTERPRETER_RULES) == set(OPCODES) - ends


@settings(max_examples=400, deadline=None)
@given(finite32, finite32, finite32)
def test_fma_rounds_once(a, b, c):
    got = fused_multiply_add(*(np.float32([x]) for x in (a, b, c)), dtype=f32)[0]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if abs(exact) < Fraction(2) ** 127:
        error = abs(Fraction(float(got)) - exact)
        for other in (
            np.nextafter(got, np.float32(np.inf)),
            np.nextafter(got, np.float32(-np.inf)),
        ):
            if np.isfinite(other):
                rival = abs(Fraction(float(other)) - exact)
                assert error < rival or (error == rival and got.view(np.uint32) % 2 == 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_fma_where_two_roundings_go_wrong(sign):
    # 1 + 2**-23 + half an ulp + 2**-60: f64 drops the last term, and the tie then goes down to even.
    a, b = np.float32([1 + 2**-12]), np.float32([sign * (1 + 2**-12)])
    c = np.float32([sign * 2**-60])
    exact = Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(float(c[0]))
    assert (a.astype(np.float64) * b + c).astype(np.float32)[0] == np.float32(sign * (1 + 2**-11))
    got = fused_multiply_add(a, b, c, f32)[0]
    near = [np.float32(sign * (1 + 2**-11)), np.float32(sign * (1 + 2**-11 + 2**-23))]
    errors = [abs(Fraction(float(x)) - exact) for x in near]
    assert got == near[int(errors[1] < errors[0])]


def test_narrowing_to_bf16_rounds_once():
    just_above_tie = 1 + 2**-8 + 2**-40  # through f32 it would be the tie, and go to even
    assert narrow(np.float64([just_above_tie]), bf16)[0] == ml_dtypes.bfloat16(1 + 2**-7)


@kernel(level="lane", grid=[1], workgroup_size=8)
def bits_and_bytes(w: Raw, a: Array[u32, 8], b: Array[u32, 8], y: Out[i32, 8], z: Out[f32, 8, 3]):
    lane = local_id()
    y[lane] = dot4(a[lane], b[lane], i32(5), a_signed=False)
    z[lane, 0] = dot2(a[lane], b[lane], f32(1.0), bf16)
    halves = load(w[lane * 2 + 1 :], dtype=f16) if False else load(w[lane * 2 + 1], dtype=f16)
    z[lane, 1] = f32(halves)
    z[lane, 2] = f32(vector_reduce(bitcast(a[lane] & 0x7F7F7F7F, i8), "max"))


def test_packed_operations():
    raw = RNG.integers(0, 255, 32).astype(np.uint8)
    raw[2::2] &= 0x3B  # finite halves at odd offsets
    a, b = (RNG.standard_normal((8, 2)).astype(ml_dtypes.bfloat16) for _ in range(2))
    packed = [np.ascontiguousarray(x).view(np.uint32).reshape(8) for x in (a, b)]
    y, z = np.zeros(8, np.int32), np.zeros((8, 3), np.float32)
    interpret(bits_and_bytes.specialise(), [raw, *packed, y, z])
    bytes_a = packed[0][:, None].view(np.uint8).astype(int)
    bytes_b = packed[1][:, None].view(np.int8).astype(int)
    np.testing.assert_array_equal(y, (bytes_a * bytes_b).sum(1) + 5)
    expected = (a.astype(np.float64) * b.astype(np.float64)).sum(1) + 1
    np.testing.assert_allclose(z[:, 0], expected, rtol=1e-6)
    np.testing.assert_array_equal(z[:, 1], raw[1:17].view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(z[:, 2], (bytes_a & 0x7F).max(1))


@kernel(level="lane", grid=[1], workgroup_size=8)
def scans(x: Array[i32, 8], y: Out[i32, 3, 8]):
    lane = local_id()
    y[0, lane] = subgroup_scan(x[lane], "add")
    y[1, lane] = subgroup_scan(x[lane], "max", exclusive=True)
    y[2, lane] = lut16(x[lane], tuple(range(-8, 8)), i32)


def test_scans():
    x = RNG.integers(-9, 9, 8, np.int32)
    y = np.zeros((3, 8), np.int32)
    interpret(scans.specialise(), [x, y], subgroup_size=8)
    np.testing.assert_array_equal(y[0], np.cumsum(x))
    np.testing.assert_array_equal(y[1], [-(2**31), *np.maximum.accumulate(x)[:-1]])
    np.testing.assert_array_equal(y[2], np.arange(-8, 8)[x & 15])


@kernel(level="tile", grid=[1])
def forms(n: i64, x: Array[f32, "n", 12], y: Out[f32, 6, 8], z: Out[f32, 8, 3]):
    tile = copy(x[n - 3 : n - 3 + 6, 2:10], masked=True)
    low, high = tile[:, 0:4], tile[:, 4:8]
    y[0:6, 0:8] = interleave(low, high, axis=1, block=2) + iota((6, 1), 0, f32)
    best = reduce(tile, 0, "max", order="tree")
    total = reduce(tile, 0, "add")
    z[0:8, 0:3] = concatenate(
        transpose(best), reshape(total, (8, 1)), full((8, 1), tile[1, 2], f32), axis=1
    )


def test_forms_of_tiles():
    n = 7
    x = RNG.standard_normal((n, 12)).astype(np.float32)
    y, z = np.zeros((6, 8), np.float32), np.zeros((8, 3), np.float32)
    interpret(forms.specialise(), [n, x, y, z])
    tile = np.zeros((6, 8), np.float32)
    tile[:3] = x[4:, 2:10]
    mixed = tile[:, [0, 1, 4, 5, 2, 3, 6, 7]]
    np.testing.assert_array_equal(y, mixed + np.arange(6, dtype=np.float32)[:, None])
    np.testing.assert_array_equal(z[:, 0], tile.max(0))
    np.testing.assert_allclose(z[:, 1], tile.sum(0), rtol=1e-6, atol=1e-6)
    assert (z[:, 2] == tile[1, 2]).all()


@kernel(level="tile", grid=[1])
def rows_and_columns(
    rows: Array[i32, 4], x: Array[f32, 9, 6], y: Out[f32, 9, 6], scale: f32
):  # fmt: skip
    at = copy(rows[0:4])
    tile = copy_rows(x, where(at < 0, 0, at), [1], (4,))
    doubled, negated = map(lambda v: (v * scale, -v), tile)
    store_rows(y, fma(doubled, 2.0, negated), at, [2])


def test_rows_by_number():
    rows = np.array([3, -1, 8, 0], np.int32)
    x, y = RNG.standard_normal((9, 6)).astype(np.float32), np.zeros((9, 6), np.float32)
    interpret(rows_and_columns.specialise(), [rows, x, y, 1.5])
    expected = np.zeros_like(y)
    for row in (3, 8, 0):
        expected[row, 2:6] = x[row, 1:5] * 2
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@kernel(level="tile", grid=[1])
def through_layout(w: Raw, x: Array[u8, 4, 32], y: Out[i32, 4, 32], LAYOUT: Const[Layout]):
    weights = copy(w[0:], layout=LAYOUT, strides=(512,))
    y[0:4, 0:32] = mma(copy(x[0:4, 0:32]), weights, full((4, 32), i32(1)), signature="exact")


def test_layout_and_exact_product():
    w = RNG.integers(0, 255, (32, 32), np.uint8)  # rows, k
    packed = w.reshape(2, 16, 8, 4).transpose(0, 2, 1, 3).ravel()
    x = RNG.integers(0, 255, (4, 32), np.uint8)
    y = np.zeros((4, 32), np.int32)
    found = through_layout.specialise(LAYOUT=interleaved("kn", "k4n16", (32, 32)))
    interpret(found, [packed, x, y])
    np.testing.assert_array_equal(y, x.astype(int) @ w.T.astype(int) + 1)
    assert through_layout.specialise(LAYOUT=interleaved("kn", "k4n16", (32, 32))) is found


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [("floordiv", [-4, 3, 0, -1]), ("mod", [1, 1, 3, 2]), ("min", [-7, 2, 3, -1]),
     ("shr", [-2, 1, 0, -1]), ("xor", [-5, 5, 7, -4])],
)  # fmt: skip
def test_integer_arithmetic(opcode, expected):
    b = IRBuilder("one", level="lane", grid=[1], workgroup_size=4)
    x, y = b.array("x", i32, [4, 2]), b.array("y", i32, [4], access="w")
    lane = b.query("local_id")
    b.store(y, lane, b.binary(opcode, b.load(x, [lane, 0]), b.load(x, [lane, 1])))
    out = np.zeros(4, np.int32)
    given = np.array([[-7, 2], [7, 2], [3, 4], [-1, 3]], np.int32)
    interpret(b.finish(), [given, out])
    np.testing.assert_array_equal(out, expected)


def test_saturating_conversion():
    b = IRBuilder("one", level="lane", grid=[1], workgroup_size=6)
    x, y = b.array("x", f32, [6]), b.array("y", i8, [6], access="w")
    lane = b.query("local_id")
    b.store(y, lane, b.convert(b.load(x, lane), i8, saturate=True))
    out = np.zeros(6, np.int8)
    interpret(b.finish(), [np.float32([-1e9, -128.4, -3.9, 3.9, 127.6, np.inf]), out])
    np.testing.assert_array_equal(out, [-128, -128, -3, 3, 127, 127])


@kernel(level="tile", grid=[1])
def narrowed(x: Array[f32, 8], y: Out[bf16, 8]):
    store(y[0:8], convert(copy(x[0:8]), bf16))


def test_kernels_run_when_called():
    x, y = RNG.standard_normal(8).astype(np.float32), np.zeros(8, ml_dtypes.bfloat16)
    narrowed(x=x, y=y)
    np.testing.assert_array_equal(y, x.astype(ml_dtypes.bfloat16))
