"""Small kernels that the tests launch."""

# ruff: noqa: F821 -- array extents in annotations name the kernel's parameters

from poot_core import bf16, f32, i64
from poot_kernel.language import (
    Aligned,
    Array,
    Const,
    InOut,
    Out,
    assume_multiple,
    copy,
    foreach,
    kernel,
    load_part,
    mma,
    pipeline,
    store,
    workgroup_id,
    workgroup_reduce,
    zeros,
)


@kernel(level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
def scale(n: i64, factor: f32, x: InOut[f32, "n"]):
    start = workgroup_id() * 64
    for i in foreach(start, min(start + 64, n)):
        x[i] = x[i] * factor


@kernel(level="lane", grid=["rows"], workgroup_size=64)
def row_sums(rows: i64, width: i64, x: Array[f32, "rows", "width"], y: Out[f32, "rows"]):
    row = workgroup_id()
    total = 0.0
    for i in foreach(width):
        total += x[row, i]
    y[row] = workgroup_reduce(total, "add")


@kernel(level="lane", grid=["a", "b"], workgroup_size=32)
def places(a: i64, b: i64, y: Out[f32, "b", "a"]):
    for _ in foreach(1):
        y[workgroup_id(1), workgroup_id(0)] = f32(100 * workgroup_id(1) + workgroup_id(0))


@kernel(level="tile", grid=["ceildiv(N, TN)", "ceildiv(M, TM)"])
def product(
    M: i64,
    N: i64,
    K: i64,
    x: Aligned[Array[bf16, "M", "K"], 16],
    w: Aligned[Array[bf16, "N", "K"], 16],
    y: Aligned[Out[f32, "M", "N"], 16],
    TM: Const[int] = 8,
    TN: Const[int] = 16,
    STAGES: Const[int] = 4,
    SIGNATURE: Const[str] = "k16_chunk1024",
):
    depth = assume_multiple(K, 64)
    m0 = workgroup_id(1) * TM
    n0 = workgroup_id(0) * TN
    acc = zeros((TM, TN), f32)
    for k in pipeline(0, depth, 64, stages=STAGES):
        with load_part():
            left = copy(x[m0 : m0 + TM, k : k + 64], masked=True)
            right = copy(w[n0 : n0 + TN, k : k + 64], masked=True)
        acc = mma(left, right.T, acc, signature=SIGNATURE)
    store(y[m0 : m0 + TM, n0 : n0 + TN], acc, masked=True)


ALL = [k.specialise() for k in (scale, row_sums, places)]
