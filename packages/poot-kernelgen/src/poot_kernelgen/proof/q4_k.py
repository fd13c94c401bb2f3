# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportCallIssue=false
"""Q4_K weights times 8-bit activations, a few rows at a time.

A Q4_K block of 256 weights is f16 d, f16 dmin, 12 bytes that hold eight 6-bit scales and minima,
128 bytes of nibbles: weight = d * scale * nibble - dmin * minimum, by groups of 32.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import f16, f32, i8, i32, i64
from poot_kernel import Layout, interleaved
from poot_kernel.language import (
    Array,
    Const,
    Out,
    Raw,
    concatenate,
    convert,
    copy,
    fma,
    inline,
    kernel,
    load_part,
    mma,
    pipeline,
    static_range,
    store,
    workgroup_id,
    zeros,
)

__all__ = ["INTERLEAVED", "RAW", "Q4KLayout", "q4_k_matmul"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Q4KLayout:
    """Where the parts of ``rows`` x 256 weights stand in the weight's bytes.

    Attributes:
        rows: Output rows that are packed together.
        block_bytes: From one block of 256 k to the next.
        is_row_major: Whether each row holds all of its blocks in turn; the layouts then take the
            row's length in bytes as their stride. Otherwise the blocks of ``rows`` rows stand in
            turn, and the layouts take none.
        scale_at: Offset of d; dmin is at ``minimum_at``, the 6-bit bytes at ``packed_at``, the
            nibbles at ``nibbles_at``.
        minimum_at: Offset of dmin.
        packed_at: Offset of the 12 bytes of 6-bit numbers.
        nibbles_at: Offset of the nibbles.
        half: Layout of d and dmin: (1, rows) f16.
        packed: Layout of the 6-bit bytes: (12, rows).
        nibbles: Layout of the nibble bytes: (128, rows).
    """

    rows: int
    block_bytes: int
    is_row_major: bool
    scale_at: int
    minimum_at: int
    packed_at: int
    nibbles_at: int
    half: Layout
    packed: Layout
    nibbles: Layout


RAW = Q4KLayout(
    rows=16,
    block_bytes=144,
    is_row_major=True,
    scale_at=0,
    minimum_at=2,
    packed_at=4,
    nibbles_at=16,
    half=Layout.parse("kn: k1@0 n16@$0"),
    packed=Layout.parse("kn: k12@1 n16@$0"),
    nibbles=Layout.parse("kn: k128@1 n16@$0"),
)
"""Rows as a GGUF file stores them."""

INTERLEAVED = Q4KLayout(
    rows=16,
    block_bytes=144 * 16,
    is_row_major=False,
    scale_at=0,
    minimum_at=32,
    packed_at=64,
    nibbles_at=256,
    half=Layout.parse("kn: k1@0 n16@2"),
    packed=Layout.parse("kn: k12@16 n16@1"),
    nibbles=interleaved("kn", "k4n16", (128, 16)),
)
"""Sixteen rows together: four bytes of k beside each other, rows across lanes."""


@inline
def six_bit_numbers(packed):
    """Return eight scales and eight minima out of the 12 packed bytes, each (8, rows)."""
    a, b, c = packed[0:4, :], packed[4:8, :], packed[8:12, :]
    scales = concatenate(a & 63, (c & 15) | ((a >> 6) << 4), axis=0)
    minima = concatenate(b & 63, (c >> 4) | ((b >> 6) << 4), axis=0)
    return scales, minima


@kernel(level="tile", grid=["ceildiv(N, 16)", "ceildiv(T, TM)"])
def q4_k_matmul(
    T: i64,
    N: i64,
    K: i64,
    w: Raw,
    x: Array[i8, "T", "K"],
    x_scale: Array[f32, "T", "(K // 32)"],
    x_sum: Array[f32, "T", "(K // 32)"],
    y: Out[f32, "T", "N"],
    TM: Const[int] = 1,
    LAYOUT: Const[Q4KLayout] = RAW,
    STAGES: Const[int] = 2,
    MASKED: Const[bool] = True,
):
    """Y = (x_scale * x) @ w.T; x_sum is x_scale times the sum of each 32 values of x.

    K is a multiple of 256 and N of 16; T of TM too, unless ``MASKED``.
    """
    n0 = workgroup_id(0) * LAYOUT.rows
    t0 = workgroup_id(1) * TM
    row_bytes = K // 256 * 144
    base = n0 * row_bytes
    strides = (row_bytes,) if LAYOUT.is_row_major else ()
    acc = zeros((TM, LAYOUT.rows), f32)
    for block in pipeline(0, K // 256, stages=STAGES):
        with load_part():
            at = base + block * LAYOUT.block_bytes
            d = copy(w[at + LAYOUT.scale_at :], layout=LAYOUT.half, strides=strides, dtype=f16)
            dmin = copy(w[at + LAYOUT.minimum_at :], layout=LAYOUT.half, strides=strides, dtype=f16)
            packed = copy(w[at + LAYOUT.packed_at :], layout=LAYOUT.packed, strides=strides)
            nibbles = copy(w[at + LAYOUT.nibbles_at :], layout=LAYOUT.nibbles, strides=strides)
            xs = copy(x[t0 : t0 + TM, block * 256 : block * 256 + 256], masked=MASKED)
            dx = copy(x_scale[t0 : t0 + TM, block * 8 : block * 8 + 8], masked=MASKED)
            sx = copy(x_sum[t0 : t0 + TM, block * 8 : block * 8 + 8], masked=MASKED)
        scales, minima = six_bit_numbers(packed)
        scales = f32(d) * f32(scales)
        minima = f32(dmin) * f32(minima)
        for group in static_range(8):
            half = nibbles[group // 2 * 32 : group // 2 * 32 + 32, :]
            weights = half & 15 if group % 2 == 0 else half >> 4
            x_group = xs[:, 32 * group : 32 * group + 32]
            dot = mma(x_group, weights, zeros((TM, LAYOUT.rows), i32), signature="exact")
            dx_group, sx_group = dx[:, group : group + 1], sx[:, group : group + 1]
            scale, minimum = scales[group : group + 1, :], minima[group : group + 1, :]
            acc = fma(convert(dot, f32) * scale, dx_group, acc)
            acc = fma(-minimum, sx_group, acc)
    store(y[t0 : t0 + TM, n0 : n0 + LAYOUT.rows], acc, masked=MASKED)
