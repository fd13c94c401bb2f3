"""Tile kernels with matrix instructions through LLVM and the simulator, against NumPy."""

import numpy as np
import pytest

from poot_amd_sim import WAVE_ORDERS
from poot_core import bf16

RNG = np.random.default_rng(5)
pytestmark = pytest.mark.sim
archs = pytest.mark.parametrize("arch", ["gfx1100", "gfx1151", "gfx1201", "gfx90a", "gfx942"])
WHOLE = {"K": 32, "a": 16, "b": 16, "c": 16, "q": 16, "k": 16, "v": 16, "out": 16, "w": 16, "x": 16,
         "y": 16}  # fmt: skip


def halves(*shape):
    return RNG.standard_normal(shape).astype(bf16.numpy)


def product_arguments(m, n, k):
    return [m, n, k, halves(m, k), halves(n, k), np.full((m, n), np.nan, np.float32)]


def expected_product(arguments):
    return arguments[3].astype("f8") @ arguments[4].astype("f8").T


def attention_arguments(length):
    return [length, *(halves(length, 32) for _ in range(4))]


def expected_attention(arguments):
    q, k, v = (x.astype("f8") for x in arguments[1:4])
    scores = q @ k.T
    scores[np.triu_indices(len(q), 1)] = -np.inf
    weight = np.exp2(scores - scores.max(1, keepdims=True))
    return weight / weight.sum(1, keepdims=True) @ v


@archs
@pytest.mark.parametrize("order", WAVE_ORDERS)
def test_product_with_edges(run, gpu_kernels, arch, order):
    kernel = gpu_kernels.product.specialise(TM=32, TN=32, TK=32, STAGES=2)
    arguments = product_arguments(40, 50, 72)
    run(kernel, arguments, arch, order=order, threads=128)
    np.testing.assert_allclose(arguments[5], expected_product(arguments), atol=2e-5)


@archs
def test_product_of_whole_tiles(run, gpu_kernels, arch):
    kernel = gpu_kernels.product.specialise(TM=64, TN=64, TK=32, STAGES=2)
    arguments = product_arguments(128, 64, 96)
    run(kernel, arguments, arch, multiples={**WHOLE, "M": 64, "N": 64})
    np.testing.assert_allclose(arguments[5], expected_product(arguments), atol=2e-5)


@archs
@pytest.mark.parametrize("order", ["lockstep", "random"])
def test_attention(run, gpu_kernels, arch, order):
    arguments = attention_arguments(64)
    run(
        gpu_kernels.attention.specialise(),
        arguments,
        arch,
        multiples={**WHOLE, "S": 32},
        order=order,
    )
    # Weights and results are rounded to bf16.
    found = arguments[4].astype("f8")
    np.testing.assert_allclose(found, expected_attention(arguments), atol=2e-2)


@archs
def test_packed_nibbles_are_exact(run, gpu_kernels, arch):
    n, k = 32, 128
    w = RNG.integers(0, 256, (n, k // 2)).astype(np.uint8)
    x = RNG.integers(-128, 128, (1, k)).astype(np.int8)
    y = np.full((1, n), np.nan, np.float32)
    run(
        gpu_kernels.nibbles.specialise(),
        [n, k, w, x, y],
        arch,
        multiples={**WHOLE, "N": 16, "K": 64},
    )
    groups = w.reshape(n, -1, 32)
    values = np.concatenate([groups & 15, groups >> 4], axis=2).reshape(n, k)
    np.testing.assert_array_equal(y, x.astype("i8") @ values.T.astype("i8"))


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_barriers_of_a_pipeline_are_needed(run, gpu_kernels, arch):
    """Without the barrier before or the one after the tiles are filled, results change."""
    kernel = gpu_kernels.product.specialise(TM=32, TN=64, TK=32, STAGES=2)
    program, threads = run.program(kernel, arch, 128, {**WHOLE, "M": 32, "N": 64})
    assert threads // program.wave_size > 1
    arguments = product_arguments(32, 64, 96)
    wanted = expected_product(arguments)

    def is_right(candidate):
        for order in WAVE_ORDERS:
            arguments[5][:] = np.nan
            run(kernel, arguments, arch, program=candidate, threads=threads, order=order)
            if not np.allclose(arguments[5], wanted, atol=2e-5):
                return False
        return True

    assert is_right(program)
    places = program.places("s_barrier")
    assert sum(not is_right(program.without(place)) for place in places) >= 2


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201", "gfx942"])
def test_rows_have_the_same_bits_in_any_batch(run, gpu_kernels, arch):
    kernel = gpu_kernels.product.specialise(TM=32, TN=32, TK=32, STAGES=2, SIGNATURE="k16")
    full = product_arguments(40, 32, 64)
    run(kernel, full, arch)
    for rows in (1, 7, 33):
        part = [rows, 32, 64, full[3][:rows], full[4], np.full((rows, 32), np.nan, np.float32)]
        run(kernel, part, arch)
        np.testing.assert_array_equal(part[5], full[5][:rows])
