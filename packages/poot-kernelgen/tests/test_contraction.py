"""Contractions, packing and gathering on the host against the NumPy reference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

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
    quantised = ref.quantise_activation(x)
    return quantised, list(quantised), ref.dequantise_activation(quantised)


def run(request, packed, x_arrays, inputs, m, n, k, target=NATIVE, chunks=2):
    y = np.full((m, n), np.nan, np.float32)
    host.call(request, target, [packed, *x_arrays, *inputs, y, m, n, k, n], chunks=chunks)
    return y


def bound(weight: ref.LogicalWeight, x: np.ndarray) -> np.ndarray:
    """Sum of magnitudes of the products: what rounding errors are relative to."""
    return np.abs(x.astype(np.float64)) @ np.abs(weight.values().astype(np.float64)).T + 1e-30


PACKED = [name for name in FORMATS if not name.startswith(("IQ1", "IQ2", "IQ3"))]
CASES = [(s, a) for s in PACKED for a in ("i8", "f32")] + [
    ("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("bf16", "bf16"),
]  # fmt: skip


def check(source: str, kind: str, regimes, counts, n: int, k: int, target=NATIVE) -> None:
    raw = stored(source, n, k)
    weight = ref.LogicalWeight.from_stored(source, raw, n, k)
    packed = pack(source, [raw], n, k, target)
    x, arrays, values = activation(kind, max(counts), k)
    request = ContractionRequest(
        weight=WeightLayout(source=source), activation=kind, regime="one"
    )
    expected = ref.contract(request, weight, x)
    limit = TOLERANCE * np.sqrt(k) * bound(weight, values)
    if kind == "i8":  # offsets are folded into sums of codes: relative to those
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
