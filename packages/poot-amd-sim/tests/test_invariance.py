"""A row's result has the same bits in any batch, whatever kernel its number of rows takes."""

import numpy as np
import pytest

from poot_core import DeviceCaps, Target, bf16
from poot_kernel.targets.amdgcn import target_features, wave_size
from poot_kernelgen import ContractionRequest, WeightLayout, generate

RNG = np.random.default_rng(9)
pytestmark = pytest.mark.sim
REGIMES = {"one": [1], "few": [2, 7], "some": [9, 33], "many": [65, 150]}
N, K = 48, 1088  # one chunk of 1024 and a piece


def halves(*shape):
    return RNG.standard_normal(shape).astype(bf16.numpy)


def kernel_of(regime, activation, arch):
    request = ContractionRequest(
        weight=WeightLayout(source="bf16", order="rows"), activation=activation, regime=regime
    )
    caps = DeviceCaps(
        name="", vector_bytes=16, subgroup_size=wave_size(arch), num_workers=4,
        shared_bytes=65536, memory_bytes=1 << 30, max_workgroup=1024,
    )  # fmt: skip
    (found,) = generate(request, Target("rocm", arch, target_features(arch)), caps)
    return found.function


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201", "gfx942"])
def test_matrix_products(run, arch):
    weight, x = halves(N, K), halves(150, K)
    bits = {}
    for regime, counts in REGIMES.items():
        kernel = kernel_of(regime, "bf16", arch)
        assert kernel.level == "tile"
        program, threads = run.program(kernel, arch)
        assert program.places("v_(wmma|mfma)")
        for count in counts:
            y = np.full((count, N), np.nan, np.float32)
            arguments = [weight, x[:count], y, count, N, K, N]
            run(kernel, arguments, arch, program=program, threads=threads)
            bits[count] = y
    expected = x.astype("f8") @ weight.astype("f8").T
    np.testing.assert_allclose(bits[150], expected, rtol=0, atol=1e-4)
    for count, found in bits.items():
        np.testing.assert_array_equal(found, bits[150][:count], err_msg=f"{count} rows")


@pytest.mark.parametrize("arch", ["gfx1030", "gfx1100", "gfx942"])
def test_products_by_lanes(run, arch):
    weight, x = halves(N, K), RNG.standard_normal((33, K)).astype(np.float32)
    bits = {}
    for regime, counts in REGIMES.items():
        kernel = kernel_of(regime, "f32", arch)
        program, threads = run.program(kernel, arch)
        for count in counts:
            if count <= len(x):
                y = np.full((count, N), np.nan, np.float32)
                arguments = [weight, x[:count], y, count, N, K, N]
                run(kernel, arguments, arch, program=program, threads=threads)
                bits[count] = y
    expected = x.astype("f8") @ weight.astype("f8").T
    np.testing.assert_allclose(bits[33], expected, rtol=0, atol=1e-4)
    for count, found in bits.items():
        np.testing.assert_array_equal(found, bits[33][:count], err_msg=f"{count} rows")
