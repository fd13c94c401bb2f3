"""The proof kernels in the interpreter, against NumPy in f64 and poot-quant's decoder."""

import ml_dtypes
import numpy as np
import pytest

from poot_kernel import interleaved, parse_kernel, print_kernel, structurally_equal
from poot_kernelgen.proof import INTERLEAVED, RAW, flash_attention, gemm, q4_k_matmul
from poot_quant import decode, format_by_name, random_blocks

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("signature", ["native", "k16", "fma_chain", "pair_chain"])
@pytest.mark.parametrize("stages", [1, 3])
def test_gemm(signature, stages):
    rng = np.random.default_rng(1)
    m, n, k = 37, 50, 71  # no multiple of any tile
    a = rng.standard_normal((m, k)).astype(BF16)
    b = rng.standard_normal((n, k)).astype(BF16)
    c = np.full((m, n), np.nan, np.float32)
    gemm(m, n, k, a, b, c, TM=16, TN=32, TK=16, STAGES=stages, SIGNATURE=signature)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    # 71 roundings of sums below 32: each at most half an ulp, 2**-20.
    np.testing.assert_allclose(c, expected, rtol=0, atol=71 * 2**-20)


@pytest.mark.parametrize(("seq", "tile_m", "tile_n"), [(45, 16, 16), (33, 32, 8), (5, 16, 16)])
def test_flash_attention(seq, tile_m, tile_n):
    rng = np.random.default_rng(2)
    heads, dim, scale = 2, 32, 0.17
    q, k, v = (rng.standard_normal((heads, seq, dim)).astype(BF16) for _ in range(3))
    out = np.full((heads, seq, dim), np.nan, BF16)
    flash_attention(heads, seq, scale, q, k, v, out, D=dim, TM=tile_m, TN=tile_n)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    score = scale * wide[0] @ wide[1].swapaxes(1, 2)
    score = np.where(np.tril(np.ones((seq, seq), bool)), score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    expected = weight / weight.sum(-1, keepdims=True) @ wide[2]
    # Weights are rounded to bf16 before the product and the result after it: 2**-9 each.
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2**-7, atol=2**-7)


def interleave_rows(raw):
    """Pack GGUF rows (N, K / 256, 144) sixteen at a time, as ``INTERLEAVED`` says."""
    n, blocks, _ = raw.shape
    rows = raw.reshape(n // 16, 16, blocks, 144).transpose(0, 2, 1, 3)  # group, block, row, byte
    halves = rows[..., :4].reshape(-1, blocks, 16, 2, 2).transpose(0, 1, 3, 2, 4)
    packed = rows[..., 4:16].transpose(0, 1, 3, 2)
    nibbles = rows[..., 16:].reshape(-1, blocks, 16, 32, 4).transpose(0, 1, 3, 2, 4)
    parts = [part.reshape(n // 16, blocks, -1) for part in (halves, packed, nibbles)]
    return np.concatenate(parts, -1).reshape(-1)


@pytest.mark.parametrize(("tokens", "tile"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("layout", [RAW, INTERLEAVED], ids=["raw", "interleaved"])
def test_q4_k(layout, tokens, tile):
    rng = np.random.default_rng(3)
    n, k = 32, 512
    q4_k = format_by_name("Q4_K")
    raw = random_blocks(q4_k, (n, k), rng)
    x = rng.integers(-127, 128, (tokens, k), np.int8)
    x_scale = rng.uniform(0.01, 0.1, (tokens, k // 32)).astype(np.float32)
    x_sum = x_scale * x.reshape(tokens, -1, 32).sum(-1).astype(np.float32)
    y = np.full((tokens, n), np.nan, np.float32)
    packed = raw.reshape(-1) if layout is RAW else interleave_rows(raw.reshape(n, k // 256, 144))
    q4_k_matmul(tokens, n, k, packed, x, x_scale, x_sum, y, TM=tile, LAYOUT=layout)
    activation = x.reshape(tokens, -1, 32) * x_scale[..., None].astype(np.float64)
    weights = decode(q4_k, raw).astype(np.float64)
    expected = activation.reshape(tokens, k) @ weights.T
    bound = np.abs(activation.reshape(tokens, k)) @ np.abs(weights).T
    assert (np.abs(y - expected) <= 2**-18 * bound).all()


def test_gemm_with_packed_weights():
    rng = np.random.default_rng(4)
    m, n, k = 12, 64, 64
    a = rng.standard_normal((m, k)).astype(BF16)
    b = rng.standard_normal((n, k)).astype(BF16)
    c = np.full((m, n), np.nan, np.float32)
    packed = np.ascontiguousarray(b.reshape(n // 16, 16, k // 2, 2).transpose(0, 2, 1, 3))
    layout = interleaved("kn", "k2n16", (32, 32))
    gemm(m, n, k, a, packed.reshape(-1), c, TM=6, TN=32, TK=32, MASKED=False, B_LAYOUT=layout)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, expected, rtol=0, atol=64 * 2**-20)


@pytest.mark.parametrize("proof", [gemm, flash_attention, q4_k_matmul])
def test_text_round_trip(proof):
    function = proof.specialise()
    assert structurally_equal(parse_kernel(print_kernel(function)), function)
