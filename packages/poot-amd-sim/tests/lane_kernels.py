"""Lane kernels that use every operation that row programs, contractions and sampling need."""

# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters

from __future__ import annotations

from poot_core import bf16, boolean, f16, f32, i8, i16, i32, i64, u8, u16, u32
from poot_kernel.language import (
    Aligned,
    Array,
    InOut,
    Out,
    atomic,
    barrier,
    bitcast,
    clamp_index,
    convert,
    cos,
    count_ones,
    dot2,
    dot4,
    erf,
    exp,
    exp2,
    floor,
    fma,
    foreach,
    grid_size,
    kernel,
    load,
    local_id,
    local_size,
    log,
    log2,
    lut16,
    maximum,
    minimum,
    mul_high,
    num_subgroups,
    rint,
    rsqrt,
    shared,
    sin,
    sqrt,
    static_range,
    status_set,
    store,
    subgroup_broadcast,
    subgroup_id,
    subgroup_lane,
    subgroup_reduce,
    subgroup_scan,
    subgroup_shuffle,
    subgroup_shuffle_xor,
    subgroup_size,
    subgroup_vote,
    tanh,
    trunc,
    where,
    workgroup_id,
    workgroup_reduce,
)


@kernel(level="lane", grid=["R"], workgroup_size=128)
def rms_norm(R: i64, n: i64, x: Array[f32, "R", "n"], y: Out[f32, "R", "n"]):
    row = workgroup_id()
    total = 0.0
    for i in foreach(n):
        total += x[row, i] * x[row, i]
    scale = rsqrt(workgroup_reduce(total, "add") / f32(n) + 1e-5)
    for i in foreach(n):
        y[row, i] = x[row, i] * scale


