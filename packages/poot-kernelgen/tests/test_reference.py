"""The NumPy meaning of requests, against direct formulas."""

from __future__ import annotations

import numpy as np
import pytest

from poot_kernelgen import (
    AttendRequest,
    ContractionRequest,
    Epilogue,
    KvLayout,
    RowInput,
    RowNode,
    RowOutput,
    RowProgram,
    WeightLayout,
)
from poot_kernelgen import reference as ref
from poot_quant import decode, format_by_name, random_blocks


def node(op, operands, shape, dtype="f32", **attributes):
    return RowNode(
        op=op,
        operands=operands,
        shape=shape,
        dtype=dtype,
        attributes=tuple(sorted(attributes.items())),
    )


def rms_norm_program(width):
    return RowProgram(
        inputs=(
            RowInput(dtype="f32", shape=(width,)),
            RowInput(dtype="f32", shape=(width,), per_row=False),
        ),
        nodes=(
            node("mul", (0, 0), (width,)),
            node("reduce_sum", (2,), (), axes=(0,)),
            node("literal", (), (), value=1.0 / width),
            node("mul", (3, 4), ()),
            node("literal", (), (), value=1e-5),
            node("add", (5, 6), ()),
            node("rsqrt", (7,), ()),
            node("broadcast", (8,), (width,), dimensions=()),
            node("mul", (0, 9), (width,)),
            node("mul", (10, 1), (width,)),
        ),
        outputs=(
            RowOutput(value=11),
            RowOutput(value=11, kind="i8"),
            RowOutput(value=11, kind="bf16"),
        ),
    )


def test_a_row_program_is_rms_norm_in_three_roundings():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 64), np.float32), rng.standard_normal(64, np.float32)
    plain, codes, bits = ref.run_row_program(rms_norm_program(64), [x, w], 5)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(plain, expected, rtol=2e-6, atol=1e-6)
    back = ref.dequantise_activation(codes)
    bound = np.abs(plain.reshape(5, 2, 32)).max(-1).repeat(32, -1) / 127 * 0.501
    assert (np.abs(back - plain) <= bound).all()
    np.testing.assert_allclose(codes.sums, back.reshape(5, 2, 32).sum(-1), rtol=1e-5, atol=1e-5)
    widened = (bits.astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(widened - plain) <= np.abs(plain) / 256).all()


