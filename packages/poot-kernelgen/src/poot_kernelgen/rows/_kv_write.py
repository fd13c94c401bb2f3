"""Storing tokens' keys or values into a paged pool, where no row program does it."""

from __future__ import annotations

from poot_core import Target
from poot_kernel import KernelFunction
from poot_kernelgen.requests import KvWriteRequest, RowInput, RowOutput, RowProgram
from poot_kernelgen.rows._generate import row_kernel

__all__ = ["kv_write_kernel", "kv_write_program"]


def kv_write_program(request: KvWriteRequest) -> RowProgram:
    """Return the row program that does what the request asks; its arguments differ in order."""
    layout = request.layout
    return RowProgram(
        inputs=(
            RowInput(dtype="f32", shape=(layout.num_kv_heads, layout.head_dim)),
            RowInput(dtype="i32", shape=()),
        ),
        nodes=(),
        outputs=(RowOutput(value=0, kind="kv", slot_input=1, layout=layout),),
    )


def kv_write_kernel(
    request: KvWriteRequest, target: Target, name: str, threads: int | None = None
) -> KernelFunction:
    """Return the kernel; its grid is tokens. ``threads`` share a token on a GPU."""
    kernel = row_kernel(kv_write_program(request), target, name, threads)
    # Row programs take the pool's slots before the rows, the request the other way round.
    arguments = kernel.body.arguments
    slots, rows = arguments[3], arguments[4]
    assert (slots.name, rows.name) == ("output0_slots", "rows")
    arguments[3], arguments[4] = rows, slots
    return kernel
