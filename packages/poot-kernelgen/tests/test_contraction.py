"""Contractions, packing and gathering on the host against the NumPy reference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from poot_kernel.interpreter import interpret
from poot_kernelgen import (
    ContractionRequest,
    Epilogue,
    GatherRequest,
    PackRequest,
    RowNode,
    WeightLayout,
    packed_bytes,
)
from poot_kernelgen import reference as ref
from poot_quant import FORMATS, format_by_name, random_blocks

_SPEC = importlib.util.spec_from_file_location("host_run", Path(__file__).parent / "host_run.py")
host = importlib.util.module_from_spec(_SPEC)
sys.modules["host_run"] = host
_SPEC.loader.exec_module(host)

NATIVE = host.native_target()
AVX2 = host.avx2_target()
DENSE = ("f32", "f16", "bf16")
REGIMES = ("one", "few", "some", "many")
# Sums of K f32 products in another order than the reference's double: about sqrt(K) roundings of
# 2**-24 relative to the sum of magnitudes; 16 times that is far from any real mistake.
TOLERANCE = 16 * 2.0**-24


def stored(source: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if source in DENSE:
        values = rng.standard_normal((n, k)).astype(np.float32)
        dtype = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[source]
        return np.ascontiguousarray(values.astype(dtype)).view(np.uint8).reshape(n, -1)
    return random_blocks(format_by_name(source), (n, k), rng, scale=0.5)


def pack(source: str, parts: list[np.ndarray], n: int, k: int, target=NATIVE) -> np.ndarray:
    layout = WeightLayout(source=source)
    total = sum(-(-n // 16) * 16 for _ in parts)
    packed = host.aligned((packed_bytes(layout, total, k),), np.uint8)
    for number, part in enumerate(parts):
        arguments = [part, packed, n, k, number, len(parts)]
        host.call(PackRequest(layout=layout), target, arguments)
    return packed


def activation(kind: str, m: int, k: int, seed: int = 1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k)).astype(np.float32)
    x[:, rng.integers(0, k, 3)] *= 8
    if kind == "f32":
        return x, [x], x
    if kind == "bf16":
        rounded = ref.round_to_bf16(x)
        return rounded, [rounded], rounded.view(ml_dtypes.bfloat16).astype(np.float32)
    quantised = ref.quantise_activation(x, outlier=None if kind == "i8" else 4.0)
    arrays = list(quantised[: 3 if kind == "i8" else 5])
    if kind == "u8r":
        arrays = [a.view(np.uint8) ^ 128 if a.dtype == np.int8 else a for a in arrays]
    return quantised, arrays, ref.dequantise_activation(quantised)


def run(request, packed, x_arrays, inputs, m, n, k, target=NATIVE, chunks=2):
    y = np.full((m, n), np.nan, np.float32)
    host.call(request, target, [packed, *x_arrays, *inputs, y, m, n, k, n], chunks=chunks)
    return y


def bound(weight: ref.LogicalWeight, x: np.ndarray) -> np.ndarray:
    """Sum of magnitudes of the products: what rounding errors are relative to."""
    return np.abs(x.astype(np.float64)) @ np.abs(weight.values().astype(np.float64)).T + 1e-30


PACKED = list(FORMATS)
CASES = [(s, a) for s in PACKED for a in ("i8", "f32")] + [
    ("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("bf16", "bf16"),
    *((source, "i8r") for source in ("Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_NL")),
    *((source, "u8r") for source in ("Q5_0", "Q8_0", "Q4_0", "Q6_K", "Q3_K", "Q2_K", "IQ4_NL")),
]  # fmt: skip


def check(source: str, kind: str, regimes, counts, n: int, k: int, target=NATIVE) -> None:
    raw = stored(source, n, k)
    weight = ref.LogicalWeight.from_stored(source, raw, n, k)
    packed = pack(source, [raw], n, k, target)
    x, arrays, values = activation(kind, max(counts), k)
    request = ContractionRequest(weight=WeightLayout(source=source), activation=kind, regime="one")
    expected = ref.contract(request, weight, x)
    limit = TOLERANCE * np.sqrt(k) * bound(weight, values)
    if kind in {"i8", "i8r", "u8r"}:  # offsets are folded into sums of codes: relative to those
        low = np.abs(values) @ np.ones((k, n)) * np.abs(weight.values()).max()
        limit = limit + 2.0**-22 * low
    seen = None
    for regime in regimes:
        request = ContractionRequest(
            weight=WeightLayout(source=source), activation=kind, regime=regime
        )
        for m in counts:
            y = run(request, packed, [a[:m].copy() for a in arrays], [], m, n, k, target)
            assert (np.abs(y - expected[:m]) <= limit[:m]).all(), (
                source, kind, regime, m, float(np.abs(y - expected[:m]).max()),
            )  # fmt: skip
            if seen is None:
                seen = run(request, packed, arrays, [], max(counts), n, k, target)
            assert (y.view(np.uint32) == seen[:m].view(np.uint32)).all(), (source, regime, m)


@pytest.mark.parametrize(("source", "kind"), CASES)
def test_every_format_and_regime(source: str, kind: str) -> None:
    k = 768 if FORMATS.get(source) and FORMATS[source].block_elements == 256 else 832
    check(source, kind, REGIMES, (1, 5, 9), 56, k)


@pytest.mark.parametrize(
    ("source", "kind"),
    [("Q4_1", "i8"), ("Q8_0", "i8"), ("Q6_K", "i8"), ("Q2_K", "i8"), ("IQ4_NL", "i8"),
     ("Q4_K", "f32"), ("f16", "f32"), ("bf16", "bf16")],
)  # fmt: skip
def test_avx2_alone_gives_the_same_sums(source: str, kind: str) -> None:
    k = 256 if FORMATS.get(source) and FORMATS[source].block_elements == 256 else 288
    check(source, kind, ("one", "few", "many"), (1, 6), 40, k, AVX2)


@pytest.mark.parametrize(
    ("source", "kind"),
    [("Q4_K", "i8"), ("Q5_0", "i8r"), ("Q5_0", "u8r"), ("Q6_K", "u8r"), ("Q4_1", "f32")],
)
def test_a_row_has_the_same_bits_among_any_number_of_rows(source: str, kind: str) -> None:
    n, k, most = 48, 1536, 300
    raw = stored(source, n, k)
    packed = pack(source, [raw], n, k)
    _, arrays, _ = activation(kind, most, k)

    def result(m: int, chunks: int) -> np.ndarray:
        regime = "one" if m == 1 else "few" if m <= 8 else "some" if m <= 64 else "many"
        request = ContractionRequest(
            weight=WeightLayout(source=source), activation=kind, regime=regime
        )
        return run(request, packed, [a[:m].copy() for a in arrays], [], m, n, k, chunks=chunks)

    whole = result(most, 3).view(np.uint32)
    for m in [*range(1, 41), 64, 65, 129, 131]:
        assert (result(m, 1 + m % 3).view(np.uint32) == whole[:m]).all(), m


def node(op: str, *operands: int, **attributes: object) -> RowNode:
    return RowNode(
        op=op, operands=operands, shape=(), dtype="f32",
        attributes=tuple(sorted(attributes.items())),
    )  # fmt: skip


SILU = (
    node("neg", 0), node("exp", 2), node("literal", value=1.0), node("add", 3, 4),
    node("div", 0, 5), node("mul", 6, 1),
)  # fmt: skip
# Bias, residual, softcap: 30 * tanh((acc + bias) / 30) + residual.
CAPPED = (
    node("add", 0, 1), node("literal", value=1 / 30), node("mul", 3, 4), node("tanh", 5),
    node("literal", value=30.0), node("mul", 6, 7), node("add", 8, 2),
)  # fmt: skip


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("source", "kind"), [("Q4_1", "i8"), ("bf16", "f32")])
def test_gated_halves_are_combined(source: str, kind: str, regime: str) -> None:
    m, n, k = 7, 40, 256
    halves = [stored(source, n, k, seed) for seed in (3, 4)]
    weight = ref.stack_weights([ref.LogicalWeight.from_stored(source, h, n, k) for h in halves])
    packed = pack(source, halves, n, k)
    x, arrays, _ = activation(kind, m, k)
    request = ContractionRequest(
        weight=WeightLayout(source=source), activation=kind, regime=regime,
        epilogue=Epilogue(nodes=SILU), gated=True,
    )  # fmt: skip
    expected = ref.contract(request, weight, x)
    y = run(request, packed, arrays, [], m, n, k)
    # exp is good to 2 ulp; the rest rounds a few times.
    np.testing.assert_allclose(y, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("regime", REGIMES)
def test_epilogue_reads_columns_and_rows(regime: str) -> None:
    m, n, k = 11, 21, 128
    rng = np.random.default_rng(5)
    raw = stored("Q8_0", n, k)
    packed = pack("Q8_0", [raw], n, k)
    bias = rng.standard_normal(n).astype(np.float32)
    residual = rng.standard_normal((m, n)).astype(np.float32)
    x, arrays, _ = activation("i8", m, k)
    request = ContractionRequest(
        weight=WeightLayout(source="Q8_0"), activation="i8", regime=regime,
        epilogue=Epilogue(inputs=("column", "full"), nodes=CAPPED),
    )  # fmt: skip
    weight = ref.LogicalWeight.from_stored("Q8_0", raw, n, k)
    expected = ref.contract(request, weight, x, [bias, residual])
    y = run(request, packed, arrays, [bias, residual], m, n, k)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("source", [*FORMATS, *DENSE])
def test_gather_reads_exact_rows(source: str) -> None:
    n, k = 37, 256
    raw = stored(source, n, k)
    packed = pack(source, [raw], n, k)
    weight = ref.LogicalWeight.from_stored(source, raw, n, k)
    ids = np.array([0, 36, 5, 40, -1, 17], np.int32)
    status, expected_status = np.zeros(6, np.int32), np.zeros(6, np.int32)
    y = np.zeros((6, k), np.float32)
    scale = np.float32(1.5)
    request = GatherRequest(layout=WeightLayout(source=source))
    host.call(request, NATIVE, [packed, ids, y, 6, n, k, scale, status])
    expected = ref.gather(weight, ids, float(scale), expected_status)
    assert (y == expected).all()
    assert (status == expected_status).all()


@pytest.mark.parametrize(("source", "kind"), [("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")])
def test_dense_sums_of_any_even_length(source: str, kind: str) -> None:
    check(source, kind, ("one", "some", "many"), (1, 3), 20, 46)


@pytest.mark.parametrize("regime", ["few", "many"])
@pytest.mark.parametrize(("source", "kind"), [("Q4_1", "i8r"), ("Q6_K", "i8"), ("IQ3_S", "f32")])
def test_the_interpreter_agrees_and_finds_no_fault(source: str, kind: str, regime: str) -> None:
    m, n, k = 5, 20, 256
    raw = stored(source, n, k)
    layout = WeightLayout(source=source)
    packed, seen = (np.zeros(packed_bytes(layout, n, k), np.uint8) for _ in range(2))
    numbers = [n, k, 0, 1]
    packer, _ = host.kernel_of(PackRequest(layout=layout), NATIVE)
    interpret(packer.function, [raw, seen, *numbers])
    host.call(PackRequest(layout=layout), NATIVE, [raw, packed, *numbers])
    assert (packed == seen).all()
    _, arrays, _ = activation(kind, m, k)
    request = ContractionRequest(weight=layout, activation=kind, regime=regime)
    kernel, _ = host.kernel_of(request, NATIVE)
    y, expected = (np.zeros((m, n), np.float32) for _ in range(2))
    interpret(kernel.function, [packed, *arrays, expected, m, n, k, n])
    host.call(request, NATIVE, [packed, *arrays, y, m, n, k, n])
    assert (y.view(np.uint32) == expected.view(np.uint32)).all()
