# ruff: noqa: F821 -- array extents in annotations name the kernel's parameters
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false
"""Tile GEMM: bf16 operands, f32 sums, masked edges."""

from __future__ import annotations

from poot_core import bf16, f32, i64
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
    b: Array[bf16, "N", "K"],
    c: Out[f32, "M", "N"],
    TM: Const[int] = 128,
    TN: Const[int] = 128,
    TK: Const[int] = 64,
    STAGES: Const[int] = 3,
    SIGNATURE: Const[str] = "native",
):
    """c = a @ b.T."""
    m0 = workgroup_id(1) * TM
    n0 = workgroup_id(0) * TN
    acc = zeros((TM, TN), f32)
    for k in pipeline(0, K, TK, stages=STAGES):
        with load_part():
            a_tile = copy(a[m0 : m0 + TM, k : k + TK], masked=True)
            b_tile = copy(b[n0 : n0 + TN, k : k + TK], masked=True)
        acc = mma(a_tile, b_tile.T, acc, signature=SIGNATURE)
    store(c[m0 : m0 + TM, n0 : n0 + TN], acc, masked=True)
