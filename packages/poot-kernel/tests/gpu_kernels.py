"""Small kernels that the tests of the GPU targets share; they name no target."""

# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters

from __future__ import annotations

from poot_core import bf16, f32, i8, i32, i64, u8
from poot_kernel.language import (
    Array,
    Const,
    Out,
    convert,
    copy,
    exp2,
    full,
    iota,
    kernel,
    load_part,
    maximum,
    mma,
    pipeline,
    reduce,
    store,
    where,
    workgroup_id,
    zeros,
)


@kernel(level="tile", grid=["ceildiv(N, TN)", "ceildiv(M, TM)"])
def product(
    M: i64,
    N: i64,
    K: i64,
    a: Array[bf16, "M", "K"],
    b: Array[bf16, "N", "K"],
    c: Out[f32, "M", "N"],
    TM: Const[int] = 32,
    TN: Const[int] = 32,
    TK: Const[int] = 32,
    STAGES: Const[int] = 3,
    SIGNATURE: Const[str] = "native",
):
    """c = a @ b.T."""
    m0 = workgroup_id(1) * TM
    n0 = workgroup_id(0) * TN
    acc = zeros((TM, TN), f32)
    for k in pipeline(0, K, TK, stages=STAGES):
        with load_part():
            left = copy(a[m0 : m0 + TM, k : k + TK], masked=True)
            right = copy(b[n0 : n0 + TN, k : k + TK], masked=True)
        acc = mma(left, right.T, acc, signature=SIGNATURE)
    store(c[m0 : m0 + TM, n0 : n0 + TN], acc, masked=True)


@kernel(level="tile", grid=["ceildiv(S, 32)"], fastmath=["contract", "reassociate", "approximate"])
def attention(
    S: i64,
    q: Array[bf16, "S", 32],
    k: Array[bf16, "S", 32],
    v: Array[bf16, "S", 32],
    out: Out[bf16, "S", 32],
):
    """out = softmax(q @ k.T in base 2, causal) @ v."""
    m0 = workgroup_id(0) * 32
    queries = copy(q[m0 : m0 + 32, 0:32], masked=True)
    row = m0 + iota((32, 1), 0, i64)
    top = full((32, 1), -1e30, f32)
    total = full((32, 1), 0.0, f32)
    acc = zeros((32, 32), f32)
    for n0 in pipeline(0, min(m0 + 32, S), 32, stages=2):
        with load_part():
            keys = copy(k[n0 : n0 + 32, 0:32], masked=True)
            values = copy(v[n0 : n0 + 32, 0:32], masked=True)
        scores = mma(queries, keys.T, zeros((32, 32), f32), signature="native")
        column = n0 + iota((1, 32), 1, i64)
        score = where(column <= row, scores, -1e30)
        new_top = maximum(top, reduce(score, 1, "max"))
        weight = exp2(score - new_top)
        keep = exp2(top - new_top)
        total = total * keep + reduce(weight, 1, "add")
        acc = mma(convert(weight, bf16), values, acc * keep, signature="native")
        top = new_top
    store(out[m0 : m0 + 32, 0:32], convert(acc / total, bf16), masked=True)


@kernel(level="tile", grid=["N // 16"])
def nibbles(
    N: i64,
    K: i64,
    w: Array[u8, "N", "(K // 2)"],
    x: Array[i8, 1, "K"],
    y: Out[f32, 1, "N"],
):
    """y = x @ w.T where 32 values of w are 16 low nibbles, then the 16 high ones of the bytes."""
    n0 = workgroup_id(0) * 16
    acc = zeros((1, 16), f32)
    for k in pipeline(0, K, 64, stages=2):
        with load_part():
            packed = copy(w[n0 : n0 + 16, k // 2 : k // 2 + 32])
            row = copy(x[0:1, k : k + 64])
        low = (packed & 15).T
        high = (packed >> 4).T
        dot = mma(row[:, 0:32], low, zeros((1, 16), i32), signature="exact")
        dot = mma(row[:, 32:64], high, dot, signature="exact")
        acc = acc + convert(dot, f32)
    store(y[0:1, n0 : n0 + 16], acc)
