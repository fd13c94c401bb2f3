"""Kernels for many rows of packed weights: decode a piece of the weights once, use it for all rows.

A workgroup owns two groups of 16 weight rows (one for f32 activations) and a block of rows. It decodes
a chunk of k into its scratch, which the cache close to the core holds, adds the chunk's products to
accumulators in the same scratch, and goes on to the next chunk: still one ascending chain.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import DType, f32, i8, i32, u8
from poot_kernel import Layout, Value
from poot_kernelgen.contraction._codec import ROWS, STEP, Codec, codec_of
from poot_kernelgen.contraction._decode import StepReader
from poot_kernelgen.contraction._kernel import Frame
from poot_kernelgen.contraction._streamed import group_bytes
from poot_kernelgen.contraction._sums import ByteOperand, add_bytes, byte_operand, float_weights

__all__ = ["ROW_BLOCK", "blocked_columns", "build_blocked"]

ROW_BLOCK = 128
"""Rows of a workgroup: their activations stay in the L2 cache while columns pass."""

_BYTE_CHUNK = 24  # steps of k decoded at once: 768, about 30 KB for 32 rows
_FLOAT_CHUNK = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Sizes of a blocked kernel and of its scratch.

    Attributes:
        groups: Groups of 16 weight rows of a workgroup.
        tile_rows: Rows that are multiplied together.
        chunk: Steps decoded at once.
        slot_bytes: Scratch bytes of one decoded step.
    """

    groups: int
    tile_rows: int
    chunk: int
    slot_bytes: int

    @property
    def columns(self) -> int:
        """Weight rows of a workgroup."""
        return ROWS * self.groups


def _plan(frame: Frame, codec: Codec) -> _Plan:
    if frame.request.activation == "i8":
        extra = codec.groups * (2 if codec.groups == 2 or codec.has_min or codec.zero else 1)
        extra += codec.groups if codec.groups == 2 and codec.has_min else 0
        slot = 2 * ROWS * (STEP + 4 * extra)
        return _Plan(groups=2, tile_rows=4, chunk=_BYTE_CHUNK, slot_bytes=slot)
    groups = 2 if frame.request.gated else 1
    return _Plan(
        groups=groups, tile_rows=4 if groups == 2 else 8, chunk=_FLOAT_CHUNK,
        slot_bytes=groups * ROWS * STEP * 4,
    )  # fmt: skip


def blocked_columns(activation: str, gated: bool) -> int:
    """Return the result columns of a workgroup."""
    return ROWS if gated or activation != "i8" else 2 * ROWS


def build_blocked(frame: Frame) -> None:
    """Build the body over a grid of (column units, row blocks)."""
    b = frame.b
    codec = codec_of(frame.request.weight.source)
    plan = _plan(frame, codec)
    slots = b.shared_alloc(u8, [plan.chunk * plan.slot_bytes])
    sums = b.shared_alloc(f32, [ROW_BLOCK, plan.columns])
    unit = b.workgroup_id(0)
    first = b.mul(b.workgroup_id(1), ROW_BLOCK)
    end = b.minimum(b.add(first, ROW_BLOCK), frame.m)
    steps = b.shr(frame.k, 5)
    zero = b.tile_zeros((plan.tile_rows, plan.columns), f32)
    with b.for_(0, ROW_BLOCK, plan.tile_rows) as clear:
        b.store_tile(sums, zero, [clear.index, 0])
    with b.for_(0, steps, plan.chunk) as chunk:
        last = b.minimum(b.add(chunk.index, plan.chunk), steps)
        _decode_chunk(frame, codec, plan, slots, unit, (chunk.index, last))
        with b.for_(first, end, plan.tile_rows) as loop:
            _add_chunk(frame, codec, plan, (slots, sums), (loop.index, first), (chunk.index, last))
    with b.for_(first, end, plan.tile_rows) as loop:
        shape = (plan.tile_rows, plan.columns)
        acc = b.copy(sums, [b.sub(loop.index, first), 0], shape, space="accumulator")
        width = blocked_columns(frame.request.activation, frame.request.gated)
        parts = [acc]
        if frame.request.gated:
            parts = [b.slice(acc, (0, at), (plan.tile_rows, ROWS)) for at in (0, ROWS)]
        frame.finish(parts, loop.index, b.mul(unit, width))


