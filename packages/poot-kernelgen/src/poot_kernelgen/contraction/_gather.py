"""Rows of a packed matrix by number: the embedding read through the output layer's layout."""

from __future__ import annotations

from collections.abc import Callable

from poot_core import bf16, f16, f32, i32
from poot_kernel import IRBuilder, KernelFunction, Layout, Value
from poot_kernelgen.contraction._codec import ROWS, STEP, codec_of, dense_bytes, is_dense
from poot_kernelgen.contraction._decode import StepReader, group_values
from poot_kernelgen.requests import GatherRequest

__all__ = ["build_gather"]

_Store = Callable[[Value, Value, int], None]


def build_gather(request: GatherRequest, name: str) -> KernelFunction:
    """Return the kernel; one workgroup decodes one row."""
    b = IRBuilder(name, level="tile", grid=["T"])
    weight = b.raw("weight")
    ids = b.array("ids", i32, ["T"])
    y = b.array("y", f32, ["T", "K"], access="w")
    b.scalar("T")
    n, k, scale = b.scalar("N"), b.scalar("K"), b.scalar("scale", f32)
    status = b.array("status", i32, ["T"], access="rw")
    token = b.workgroup_id()
    row = b.clamp_index(status, b.load(ids, token), n, token, bit=0)
    group, lane = b.floordiv(row, ROWS), b.mod(row, ROWS)
    source = request.layout.source

    def store(values: Value, column: Value, count: int) -> None:
        scaled = b.map(lambda v: b.mul(v, scale), values)
        b.store_tile(y, b.reshape(scaled, (1, count)), [token, column])

    if is_dense(source):
        _dense(b, source, weight, (group, lane), k, store)
        return b.finish()
    codec = codec_of(source)
    blocks = b.shr(k, 8 if codec.kind == "super" else 5)
    base = b.mul(group, b.mul(blocks, codec.block_bytes))
    reader = StepReader(b, weight, codec, lane)
    with b.for_(0, b.shr(k, 5)) as loop:
        step = reader.read(*reader.step_address(base, loop.index))
        store(group_values(b, codec, step), b.mul(loop.index, STEP), STEP)
    return b.finish()


def _dense(
    b: IRBuilder, source: str, weight: Value, row: tuple[Value, Value], k: Value, store: _Store
) -> None:
    dtype, size = {"f32": f32, "f16": f16, "bf16": bf16}[source], dense_bytes(source)
    pairs = 2 if source == "bf16" else 1
    padded = b.and_(b.add(k, pairs - 1), -pairs)
    lane_bytes = pairs * size
    base = b.add(b.mul(row[0], b.mul(padded, ROWS * size)), b.mul(row[1], lane_bytes))

    def copy(start: Value, count: int) -> Value:
        at = b.add(base, b.mul(start, ROWS * size))
        inner = f"k2@{size} k{count // 2}@{ROWS * 2 * size}" if pairs == 2 else ""
        text = f"kn: {inner or f'k{count}@{ROWS * size}'}"
        return b.tile_convert(b.copy(weight, at, layout=Layout.parse(text), dtype=dtype), f32)

    whole = b.and_(k, -STEP)
    with b.for_(0, whole, STEP) as loop:
        store(copy(loop.index, STEP), loop.index, STEP)
    with b.for_(whole, b.and_(k, -pairs), pairs) as loop:
        store(copy(loop.index, pairs), loop.index, pairs)
