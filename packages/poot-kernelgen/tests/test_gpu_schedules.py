"""GPU schedules in the interpreter against the NumPy reference: contractions, rows, argmax."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from poot_kernelgen import (
    ArgmaxRequest,
    ContractionRequest,
    Epilogue,
    GatherRequest,
    KvLayout,
    PackRequest,
    RowInput,
    RowNode,
    RowOutput,
    RowProgram,
    WeightLayout,
    pack_table,
    packed_bytes,
)
from poot_kernelgen import reference as ref
from poot_quant import FORMATS, format_by_name, random_blocks

Launch = Callable[..., None]
DENSE = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# Sums of K f32 products in another order than the reference's double: as on the host.
TOLERANCE = 16 * 2.0**-24


def stored(source: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if source in DENSE:
        values = rng.standard_normal((n, k)).astype(np.float32).astype(DENSE[source])
        return np.ascontiguousarray(values).view(np.uint8).reshape(n, -1)
    return random_blocks(format_by_name(source), (n, k), rng, scale=0.5)


def pack(gpu: Launch, source: str, parts: list[np.ndarray], n: int, k: int) -> np.ndarray:
    """Return the packed matrix; two parts alternate by 16 rows. Its addresses are aligned."""
    layout = WeightLayout(source=source, order="rows")
    rows = len(parts) * -(-n // 16) * 16
    packed = np.zeros(packed_bytes(layout, rows, k), np.uint8)
    table = pack_table(layout)
    tables = [] if table is None else [table]
    for number, part in enumerate(parts):
        given = part.view({"f32": np.uint32}.get(source, np.uint16)) if source in DENSE else part
        gpu(PackRequest(layout=layout), [given, *tables, packed, n, k, number, len(parts)])
    return packed


def activation(kind: str, m: int, k: int) -> tuple[Any, list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((m, k)).astype(np.float32)
    x[:, rng.integers(0, k, 3)] *= 8
    if kind == "f32":
        return x, [x], x
    found = ref.quantise_activation(x, outlier=4.0 if kind == "i8r" else None)
    arrays = list(found[: 5 if kind == "i8r" else 3])
    # Codes are arguments of bytes.
    arrays = [a.view(np.uint8).reshape(-1) if a.dtype == np.int8 else a for a in arrays]
    return found, arrays, ref.dequantise_activation(found)


def rows_of(arrays: list[np.ndarray], m: int, k: int) -> list[np.ndarray]:
    return [a[: m * k].copy() if a.dtype == np.uint8 else a[:m].copy() for a in arrays]


def multiply(
    gpu: Launch, request: ContractionRequest, packed: np.ndarray, arrays: list[np.ndarray],
    inputs: list[np.ndarray], shape: tuple[int, int, int],
) -> np.ndarray:  # fmt: skip
    m, n, k = shape
    y = np.full((m, n), np.nan, np.float32)
    gpu(request, [packed, *arrays, *inputs, y, m, n, k, n])
    return y


# One of each kind of layout: bits of codes, tables, kinds of scales, groups, offsets.
SOURCES = (
    "f32", "bf16", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "MXFP4", "NVFP4", "TQ1_0",
    "IQ1_M",
)  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_products_match_and_a_row_has_the_same_bits_in_every_regime(
    gpu: Launch, source: str
) -> None:
    n, k, most = 18, 256, 5
    raw = stored(source, n, k)
    weight = ref.LogicalWeight.from_stored(source, raw, n, k)
    packed = pack(gpu, source, [raw], n, k)
    kinds = ("f32",) if source in DENSE else ("f32", "i8r")
    for kind in kinds:
        x, arrays, values = activation(kind, most, k)
        layout = WeightLayout(source=source, order="rows")
        request = ContractionRequest(weight=layout, activation=kind, regime="many")
        whole = multiply(gpu, request, packed, arrays, [], (most, n, k))
        expected = ref.contract(request, weight, x)
        magnitude = np.abs(values.astype(np.float64)) @ np.abs(weight.values()).T.astype(np.float64)
        limit = TOLERANCE * np.sqrt(k) * magnitude
        if kind == "i8r":  # offsets are folded into sums of codes: relative to those
            limit += 2.0**-22 * np.abs(values).sum(1)[:, None] * np.abs(weight.values()).max()
        assert (np.abs(whole - expected) <= limit).all(), (kind, np.abs(whole - expected).max())
        for m, regime in ((1, "one"), (3, "few")):
            part = multiply(
                gpu, replace(request, regime=regime), packed, rows_of(arrays, m, k), [], (m, n, k)
            )
            np.testing.assert_array_equal(part.view(np.uint32), whole[:m].view(np.uint32))


@pytest.mark.parametrize(("source", "k"), [("f32", 75), ("bf16", 77), ("f16", 300)])
def test_dense_rows_of_any_length(gpu: Launch, source: str, k: int) -> None:
    n, m = 18, 3
    raw = stored(source, n, k)
    packed = pack(gpu, source, [raw], n, k)
    x, arrays, _ = activation("f32", m, k)
    layout = WeightLayout(source=source, order="rows")
    request = ContractionRequest(weight=layout, activation="f32", regime="few")
    y = multiply(gpu, request, packed, arrays, [], (m, n, k))
    weight = ref.LogicalWeight.from_stored(source, raw, n, k)
    np.testing.assert_allclose(y, ref.contract(request, weight, x), rtol=1e-4, atol=1e-4)


def node(op: str, *operands: int, **attributes: object) -> RowNode:
    return RowNode(
        op=op, operands=operands, shape=(), dtype="f32", attributes=tuple(attributes.items())
    )


@pytest.mark.parametrize("regime", ["one", "some"])
def test_gated_halves_columns_and_rows_meet_in_the_epilogue(gpu: Launch, regime: str) -> None:
    m, n, k = (1 if regime == "one" else 7), 40, 64
    halves = [stored("bf16", n, k, seed) for seed in (3, 4)]
    weight = ref.stack_weights([ref.LogicalWeight.from_stored("bf16", h, n, k) for h in halves])
    packed = pack(gpu, "bf16", halves, n, k)
    rng = np.random.default_rng(5)
    bias = rng.standard_normal(n).astype(np.float32)
    residual = rng.standard_normal((m, n)).astype(np.float32)
    x, arrays, _ = activation("f32", m, k)
    nodes = (node("tanh", 0), node("mul", 4, 1), node("add", 5, 2), node("add", 6, 3))
    request = ContractionRequest(
        weight=WeightLayout(source="bf16", order="rows"), activation="f32", regime=regime,
        epilogue=Epilogue(inputs=("column", "full"), nodes=nodes), gated=True,
    )  # fmt: skip
    y = multiply(gpu, request, packed, arrays, [bias, residual], (m, n, k))
    expected = ref.contract(request, weight, x, [bias, residual])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("source", ["f16", "Q4_K", "Q8_0", "IQ2_S", "MXFP4"])
def test_gather_reads_exact_rows(gpu: Launch, source: str) -> None:
    n, k = 37, 256
    raw = stored(source, n, k)
    packed = pack(gpu, source, [raw], n, k)
    weight = ref.LogicalWeight.from_stored(source, raw, n, k)
    ids = np.array([0, 36, 40, -1, 17], np.int32)
    status, expected_status = np.zeros(5, np.int32), np.zeros(5, np.int32)
    y = np.zeros((5, k), np.float32)
    request = GatherRequest(layout=WeightLayout(source=source, order="rows"))
    gpu(request, [packed, ids, y, 5, n, k, 1.5, status])
    expected = ref.gather(weight, ids, 1.5, expected_status)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(status, expected_status)


def test_a_row_program_normalises_rounds_and_writes_keys(gpu: Launch) -> None:
    """y = x * rsqrt(mean(x * x)): stored whole, in 8 bits with what is lost, and as keys."""
    width, rows, slots = 96, 5, 8
    layout = KvLayout(role="key", num_kv_heads=2, head_dim=48, block_size=4, dtype="f16")
    shape = (width,)

    def full(op: str, *operands: int, size: tuple[int, ...] = shape, **attributes: object):
        return RowNode(
            op=op, operands=operands, shape=size, dtype="f32", attributes=tuple(attributes.items())
        )

    nodes = (
        full("mul", 0, 0), full("reduce_sum", 2, size=(), axes=(0,)),
        full("literal", size=(), value=1 / width), full("mul", 3, 4, size=()),
        full("rsqrt", 5, size=()), full("broadcast", 6, dimensions=()), full("mul", 0, 7),
    )  # fmt: skip
    program = RowProgram(
        inputs=(RowInput(dtype="f32", shape=shape), RowInput(dtype="i32", shape=())),
        nodes=nodes,
        outputs=(
            RowOutput(value=8),
            RowOutput(value=8, kind="i8r", outlier=3.0),
            RowOutput(value=8, kind="kv", slot_input=1, layout=layout),
        ),
    )
    rng = np.random.default_rng(2)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    x[:, 7] *= 20
    wanted = np.array([3, 0, -1, 9, 6], np.int32)  # -1 is skipped, 9 is out of range
    pools = [np.full(ref.kv_pool_shape(layout, 2), 7, np.float16) for _ in range(2)]
    y = np.zeros((rows, width), np.float32)
    codes = np.zeros((2, rows, width), np.int8)
    scales = np.zeros((3, rows, 3), np.float32)
    status = np.zeros(rows, np.int32)
    gpu(program, [
        x, wanted, y, codes[0], scales[0], scales[1], codes[1], scales[2], pools[0].reshape(-1),
        slots, rows, status,
    ])  # fmt: skip
    expected = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, 1, keepdims=True))
    np.testing.assert_allclose(y, expected, rtol=3e-6)
    rounded = ref.quantise_activation(y, outlier=3.0)
    for got, want in zip((codes[0], scales[0], codes[1], scales[2]),
                         (rounded[0], rounded[1], rounded[3], rounded[4]), strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(scales[1], rounded[2], rtol=1e-5, atol=1e-6)
    for row, slot in enumerate(wanted):
        if 0 <= slot < slots:
            pools[1][slot // 4, :, :, slot % 4] = y[row].reshape(2, 48).astype(np.float16)
    np.testing.assert_array_equal(pools[0], pools[1])
    np.testing.assert_array_equal(status, [0, 0, 0, 1, 0])


def test_argmax_takes_the_lowest_of_equal_ids(gpu: Launch) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((3, 300)).astype(np.float32)
    logits[1, [40, 200]] = 9.0
    request = ArgmaxRequest(chunk=128)
    values, ids = np.zeros((3, 3), np.float32), np.zeros((3, 3), np.int32)
    found = np.zeros(3, np.int32)
    gpu(request, [logits, values, ids, 3, 300], "partial")
    gpu(request, [values, ids, found, 3, 3], "final")
    np.testing.assert_array_equal(found, logits.argmax(1))


def test_every_format_has_a_layout_of_rows() -> None:
    for source in (*DENSE, *FORMATS):
        layout = WeightLayout(source=source, order="rows")
        assert packed_bytes(layout, 20, 512) % 16 == 0
