"""Small kernels that the tests launch."""

# ruff: noqa: F821 -- array extents in annotations name the kernel's parameters

from poot_core import f32, i64
from poot_kernel.language import Array, InOut, Out, foreach, kernel, workgroup_id, workgroup_reduce


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


ALL = [k.specialise() for k in (scale, row_sums, places)]
