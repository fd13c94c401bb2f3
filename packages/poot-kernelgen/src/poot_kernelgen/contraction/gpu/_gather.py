"""Rows of a weight by number: the embedding read through the output layer's rows."""

from __future__ import annotations

from poot_core import bf16, f16, f32, i32
from poot_kernel import IRBuilder, KernelFunction
from poot_kernelgen.contraction._codec import STEP, is_dense
from poot_kernelgen.contraction.gpu._layout import RowLayout
from poot_kernelgen.contraction.gpu._reader import StepReader
from poot_kernelgen.requests import GatherRequest

__all__ = ["build_gather"]


def build_gather(request: GatherRequest, name: str, threads: int) -> KernelFunction:
    """Return the kernel; one workgroup decodes one row."""
    b = IRBuilder(name, level="lane", grid=["T"], workgroup_size=threads)
    weight = b.raw("weight")
    ids = b.array("ids", i32, ["T"])
    y = b.array("y", f32, ["T", "K"], access="w")
    b.scalar("T")
    n, k, scale = b.scalar("N"), b.scalar("K"), b.scalar("scale", f32)
    status = b.array("status", i32, ["T"], access="rw")
    token = b.workgroup_id()
    row = b.clamp_index(status, b.load(ids, token), n, token, bit=0)
    layout = RowLayout(request.layout.source)
    if is_dense(request.layout.source):
        dtype = {"f32": f32, "f16": f16, "bf16": bf16}[request.layout.source]
        base = b.mul(row, layout.dense_row_bytes(b, k))
        with b.foreach(0, k) as loop:
            at = b.add(base, b.mul(loop.index, dtype.itemsize))
            value = b.load(weight, at, dtype=dtype, alignment=dtype.itemsize)
            wide = value if dtype is f32 else b.convert(value, f32)
            b.store(y, [token, loop.index], b.mul(wide, scale))
        return b.finish()
    reader = StepReader(b, weight, layout, k)
    base = reader.row(row)
    with b.foreach(0, b.shr(k, 5)) as loop:
        step = reader.decode(reader.fetch(base, loop.index))
        start = b.mul(loop.index, STEP)
        scaled = [b.mul(value, scale) for value in reader.values(step)]
        for first in range(0, STEP, 4):
            quad = b.vector_build(*scaled[first : first + 4])
            b.store(y, [token, b.add(start, first)], quad, alignment=16)
    return b.finish()
