"""Argmax in two kernels: the best of each chunk of columns, then the best chunk of each row."""

from __future__ import annotations

from poot_core import f32, i32
from poot_kernel import IRBuilder, KernelFunction, Value
from poot_kernelgen.requests import ArgmaxRequest

__all__ = ["argmax_final_kernel", "argmax_partial_kernel"]

_NO_ID = 2**31 - 1


def _best(b: IRBuilder, value: Value, index: Value, best: list[Value]) -> tuple[Value, Value]:
    """Keep the larger; a lane's indices ascend, so an equal one comes too late. NaN never wins."""
    wins = b.compare("gt", value, best[0])
    return b.select(wins, value, best[0]), b.select(wins, index, best[1])


def _across(b: IRBuilder, value: Value, index: Value) -> tuple[Value, Value]:
    """Return the largest of the lanes' values, and the lowest index among those that have it."""
    largest = b.workgroup_reduce(value, "max")
    candidate = b.select(b.compare("eq", value, largest), index, b.constant(_NO_ID, i32))
    return largest, b.workgroup_reduce(candidate, "min")


def argmax_partial_kernel(
    request: ArgmaxRequest, name: str, threads: int | None = None
) -> KernelFunction:
    """Return the kernel whose grid is chunks by rows.

    A chunk whose logits are all NaN or -inf gives -inf and the chunk's first id.
    """
    chunks = f"ceildiv(columns, {request.chunk})"
    b = IRBuilder(name, level="lane", grid=[chunks, "rows"], workgroup_size=threads)
    logits = b.array("logits", f32, ["rows", "columns"])
    values = b.array("values", f32, ["rows", chunks], access="w")
    ids = b.array("ids", i32, ["rows", chunks], access="w")
    b.scalar("rows")
    columns = b.scalar("columns")
    chunk, row = b.workgroup_id(0), b.workgroup_id(1)
    start = b.mul(chunk, request.chunk)
    end = b.minimum(b.add(start, request.chunk), columns)
    lowest = [b.constant(float("-inf")), b.convert(start, i32)]
    with b.foreach(start, end, lowest, unroll=4) as loop:
        value = b.load(logits, [row, loop.index])
        loop.yield_(*_best(b, value, b.convert(loop.index, i32), loop.carried))
    value, index = _across(b, *loop.results)
    b.store(values, [row, chunk], value)
    b.store(ids, [row, chunk], index)
    return b.finish()


def argmax_final_kernel(name: str, threads: int | None = None) -> KernelFunction:
    """Return the kernel whose grid is rows."""
    b = IRBuilder(name, level="lane", grid=["rows"], workgroup_size=threads)
    values = b.array("values", f32, ["rows", "chunks"])
    ids = b.array("ids", i32, ["rows", "chunks"])
    result = b.array("result", i32, ["rows"], access="w")
    b.scalar("rows")
    chunks = b.scalar("chunks")
    row = b.workgroup_id()
    lowest = [b.constant(float("-inf")), b.load(ids, [row, 0])]
    with b.foreach(0, chunks, lowest) as loop:
        value = b.load(values, [row, loop.index])
        loop.yield_(*_best(b, value, b.load(ids, [row, loop.index]), loop.carried))
    _, index = _across(b, *loop.results)
    b.store(result, row, index)
    return b.finish()