def _decode_chunk(
    frame: Frame, codec: Codec, plan: _Plan, slots: Value, unit: Value, steps: tuple[Value, Value]
) -> None:
    b = frame.b
    halves = 2 if frame.request.gated else 1
    num_groups = b.mul(b.floordiv(b.add(frame.n, ROWS - 1), ROWS), halves)
    reader = StepReader(b, frame.weight, codec)
    for half in range(plan.groups):
        # A unit at the edge may have one group alone: the other half repeats it and is not stored.
        group = b.minimum(b.add(b.mul(unit, plan.groups), half), b.sub(num_groups, 1))
        base = b.mul(group, group_bytes(frame, codec))
        with b.for_(steps[0], steps[1]) as loop:
            step = reader.read(*reader.step_address(base, loop.index))
            slot = b.mul(b.sub(loop.index, steps[0]), plan.slot_bytes)
            if frame.request.activation == "i8":
                _store_bytes(frame, codec, slots, slot, half, byte_operand(b, codec, step))
            else:
                values = float_weights(b, codec, step)
                at = b.add(slot, half * ROWS * 4)
                layout = Layout.parse(f"kn: n16@4 k{STEP}@{plan.columns * 4}")
                b.store_tile(slots, values, at, layout=layout)


_CODES = f"kn: k4@1 n16@4 k8@{4 * ROWS}"
_VECTOR_BYTES = 2 * ROWS * 4  # one number for each of 32 rows
_CODE_BYTES = 2 * ROWS * STEP


def _store_bytes(
    frame: Frame, codec: Codec, slots: Value, slot: Value, half: int, operand: ByteOperand
) -> None:
    b = frame.b
    codes_at = b.add(slot, half * ROWS * STEP)
    b.store_tile(slots, operand.codes, codes_at, layout=Layout.parse(_CODES))
    vectors = [*operand.scales, *(operand.mins or []), *operand.corrections]
    for number, vector in enumerate(vectors):
        at = b.add(slot, _CODE_BYTES + number * _VECTOR_BYTES + half * ROWS * 4)
        b.store_tile(slots, vector, at, layout=Layout.parse("kn: n16@4"))
    assert codec.groups * 2 >= len(operand.corrections)


def _load_bytes(frame: Frame, codec: Codec, slots: Value, slot: Value) -> ByteOperand:
    b = frame.b
    layout = Layout.parse(f"{_CODES} n2@{ROWS * STEP}")
    codes = b.copy(slots, slot, layout=layout, dtype=u8 if codec.groups == 1 else i8)
    number = 0

    def vectors(count: int, dtype: DType) -> list[Value]:
        nonlocal number
        found: list[Value] = []
        for _ in range(count):
            at = b.add(slot, _CODE_BYTES + number * _VECTOR_BYTES)
            found.append(
                b.copy(slots, at, layout=Layout.parse(f"kn: n{2 * ROWS}@4"), dtype=dtype)
            )
            number += 1
        return found

    scales = vectors(codec.groups, f32)
    has_min = codec.has_min or (codec.groups == 1 and codec.zero != 0)
    mins = vectors(codec.groups, f32) if has_min else None
    corrections = vectors(codec.groups, i32) if codec.groups == 2 else []
    return ByteOperand(codes, scales, mins, corrections)


def _add_chunk(
    frame: Frame,
    codec: Codec,
    plan: _Plan,
    memory: tuple[Value, Value],
    row: tuple[Value, Value],
    steps: tuple[Value, Value],
) -> None:
    b, (slots, sums) = frame.b, memory
    rows = frame.rows(row[0], plan.tile_rows)
    at = [b.sub(row[0], row[1]), 0]
    shape = (plan.tile_rows, plan.columns)
    acc = b.copy(sums, at, shape, space="accumulator")
    with b.pipeline(steps[0], steps[1], 1, [acc]) as pipe:
        with pipe.load() as step:
            column = b.mul(step, STEP)
            x = [frame.activation(0, rows, column, STEP)]
            if frame.request.activation == "i8":
                x += [frame.activation(i, rows, step, 1) for i in (1, 2)]
            pipe.yield_(*x)
        with pipe.compute() as x_tiles:
            slot = b.mul(b.sub(pipe.index, steps[0]), plan.slot_bytes)
            total = pipe.carried[0]
            if frame.request.activation == "i8":
                operand = _load_bytes(frame, codec, slots, slot)
                total = add_bytes(b, codec, operand, (x_tiles[0], x_tiles[1], x_tiles[2]), total)
            else:
                layout = Layout.parse(f"kn: n{plan.columns}@4 k{STEP}@{plan.columns * 4}")
                values = b.copy(slots, slot, layout=layout, dtype=f32)
                total = b.mma(x_tiles[0], values, total, signature="fma_chain")
            pipe.yield_(total)
    b.store_tile(sums, pipe.result, at)
