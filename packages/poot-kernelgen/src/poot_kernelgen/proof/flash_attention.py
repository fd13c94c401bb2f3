# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportCallIssue=false
"""Causal attention in one pass over keys (FlashAttention-2, arXiv:2307.08691, algorithm 1)."""

from __future__ import annotations

import math

from poot_core import bf16, f32, i64
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

__all__ = ["flash_attention"]

LOWEST = -1e30  # finite, so that a row without keys yields no NaN


@kernel(
    level="tile",
    grid=["ceildiv(S, TM)", "H"],
    fastmath=["contract", "reassociate", "approximate"],
)
def flash_attention(
    H: i64,
    S: i64,
    scale: f32,
    q: Array[bf16, "H", "S", "D"],
    k: Array[bf16, "H", "S", "D"],
    v: Array[bf16, "H", "S", "D"],
    out: Out[bf16, "H", "S", "D"],
    D: Const[int] = 64,
    TM: Const[int] = 64,
    TN: Const[int] = 64,
    STAGES: Const[int] = 2,
    SIGNATURE: Const[str] = "native",
    MASKED: Const[bool] = True,
):
    """Write softmax(scale * q[h] @ k[h].T, causal) @ v[h] to out[h]; softmax in f32.

    ``MASKED`` allows S that is no multiple of TM and TN.
    """
    head = workgroup_id(1)
    m0 = workgroup_id(0) * TM
    queries = copy(q[head, m0 : m0 + TM, 0:D], masked=MASKED)
    row = m0 + iota((TM, 1), 0, i64)
    scale2 = scale * math.log2(math.e)
    top = full((TM, 1), LOWEST, f32)
    total = full((TM, 1), 0.0, f32)
    acc = zeros((TM, D), f32)
    for n0 in pipeline(0, min(m0 + TM, S), TN, stages=STAGES):
        with load_part():
            keys = copy(k[head, n0 : n0 + TN, 0:D], masked=MASKED)
            values = copy(v[head, n0 : n0 + TN, 0:D], masked=MASKED)
        product = mma(queries, keys.T, zeros((TM, TN), f32), signature=SIGNATURE)
        column = n0 + iota((1, TN), 1, i64)
        score = where(column <= row, product * scale2, LOWEST)
        new_top = maximum(top, reduce(score, 1, "max"))
        weight = exp2(score - new_top)
        keep = exp2(top - new_top)
        total = total * keep + reduce(weight, 1, "add")
        acc = mma(convert(weight, bf16), values, acc * keep, signature=SIGNATURE)
        top = new_top
    store(out[head, m0 : m0 + TM, 0:D], convert(acc / total, bf16), masked=MASKED)