def test_blocks_with_outliers_keep_what_rounding_lost():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 128), np.float32)
    x[0, 40] = 60.0
    found = ref.quantise_activation(x, outlier=4.0)
    plain = ref.quantise_activation(x)
    np.testing.assert_array_equal(found.codes, plain.codes)
    assert (found.residual_scales[0] > 0).tolist() == [False, True, False, False]
    assert not found.residual_codes[0, :32].any()
    error = np.abs(ref.dequantise_activation(found) - x).reshape(3, 4, 32).max(-1)
    assert error[0, 1] <= 60 / 127 / 2 / 127 / 2 * 1.01
    values = ref.dequantise_activation(found).reshape(3, 4, 32)
    np.testing.assert_allclose(found.sums, values.sum(-1), rtol=1e-5, atol=1e-4)
    weight = ref.LogicalWeight(
        rng.integers(0, 16, (8, 128)).astype(np.int8),
        rng.random((8, 4), np.float32),
        rng.standard_normal((8, 4)).astype(np.float32),
    )
    request = ContractionRequest(weight=WeightLayout(source="Q4_1"), activation="i8r", regime="few")
    expected = values.reshape(3, 128).astype(np.float64) @ weight.values().T.astype(np.float64)
    np.testing.assert_allclose(ref.contract(request, weight, found), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_0"])
def test_an_i8_contraction_is_the_product_of_the_rounded_values(name):
    rng = np.random.default_rng(1)
    fmt = format_by_name(name)
    raw = random_blocks(fmt, (24, 512), rng)
    weight = ref.LogicalWeight.from_stored(name, raw, 24, 512)
    np.testing.assert_array_equal(weight.values(), decode(fmt, raw))
    x = ref.quantise_activation(rng.standard_normal((3, 512), np.float32))
    request = ContractionRequest(weight=WeightLayout(source=name), activation="i8", regime="few")
    got = ref.contract(request, weight, x)
    expected = (
        ref.dequantise_activation(x).astype(np.float64) @ weight.values().astype(np.float64).T
    )
    scale = np.abs(ref.dequantise_activation(x)) @ np.abs(weight.values()).T
    assert (np.abs(got - expected) <= 1e-5 * scale).all()


def test_a_gated_contraction_with_bias_and_residual():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((4, 32), np.float32), rng.standard_normal((48, 32), np.float32)
    bias, residual = rng.standard_normal(24, np.float32), rng.standard_normal((4, 24), np.float32)
    epilogue = Epilogue(
        inputs=("column", "full"),
        nodes=(
            node("add", (0, 2), ()),
            node("literal", (), (), value=0.5),
            node("mul", (4, 5), ()),
            node("mul", (6, 1), ()),
            node("add", (7, 3), ()),
        ),
    )
    request = ContractionRequest(
        weight=WeightLayout(source="f32"),
        activation="f32",
        regime="few",
        epilogue=epilogue,
        gated=True,
    )
    got = ref.contract(request, ref.LogicalWeight(w), x, [bias, residual])
    product = x.astype(np.float64) @ w.T.astype(np.float64)
    expected = (product[:, :24] + bias) * 0.5 * product[:, 24:] + residual
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_is_softmax_over_the_paged_keys(window, sinks):
    rng = np.random.default_rng(3)
    heads, kv_heads, dim, block = 4, 2, 8, 4
    key = KvLayout(role="key", num_kv_heads=kv_heads, head_dim=dim, block_size=block, dtype="f32")
    value = KvLayout(
        role="value", num_kv_heads=kv_heads, head_dim=dim, block_size=block, dtype="f32"
    )
    request = AttendRequest(
        num_heads=heads, key=key, value=value, scale=0.3, window=window, softcap=2.0, sinks=sinks,
        alibi=True, split=4,
    )  # fmt: skip
    length = 11
    keys = rng.standard_normal((length, kv_heads, dim), np.float32)
    values = rng.standard_normal((length, kv_heads, dim), np.float32)
    tables = np.array([[5, 2, 7]], np.int32)
    slots = tables[0, np.arange(length) // block] * block + np.arange(length) % block
    pools = tuple(
        rng.standard_normal(ref.kv_pool_shape(layout, 8), np.float32) for layout in (key, value)
    )
    status = np.zeros(length, np.int32)
    ref.kv_write(key, pools[0], keys, slots, status)
    ref.kv_write(value, pools[1], values, slots, status)
    queries = rng.standard_normal((length, heads, dim), np.float32)
    positions, rows = np.arange(length, dtype=np.int32), np.zeros(length, np.int32)
    sink = rng.standard_normal(heads, np.float32) if sinks else None
    slopes = rng.standard_normal(heads, np.float32)
    got = ref.attend(request, queries, pools, positions, rows, tables, sinks=sink, slopes=slopes)

    scores = np.einsum("thd,khd->htk", queries, keys.repeat(2, 1)).astype(np.float64) * 0.3
    scores = 2 * np.tanh(scores / 2)
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    scores += slopes[:, None, None] * distance
    masked = (distance > 0) if window is None else (distance > 0) | (distance <= -window)
    scores = np.where(masked, -np.inf, scores)
    if sink is not None:
        scores = np.concatenate(
            [scores, np.broadcast_to(sink[:, None, None], (heads, length, 1))], -1
        )
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("htk,khd->thd", weights[..., :length], values.repeat(2, 1))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

    work = np.array(
        [[t, 1, k, min(k + 4, length)] for t in range(length) for k in range(0, t + 1, 4)], np.int32
    )
    partials = rng.standard_normal((length, 3, heads, dim + 2), np.float32)
    listed = np.full_like(got, np.nan)
    arrays = (queries, pools, positions, rows, tables)
    ref.attend_partials(request, *arrays, work, partials, listed, sinks=sink, slopes=slopes)
    ref.merge_partials(request, partials, positions, listed, sinks=sink)
    np.testing.assert_array_equal(listed, got)


@pytest.mark.parametrize("window", [None, 3])
def test_attention_that_is_not_causal_is_softmax_over_both_sides(window):
    rng = np.random.default_rng(5)
    heads, dim, block, lengths = 2, 8, 4, np.array([7, 2], np.int32)
    layouts = [
        KvLayout(role=role, num_kv_heads=heads, head_dim=dim, block_size=block, dtype="f32")
        for role in ("key", "value")
    ]
    request = AttendRequest(
        num_heads=heads, key=layouts[0], value=layouts[1], scale=0.3, window=window, split=4,
        causal=False,
    )  # fmt: skip
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    rows = np.repeat(np.arange(2), lengths).astype(np.int32)
    tables = np.array([[1, 3], [2, 0]], np.int32)
    slots = tables[rows, positions // block] * block + positions % block
    pools = tuple(np.full(ref.kv_pool_shape(layout, 4), np.nan, np.float32) for layout in layouts)
    q, k, v = (rng.standard_normal((9, heads, dim), np.float32) for _ in range(3))
    for layout, pool, new in zip(layouts, pools, (k, v), strict=True):
        ref.kv_write(layout, pool, new, slots, np.zeros(9, np.int32))
    arrays = (q, pools, positions, rows, tables)
    got = ref.attend(request, *arrays, lengths=lengths)

    scores = np.einsum("thd,khd->htk", q, k).astype(np.float64) * 0.3
    distance = positions[None, :] - positions[:, None]
    masked = rows[None, :] != rows[:, None]
    if window is not None:
        masked |= abs(distance) >= window
    weights = np.exp(np.where(masked, -np.inf, scores))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(got, np.einsum("htk,khd->thd", weights, v), rtol=1e-5, atol=1e-5)

    ends = np.array([0, 7])
    work = np.array(
        [[ends[row] + t, 1, s, min(s + 4, n)] for row, n in enumerate(lengths)
         for t in range(n) for s in range(0, n, 4)], np.int32,
    )  # fmt: skip
    partials = rng.standard_normal((9, 2, heads, dim + 2), np.float32)
    listed = np.full_like(got, np.nan)
    ref.attend_partials(request, *arrays, work, partials, listed, lengths=lengths)
    ref.merge_partials(request, partials, positions, listed, rows=rows, lengths=lengths)
    np.testing.assert_array_equal(listed, got)


def test_indices_out_of_range_are_clamped_and_flagged():
    rng = np.random.default_rng(4)
    table = rng.standard_normal((6, 3), np.float32)
    status = np.zeros(4, np.int32)
    got = ref.gather(ref.LogicalWeight(table), np.array([2, 9, -1, 0], np.int32), 2.0, status)
    np.testing.assert_array_equal(got, table[[2, 5, 0, 0]] * 2)
    assert status.tolist() == [0, 1, 1, 0]


def test_a_negative_slot_is_skipped_and_one_beyond_is_flagged():
    layout = KvLayout(role="value", num_kv_heads=1, head_dim=2, block_size=2, dtype="bf16")
    pool = np.full(ref.kv_pool_shape(layout, 2), 7, np.float32)
    status = np.zeros(3, np.int32)
    values = np.arange(1, 7, dtype=np.float32).reshape(3, 1, 2)
    ref.kv_write(layout, pool, values, np.array([-1, 3, 4]), status)
    assert pool[1, 0, 1].tolist() == [3, 4]
    assert (np.delete(pool.reshape(4, 2), 3, 0) == 7).all()
    assert status.tolist() == [0, 0, 1]
