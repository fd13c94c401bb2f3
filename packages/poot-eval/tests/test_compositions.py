"""Compositions against formulas written out in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from poot_core import T, bf16, f16, f32, i32
from poot_eval import evaluate
from poot_graph_ir import Builder, ops
from poot_quant import decode, encode, format_by_name

RNG = np.random.default_rng(5)
X = RNG.standard_normal((5, 3, 8)).astype(np.float32) * 2
W = RNG.standard_normal(8).astype(np.float32)
BIAS = RNG.standard_normal(8).astype(np.float32)
X64 = X.astype(np.float64)


def run(function, *weights: np.ndarray, x: np.ndarray = X) -> np.ndarray:
    b = Builder("t")
    consts = []
    for i, weight in enumerate(weights):
        dtype = {np.dtype(np.float32): f32, np.dtype(ml_dtypes.bfloat16): bf16}[weight.dtype]
        consts.append(b.const(f"w{i}", weight.shape, dtype))
    b.output("y", function(b.slot("x", (T, *x.shape[1:]), f32), *consts))
    named = {f"w{i}": w for i, w in enumerate(weights)}
    return evaluate(b.finish(), {"x": x}, named.__getitem__, check=True).outputs["y"]


def close(got: np.ndarray, expected: np.ndarray, tolerance: float = 2e-6) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset: float) -> None:
    expected = X64 / np.sqrt((X64**2).mean(-1, keepdims=True) + 1e-5) * (W + offset)
    close(run(lambda x, w: ops.rms_norm(x, w, 1e-5, offset), W), expected)


def test_norms_without_weights() -> None:
    close(
        run(lambda x: ops.rms_norm(x, None, 1e-5)),
        X64 / np.sqrt((X64**2).mean(-1, keepdims=True) + 1e-5),
    )
    close(
        run(lambda x: ops.l2_norm(x, 1e-6)), X64 / np.sqrt((X64**2).sum(-1, keepdims=True) + 1e-6)
    )


def test_layer_norm() -> None:
    centred = X64 - X64.mean(-1, keepdims=True)
    normal = centred / np.sqrt(X64.var(-1, keepdims=True) + 1e-5)
    close(run(lambda x, w, b: ops.layer_norm(x, w, b, 1e-5), W, BIAS), normal * W + BIAS)
    close(run(lambda x: ops.layer_norm(x, None, None, 1e-5)), normal)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (ops.sigmoid, 1 / (1 + np.exp(-X64))),
        (ops.silu, X64 / (1 + np.exp(-X64))),
        (ops.relu, np.maximum(X64, 0)),
        (ops.gelu, X64 * 0.5 * (1 + np.vectorize(math.erf)(X64 / math.sqrt(2)))),
        (
            ops.gelu_tanh,
            X64 * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (X64 + 0.044715 * X64**3))),
        ),
        (lambda x: ops.softcap(x, 3.0), 3 * np.tanh(X64 / 3)),
        (lambda x: ops.swiglu(x, x), X64**2 / (1 + np.exp(-X64))),
        (ops.softmax, np.exp(X64) / np.exp(X64).sum(-1, keepdims=True)),
        (lambda x: ops.merge_heads(ops.split_heads(x, 2)), X64),
    ],
    ids=["sigmoid", "silu", "relu", "gelu", "gelu_tanh", "softcap", "swiglu", "softmax", "heads"],
)
def test_activations(function, expected) -> None:
    close(run(function), expected)


def test_silu_of_large_magnitudes_is_finite() -> None:
    x = np.array([[-1000.0, -90.0, 90.0, 1000.0]], np.float32)
    assert run(ops.silu, x=x).tolist() == [[-0.0, pytest.approx(0, abs=1e-30), 90.0, 1000.0]]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", [4, 8])
def test_rope_turns_each_pair_by_its_angle(interleaved: bool, rotary: int) -> None:
    inverse = 100.0 ** (-np.arange(rotary // 2) / (rotary // 2))
    positions = np.array([0, 1, 7, 100, 2000], np.int32)
    b = Builder("t")
    tables = ops.rope_tables(b.slot("positions", (T,), i32), inverse, attention_factor=1.25)
    b.output("y", ops.apply_rope(b.slot("x", (T, 3, 8), f32), tables, interleaved=interleaved))
    inputs = {"x": X, "positions": positions}
    got = evaluate(b.finish(), inputs, lambda name: X, check=True).outputs["y"]
    expected = X64.copy()
    # Angles in f32, as the definition has it.
    angles = positions.astype(np.float32)[:, None] * inverse.astype(np.float32)
    for pair in range(rotary // 2):
        i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotary // 2)
        turn = 1.25 * np.exp(1j * angles[:, pair].astype(np.float64))[:, None]
        turned = (X64[..., i] + 1j * X64[..., j]) * turn
        expected[..., i], expected[..., j] = turned.real, turned.imag
    close(got, expected, 2e-5)


def test_linear_with_dense_weights_and_bias() -> None:
    weight = RNG.standard_normal((4, 8)).astype(ml_dtypes.bfloat16)
    bias = RNG.standard_normal(4).astype(np.float32)
    expected = X64 @ weight.astype(np.float64).T
    close(run(ops.linear, weight), expected, 1e-5)
    close(run(ops.linear, weight, bias), expected + bias, 1e-5)


def test_linear_and_embedding_share_a_packed_table() -> None:
    packed = format_by_name("Q8_0")
    dense = RNG.standard_normal((6, 64)).astype(np.float32)
    raw = encode(packed, dense)
    b = Builder("t")
    table = b.const("table", (6, 64), packed)
    ids = b.slot("ids", (T,), i32)
    b.output("logits", ops.linear(ops.embedding(table, ids), table))
    graph = b.finish()
    assert [e.op for e in graph] == ["gather", "dequantize", "dequantize", "dot_general"]
    got = evaluate(graph, {"ids": np.array([5, 0], np.int32)}, lambda name: raw.ravel())
    values = decode(packed, raw).astype(np.float64)
    close(got.outputs["logits"], values[[5, 0]] @ values.T, 1e-5)


def test_alibi_slopes_of_any_number_of_heads() -> None:
    assert ops.alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    # Twelve heads (the paper's appendix): eight as above, then every other of sixteen.
    assert ops.alibi_slopes(12)[8:].tolist() == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_f16_norm_weights_are_widened() -> None:
    b = Builder("t")
    w = b.const("w", (8,), f16)
    b.output("y", ops.rms_norm(b.slot("x", (T, 3, 8), f32), w, 1e-5))
    half = W.astype(np.float16)
    got = evaluate(b.finish(), {"x": X}, lambda name: half).outputs["y"]
    normal = X64 / np.sqrt((X64**2).mean(-1, keepdims=True) + 1e-5)
    close(got, normal * half.astype(np.float64))