@kernel(level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
def integers(
    n: i64,
    a: Array[i32, "n"],
    b: Array[i32, "n"],
    u: Array[u32, "n"],
    y: Out[i32, "n", 18],
    z: Out[u32, "n", 8],
):
    start = workgroup_id() * 64
    for i in foreach(start, min(start + 64, n)):
        p = a[i]
        q = b[i]
        r = u[i]
        y[i, 0] = p + q
        y[i, 1] = p - q
        y[i, 2] = p * q
        y[i, 3] = p // q
        y[i, 4] = p % q
        y[i, 5] = minimum(p, q)
        y[i, 6] = maximum(p, q)
        y[i, 7] = p & q
        y[i, 8] = p | q
        y[i, 9] = p ^ q
        y[i, 10] = p << (q & 31)
        y[i, 11] = p >> (q & 31)
        y[i, 12] = -p
        y[i, 13] = abs(p)
        y[i, 14] = ~p
        y[i, 15] = where(p < q, p, q)
        y[i, 16] = p // 16
        y[i, 17] = mul_high(p, q)
        z[i, 0] = r // 7
        z[i, 1] = r % 7
        z[i, 2] = r >> 3
        z[i, 3] = mul_high(r, r)
        z[i, 4] = count_ones(r)
        z[i, 5] = maximum(r, u32(1000))
        z[i, 6] = r // (r >> 20 | 1)
        z[i, 7] = where((r > 100) & (p > q), r, u32(5))


@kernel(level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
def longs(n: i64, a: Array[i64, "n"], b: Array[i64, "n"], y: Out[i64, "n", 8]):
    start = workgroup_id() * 64
    for i in foreach(start, min(start + 64, n)):
        p = a[i]
        q = b[i]
        y[i, 0] = p + q
        y[i, 1] = p * q
        y[i, 2] = p // q
        y[i, 3] = p % q
        y[i, 4] = minimum(p, q)
        y[i, 5] = p >> (q & 63)
        y[i, 6] = p << 5
        y[i, 7] = where(p < q, p ^ q, p & q)


@kernel(level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
def floats(n: i64, a: Array[f32, "n"], b: Array[f32, "n"], y: Out[f32, "n", 24]):
    start = workgroup_id() * 64
    for i in foreach(start, min(start + 64, n)):
        p = a[i]
        q = b[i]
        y[i, 0] = p + q
        y[i, 1] = p * q - q
        y[i, 2] = p / q
        y[i, 3] = fma(p, q, p)
        y[i, 4] = minimum(p, q)
        y[i, 5] = maximum(p, q)
        y[i, 6] = abs(p)
        y[i, 7] = floor(p)
        y[i, 8] = trunc(p)
        y[i, 9] = rint(p)
        y[i, 10] = sqrt(abs(p))
        y[i, 11] = rsqrt(abs(p) + 0.5)
        y[i, 12] = exp(p)
        y[i, 13] = exp2(p)
        y[i, 14] = log(abs(p) + 1e-3)
        y[i, 15] = log2(abs(p) + 1e-3)
        y[i, 16] = sin(p)
        y[i, 17] = cos(p)
        y[i, 18] = tanh(p)
        y[i, 19] = erf(p)
        y[i, 20] = (abs(p) + 0.1) ** q
        y[i, 21] = where(p < q, p, -q)
        y[i, 22] = f32(bf16(p)) + f32(f16(q))
        y[i, 23] = where((p == q) | (p != p), 1.0, 2.0)


@kernel(level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
def conversions(
    n: i64,
    x: Array[f32, "n"],
    k: Array[i32, "n"],
    a: Out[i8, "n"],
    b: Out[u8, "n"],
    c: Out[i16, "n"],
    d: Out[u16, "n"],
    e: Out[bf16, "n"],
    f: Out[f16, "n"],
    g: Out[boolean, "n"],
    h: Out[i32, "n"],
    j: Out[f32, "n", 3],
    m: Out[i64, "n"],
):
    start = workgroup_id() * 64
    for i in foreach(start, min(start + 64, n)):
        v = x[i]
        w = k[i]
        a[i] = convert(v, i8, saturate=True)
        b[i] = convert(v, u8, saturate=True)
        c[i] = i16(w)
        d[i] = u16(w)
        e[i] = bf16(v)
        f[i] = f16(v)
        g[i] = v > 0.5
        h[i] = convert(v * 1e8, i32, saturate=True)
        j[i, 0] = f32(w)
        j[i, 1] = bitcast(bitcast(v, i32) ^ 1, f32)
        j[i, 2] = f32(v > 0.5)
        m[i] = i64(v * 3.0) + i64(w)


@kernel(level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
def dots(
    n: i64,
    a: Array[i32, "n"],
    b: Array[i32, "n"],
    c: Array[i32, "n"],
    y: Out[i32, "n", 4],
    z: Out[f32, "n"],
    w: Out[i32, "n"],
):
    start = workgroup_id() * 64
    for i in foreach(start, min(start + 64, n)):
        y[i, 0] = dot4(a[i], b[i], c[i], a_signed=True, b_signed=True)
        y[i, 1] = dot4(a[i], b[i], c[i], a_signed=False, b_signed=True)
        y[i, 2] = dot4(a[i], b[i], c[i], a_signed=True, b_signed=False)
        y[i, 3] = dot4(a[i], b[i], c[i], a_signed=False, b_signed=False)
        z[i] = dot2(a[i] & 0x3FFF3FFF, b[i] & 0x3FFF3FFF, f32(c[i] & 255), bf16)
        w[i] = i32(lut16(u8(a[i] & 15), (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53,
                                         69, 89, 113), i8))  # fmt: skip


@kernel(level="lane", grid=[2], workgroup_size=128)
def subgroups(
    x: Array[f32, 2, 128], k: Array[i32, 2, 128], y: Out[f32, 2, 128, 9], z: Out[i32, 2, 128, 9]
):
    row = workgroup_id()
    me = local_id()
    v = x[row, me]
    w = k[row, me]
    y[row, me, 0] = subgroup_reduce(v, "max")
    y[row, me, 1] = subgroup_reduce(v, "add")
    y[row, me, 2] = subgroup_broadcast(v, 3)
    y[row, me, 3] = subgroup_shuffle(v, (subgroup_lane() * 7 + 1) & (subgroup_size() - 1))
    y[row, me, 4] = (
        subgroup_shuffle_xor(v, 1) + subgroup_shuffle_xor(v, 2) + subgroup_shuffle_xor(v, 4)
    )
    y[row, me, 5] = subgroup_shuffle_xor(v, 8) + subgroup_shuffle_xor(v, 16)
    y[row, me, 6] = subgroup_scan(v, "max")
    y[row, me, 7] = workgroup_reduce(v, "max")
    y[row, me, 8] = workgroup_reduce(v, "add")
    z[row, me, 0] = subgroup_reduce(w, "add")
    z[row, me, 1] = subgroup_scan(w, "add")
    z[row, me, 2] = subgroup_scan(w, "add", exclusive=True)
    z[row, me, 3] = i32(subgroup_vote(w > 90, "any"))
    z[row, me, 4] = i32(subgroup_vote(w > -90, "all"))
    z[row, me, 5] = i32(subgroup_id() * 1000 + subgroup_lane() * 10 + num_subgroups())
    z[row, me, 6] = i32(grid_size(0) * 100 + local_size())
    z[row, me, 7] = workgroup_reduce(w, "min")
    z[row, me, 8] = i32(workgroup_reduce(i64(w) * 5000000000, "add") // 100000)


@kernel(level="lane", grid=["R"], workgroup_size=128)
def tree_sum(R: i64, x: Array[f32, "R", 128], y: Out[f32, "R"]):
    """A tree in workgroup memory; barriers between waves are needed."""
    row = workgroup_id()
    me = local_id()
    held = shared(f32, 128)
    held[me] = x[row, me]
    barrier()
    for level in static_range(7):
        if me < (64 >> level):
            held[me] = held[me] + held[me + (64 >> level)]
        barrier()
    if me == 0:
        y[row] = held[0]


@kernel(level="lane", grid=["R"], workgroup_size=64)
def flags(
    R: i64, N: i64, ids: Array[i32, "R"], w: Array[f32, "N", 64], y: Out[f32, "R", 64],
    status: InOut[i32, "R"], total: InOut[i32, 4],
):  # fmt: skip
    row = workgroup_id()
    place = clamp_index(status, i64(ids[row]), N, row, bit=0)
    for i in foreach(64):
        y[row, i] = w[place, i]
    atomic("add", total[0], 1)
    atomic("max", total[1], ids[row])
    atomic("or", total[2], 1 << (i32(local_id()) & 7))
    local = shared(i32, 2)
    if local_id() == 0:
        local[0] = 0
    barrier()
    atomic("add", local[0], 2)
    barrier()
    if local_id() == 0:
        atomic("add", total[3], local[0])
    status_set(status, row, bit=2, mask=(ids[row] == 3) & (local_id() == 0))


@kernel(level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
def vectors(
    n: i64,
    x: Aligned[Array[f32, "(n * 4)"], 16],
    h: Aligned[Array[bf16, "(n * 4)"], 8],
    y: Aligned[Out[f32, "(n * 4)"], 16],
    z: Aligned[Out[bf16, "(n * 4)"], 8],
):
    start = workgroup_id() * 64
    for i in foreach(start, min(start + 64, n)):
        a = load(x[i * 4], count=4, alignment=16)
        b = load(h[i * 4], count=4, alignment=8, mask=i % 3 != 0)
        store(y[i * 4], a + convert(b, f32), alignment=16)
        store(z[i * 4], b, alignment=8, mask=i % 2 == 0)
