# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportCallIssue=false
"""Tile GEMM: bf16 operands, f32 sums, masked edges."""

from __future__ import annotations

from poot_core import bf16, f32, i64
from poot_kernel import Layout
from poot_kernel.language import (
    Array,
    Const,
    Out,
    copy,
    kernel,
    load_part,
    mma,
    pipeline,
    store,
    workgroup_id,
    zeros,
)

__all__ = ["gemm"]


@kernel(level="tile", grid=["ceildiv(N, TN)", "ceildiv(M, TM)"])
def gemm(
    M: i64,
    N: i64,
    K: i64,
    a: Array[bf16, "M", "K"],
    b: Array[bf16, "N", "K"] if B_LAYOUT is None else Array[bf16, "N * K"],
    c: Out[f32, "M", "N"],
    TM: Const[int] = 128,
    TN: Const[int] = 128,
    TK: Const[int] = 64,
    STAGES: Const[int] = 3,
    SIGNATURE: Const[str] = "native",
    MASKED: Const[bool] = True,
    B_LAYOUT: Const[Layout | None] = None,
):
    """C = a @ b.T.

    ``MASKED`` allows M, N and K that are no multiples of the tile's. With ``B_LAYOUT``, a layout of
    (TK, TN) whose one stride is that of 16 rows, b is packed; N and K are multiples then.
    """
    m0 = workgroup_id(1) * TM
    n0 = workgroup_id(0) * TN
    acc = zeros((TM, TN), f32)
    for k in pipeline(0, K, TK, stages=STAGES):
        with load_part():
            a_tile = copy(a[m0 : m0 + TM, k : k + TK], masked=MASKED)
            if B_LAYOUT is None:
                b_tile = copy(b[n0 : n0 + TN, k : k + TK], masked=MASKED)
            else:
                b_tile = copy(b[n0 * K + k * 16 :], layout=B_LAYOUT, strides=(16 * K,))
        right = b_tile.T if B_LAYOUT is None else b_tile
        acc = mma(a_tile, right, acc, signature=SIGNATURE)
    store(c[m0 : m0 + TM, n0 : n0 + TN], acc, masked=MASKED)
