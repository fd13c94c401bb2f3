"""Inputs and float64 references of the three proof kernels."""

from __future__ import annotations

import numpy as np

__all__ = ["interleave_q4_k", "q4_k_bytes", "q4_k_values", "quantised_rows"]


def q4_k_bytes(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    """Return random Q4_K blocks as a GGUF file stores them, (rows, k // 256, 144) bytes."""
    raw = rng.integers(0, 256, (rows, k // 256, 144), dtype=np.uint8)
    halves = rng.uniform(0.001, 0.02, (rows, k // 256, 2)).astype(np.float16)
    raw[..., :4] = halves.view(np.uint8)
    return raw


def q4_k_values(raw: np.ndarray) -> np.ndarray:
    """Return the weights, (rows, k) float64: d * scale * nibble - dmin * minimum."""
    rows, blocks, _ = raw.shape
    halves = np.ascontiguousarray(raw[..., :4]).view(np.float16).astype(np.float64)
    a, b, c = raw[..., 4:8], raw[..., 8:12], raw[..., 12:16]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], -1).astype(np.float64)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], -1).astype(np.float64)
    nibbles = raw[..., 16:].reshape(rows, blocks, 4, 32)
    groups = np.stack([nibbles & 15, nibbles >> 4], 3).reshape(rows, blocks, 8, 32)
    scaled = halves[..., :1, None] * scales[..., None] * groups
    return (scaled - halves[..., 1:, None] * minima[..., None]).reshape(rows, blocks * 256)


def interleave_q4_k(raw: np.ndarray) -> np.ndarray:
    """Return the same weights with 16 rows side by side, four bytes of k together."""
    rows, blocks, _ = raw.shape
    group = raw.reshape(rows // 16, 16, blocks, 144).transpose(0, 2, 1, 3)
    d, dmin = group[..., 0:2], group[..., 2:4]
    packed = group[..., 4:16].transpose(0, 1, 3, 2)
    nibbles = group[..., 16:].reshape(rows // 16, blocks, 16, 32, 4).transpose(0, 1, 3, 2, 4)
    parts = [x.reshape(rows // 16, blocks, -1) for x in (d, dmin, packed, nibbles)]
    return np.ascontiguousarray(np.concatenate(parts, -1))


def quantised_rows(
    rng: np.random.Generator, tokens: int, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x (tokens, k) int8, its scales and scaled sums (tokens, k // 32) float32."""
    x = rng.integers(-127, 128, (tokens, k), dtype=np.int8)
    scale = rng.uniform(0.005, 0.02, (tokens, k // 32)).astype(np.float32)
    sums = x.reshape(tokens, k // 32, 32).sum(-1, dtype=np.int64)
    return x, scale, (scale * sums).astype(np.float32)
