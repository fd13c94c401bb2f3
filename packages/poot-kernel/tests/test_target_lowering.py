"""The GPU lowering run on NumPy with each vendor's matrix instructions, against float64."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from poot_core import u32
from poot_kernel import IRBuilder, Size
from poot_kernel.targets.amdgcn.atoms import architecture
from poot_kernel.targets.common.eager import run_eagerly
from poot_kernel.targets.common.products import dot_atoms
from poot_kernel.targets.common.promises import Promises
from poot_kernel.targets.nvptx.atoms import ATOMS


def _kernels():
    path = Path(__file__).with_name("gpu_kernels.py")
    spec = importlib.util.spec_from_file_location("gpu_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KERNELS = _kernels()
BF16 = ml_dtypes.bfloat16
MACHINES = {
    "nvidia": {"atoms": ATOMS},
    "gfx11": {"atoms": architecture("gfx1100").atoms, "has_async_copy": False},
    "gfx9": {
        "atoms": architecture("gfx942").atoms,
        "has_async_copy": False,
        "subgroup_size": 64,
    },
}
machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def relative(found, wanted):
    return np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(BF16)


@machines
@pytest.mark.parametrize(
    ("shape", "multiples"),
    [((40, 72, 56), {}), ((64, 32, 96), {"M": 32, "N": 32, "K": 32, "a": 16, "b": 16, "c": 16})],
    ids=["edges", "whole"],
)
def test_product(machine, shape, multiples):
    rng = np.random.default_rng(1)
    m, n, k = shape
    a, b, c = normal(rng, m, k), normal(rng, n, k), np.full((m, n), np.nan, np.float32)
    kernel = KERNELS.product.specialise(TM=32, TN=32, TK=32, STAGES=3)
    run_eagerly(kernel, m, n, k, a, b, c, multiples=multiples, **machine)
    # f32 sums of exact products: a few roundings of 2**-24 each.
    assert relative(c, a.astype(np.float64) @ b.astype(np.float64).T) < 1e-6


@machines
def test_attention_with_rows_that_reduce(machine):
    rng = np.random.default_rng(2)
    length = 72
    q, k, v = (normal(rng, length, 32) for _ in range(3))
    out = np.full((length, 32), np.nan).astype(BF16)
    run_eagerly(KERNELS.attention.specialise(), length, q, k, v, out, **machine)
    scores = q.astype(np.float64) @ k.astype(np.float64).T
    scores[np.triu_indices(length, 1)] = -np.inf
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    # Weights and results are rounded to bf16: 2**-9 relative each.
    assert relative(out, wanted) < 4e-3


@machines
def test_packed_bytes_are_exact(machine):
    rng = np.random.default_rng(3)
    n, k = 32, 128
    w = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    x = rng.integers(-128, 128, (1, k), dtype=np.int8)
    y = np.full((1, n), np.nan, np.float32)
    run_eagerly(
        KERNELS.nibbles.specialise(), n, k, w, x, y, multiples={"N": 16, "K": 64}, **machine
    )
    halves = w.reshape(n, k // 64, 32).astype(np.int64)
    values = np.concatenate([halves & 15, halves >> 4], -1).reshape(n, k)
    np.testing.assert_array_equal(y, (x.astype(np.int64) @ values.T).astype(np.float32))


def test_bytes_without_matrix_instructions_are_exact():
    rng = np.random.default_rng(4)
    w = rng.integers(0, 256, (16, 32), dtype=np.uint8)
    x = rng.integers(-128, 128, (1, 64), dtype=np.int8)
    y = np.full((1, 16), np.nan, np.float32)
    run_eagerly(KERNELS.nibbles.specialise(), 16, 64, w, x, y, atoms=dot_atoms(32))
    values = np.concatenate([w & 15, w >> 4], -1).astype(np.int64)
    np.testing.assert_array_equal(y, (x.astype(np.int64) @ values.T).astype(np.float32))


def test_lane_level_deals_indices_and_reduces():
    b = IRBuilder("fold", level="lane", grid=["G"], workgroup_size=64)
    b.scalar("G")
    count = b.scalar("C")
    source, target = b.array("x", u32, ["(G * C)"]), b.array("y", u32, ["G"], access="w")
    start = b.mul(b.workgroup_id(), count)
    with b.foreach(start, b.add(start, count), [b.constant(0, u32)]) as loop:
        loop.yield_(b.xor(loop.carried[0], b.load(source, loop.index)))
    b.store(target, b.workgroup_id(), b.workgroup_reduce(loop.result, "xor"))
    x = np.random.default_rng(5).integers(0, 2**32, (3, 100), dtype=np.uint32)
    y = np.zeros(3, np.uint32)
    run_eagerly(b.finish(), 3, 100, x, y, atoms=())
    np.testing.assert_array_equal(y, np.bitwise_xor.reduce(x, 1))


def test_an_address_outside_of_the_arguments_is_an_error():
    rng = np.random.default_rng(6)
    a, b = normal(rng, 30, 32), normal(rng, 32, 32)
    c = np.zeros((30, 32), np.float32)
    kernel = KERNELS.product.specialise(TM=32, TN=32, TK=32, STAGES=2)
    with pytest.raises(IndexError, match="outside"):  # 30 rows are no multiple of 32
        run_eagerly(kernel, 30, 32, 32, a, b, c, multiples={"M": 32}, atoms=ATOMS)


def test_promises_follow_the_kernels_arithmetic():
    b = IRBuilder("sizes", level="lane", grid=[1])
    n = b.scalar("N")
    k = b.scalar("K")
    row = b.mul(b.floordiv(k, 256), 144)
    base = b.add(b.mul(b.mul(b.workgroup_id(), 16), row), 64)
    kernel = b.finish()
    known = Promises(kernel, {"N": 48, "K": 512})
    assert known.of(row) == 288
    assert known.of(base) == 64  # gcd(16 * 288, 64)
    assert known.of(n) == 48
    assert known.of_size(Size.parse("K // 32 * N")) == 16 * 48
    assert Promises(kernel, {}).of(row) == 144
    assert Promises(kernel, {}).of_size(Size.parse("K // 32")) == 1
