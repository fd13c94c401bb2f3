"""Kernels for many rows of packed weights: decode a piece of the weights once, use it for all rows.

A workgroup owns some groups of 16 weight rows and a block of activation rows. It decodes a chunk of k
into its scratch, which the caches close to the core hold, adds the chunk's products to accumulators
in the same scratch, and goes on to the next chunk: still one ascending chain for each result.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import DType, f32, i8, i32, u8
from poot_kernel import Layout, Value
from poot_kernelgen.contraction._codec import ROWS, STEP, Codec, codec_of
from poot_kernelgen.contraction._decode import StepReader
from poot_kernelgen.contraction._kernel import Frame
from poot_kernelgen.contraction._residual import MARKED_ROWS, Marks, open_marks
from poot_kernelgen.contraction._streamed import PREFETCH_BYTES, group_bytes
from poot_kernelgen.contraction._sums import (
    ByteOperand,
    add_bytes,
    add_residual,
    byte_operand,
    float_weights,
    is_signed,
    lift,
    read_bytes,
)

__all__ = ["ROW_BLOCK", "blocked_columns", "build_blocked"]

ROW_BLOCK = 256
"""Rows of a workgroup: a chunk of weights is decoded once for all of them."""

_GROUPS = 2
_TILE_ROWS = 4
_BYTE_CHUNK = 32  # steps of k decoded at once: about 40 KB
_FLOAT_CHUNK = 12  # 48 KB
_CODE_BYTES = ROWS * STEP
_VECTOR_BYTES = ROWS * 4
_CODES = f"kn: k4@1 n16@4 k8@{4 * ROWS}"
_VALUES = f"kn: n16@4 k{STEP}@{_VECTOR_BYTES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slots:
    """Decoded steps in scratch: for each group of weight rows a run of equal slots.

    Attributes:
        frame: The kernel.
        codec: The weights' format.
        memory: The scratch, as bytes.
    """

    frame: Frame
    codec: Codec
    memory: Value

    @property
    def vectors(self) -> int:
        """Numbers kept for each row and step besides the codes."""
        return _num_vectors(self.frame, self.codec)

    def address(self, group: int, number: Value) -> Value:
        """Return where a step of the chunk lies."""
        nbytes, chunk = _slot_bytes(self.frame, self.codec), _chunk(self.frame)
        b = self.frame.b
        return b.add(b.mul(number, nbytes), group * chunk * nbytes)

    def store_bytes(self, at: Value, operand: ByteOperand) -> None:
        """Write a step for integer products."""
        b = self.frame.b
        b.store_tile(self.memory, operand.codes, at, layout=Layout.parse(_CODES))
        vectors = [*operand.scales, *(operand.mins or []), *operand.corrections]
        for number, vector in enumerate(vectors):
            to = b.add(at, _CODE_BYTES + number * _VECTOR_BYTES)
            b.store_tile(self.memory, vector, to, layout=Layout.parse("kn: n16@4"))

    def load_bytes(self, at: Value) -> ByteOperand:
        """Read it back."""
        b, groups = self.frame.b, self.codec.groups
        signed = is_signed(self.codec, self.frame.is_lifted)
        dtype = i8 if signed else u8
        codes = b.copy(self.memory, at, layout=Layout.parse(_CODES), dtype=dtype)
        found: list[Value] = []

        def vectors(count: int, dtype: DType) -> list[Value]:
            start = len(found)
            for number in range(start, start + count):
                to = b.add(at, _CODE_BYTES + number * _VECTOR_BYTES)
                layout = Layout.parse("kn: n16@4")
                found.append(b.copy(self.memory, to, layout=layout, dtype=dtype))
            return found[start:]

        scales = vectors(groups, f32)
        mins = vectors(groups, f32) if _keeps_mins(self.frame, self.codec) else None
        corrections = vectors(groups, i32) if signed else []
        return ByteOperand(codes, scales, mins, corrections)


def _keeps_mins(frame: Frame, codec: Codec) -> bool:
    return codec.has_min or (codec.zero != 0 and not is_signed(codec, frame.is_lifted))


def _num_vectors(frame: Frame, codec: Codec) -> int:
    return codec.groups * (1 + _keeps_mins(frame, codec) + is_signed(codec, frame.is_lifted))


def _chunk(frame: Frame) -> int:
    return _BYTE_CHUNK if frame.in_bytes else _FLOAT_CHUNK


def _slot_bytes(frame: Frame, codec: Codec) -> int:
    if not frame.in_bytes:
        return _VECTOR_BYTES * STEP
    return _CODE_BYTES + _VECTOR_BYTES * _num_vectors(frame, codec)


def blocked_columns(gated: bool) -> int:
    """Return the result columns of a workgroup."""
    return ROWS if gated else ROWS * _GROUPS


def build_blocked(frame: Frame) -> None:
    """Build the body over a grid of (column units, row blocks)."""
    b = frame.b
    codec = codec_of(frame.request.weight.source)
    chunk_steps = _chunk(frame)
    nbytes = _GROUPS * chunk_steps * _slot_bytes(frame, codec)
    slots = _Slots(frame=frame, codec=codec, memory=b.shared_alloc(u8, [nbytes]))
    planes = 2 if frame.has_residual else 1  # the second is that of the residuals
    sums = [b.shared_alloc(f32, [ROW_BLOCK, ROWS]) for _ in range(planes * _GROUPS)]
    # Formats with two groups a step want lifted activations: if need be, lifted here for all of the
    # weight rows.
    lifted: Value | None = None
    if frame.in_bytes and codec.groups > 1 and not frame.is_lifted:
        lifted = b.shared_alloc(u8, [_TILE_ROWS, chunk_steps * STEP])
    unit = b.workgroup_id(0)
    first = b.mul(b.workgroup_id(1), ROW_BLOCK)
    end = b.minimum(b.add(first, ROW_BLOCK), frame.m)
    marks: Marks | None = None
    if frame.has_residual:
        marks = open_marks(frame, (ROW_BLOCK, chunk_steps), first, end)
    steps = b.shr(frame.k, 5)
    zero = b.tile_zeros((_TILE_ROWS, ROWS), f32)
    for plane in sums:
        with b.for_(0, b.sub(end, first), _TILE_ROWS) as clear:
            b.store_tile(plane, zero, [clear.index, 0])
    with b.for_(0, steps, chunk_steps) as chunk:
        span = chunk.index, b.minimum(b.add(chunk.index, chunk_steps), steps)
        for group in range(_GROUPS):
            _decode_chunk(slots, unit, group, span)
        with b.for_(first, end, _TILE_ROWS) as loop:
            rows = frame.rows(loop.index, _TILE_ROWS)
            if lifted is not None:
                _lift_rows(slots, lifted, rows, span)
            place = [b.sub(loop.index, first), 0]
            _add_chunk(slots, _Scratch(sums[:_GROUPS], lifted), rows, place, span)
        if marks is not None:
            _add_residuals(slots, marks, sums[_GROUPS:], span)
    width = blocked_columns(frame.request.gated)
    with b.for_(first, end, _TILE_ROWS) as loop:
        row, column = b.sub(loop.index, first), b.mul(unit, width)
        parts = [_total(frame, sums[group::_GROUPS], row) for group in range(_GROUPS)]
        if frame.request.gated:
            frame.finish(parts, loop.index, column)
        else:
            for group, part in enumerate(parts):
                frame.finish([part], loop.index, b.add(column, group * ROWS))


def _total(frame: Frame, planes: list[Value], row: Value) -> Value:
    """Return the sums of a tile of rows, those of residuals added."""
    b = frame.b
    total, *lost = [b.copy(plane, [row, 0], (_TILE_ROWS, ROWS)) for plane in planes]
    return b.map(lambda x, y: b.add(x, y), total, lost[0]) if lost else total


def _add_residuals(
    slots: _Slots, marks: Marks, sums: list[Value], steps: tuple[Value, Value]
) -> None:
    """Add the residuals of a chunk, a few rows at a time: most have none at most steps."""
    b = slots.frame.b
    marks.note(steps)
    with marks.each(steps) as found:
        place = [found.row, 0]
        for group, plane in enumerate(sums):
            weights = slots.load_bytes(slots.address(group, found.number))
            rest = b.copy(plane, place, (MARKED_ROWS, ROWS), space="accumulator")
            rest = add_residual(b, slots.codec, weights, found.residual, rest)
            b.store_tile(plane, rest, place)


def _decode_chunk(slots: _Slots, unit: Value, part: int, steps: tuple[Value, Value]) -> None:
    frame, codec, b = slots.frame, slots.codec, slots.frame.b
    halves = 2 if frame.request.gated else 1
    num_groups = b.mul(b.floordiv(b.add(frame.n, ROWS - 1), ROWS), halves)
    reader = StepReader(b, frame.weight, codec)
    # A unit at the edge may have one group alone: the other repeats it and is not stored.
    group = b.minimum(b.add(b.mul(unit, _GROUPS), part), b.sub(num_groups, 1))
    base = b.mul(group, group_bytes(frame, codec))
    with b.for_(steps[0], steps[1]) as loop:
        header, start = reader.step_address(base, loop.index)
        for line in range(0, codec.step_bytes, 64):
            b.prefetch(frame.weight, b.add(start, PREFETCH_BYTES + line))
        step = reader.read(header, start)
        at = slots.address(part, b.sub(loop.index, steps[0]))
        if frame.in_bytes:
            slots.store_bytes(at, byte_operand(b, codec, step, is_lifted=frame.is_lifted))
        else:
            values = float_weights(b, codec, step)
            b.store_tile(slots.memory, values, at, layout=Layout.parse(_VALUES))


def _lift_rows(slots: _Slots, memory: Value, rows: Value, steps: tuple[Value, Value]) -> None:
    """Copy the codes of rows to scratch, lifted."""
    frame, b = slots.frame, slots.frame.b
    at_once = 2 if slots.codec.format.block_elements % (2 * STEP) == 0 else 1
    with b.for_(steps[0], steps[1], at_once) as loop:
        codes = frame.activation(0, rows, b.mul(loop.index, STEP), at_once * STEP)
        b.store_tile(memory, lift(b, codes), [0, b.mul(b.sub(loop.index, steps[0]), STEP)])


@dataclass(frozen=True, slots=True)
class _Scratch:
    """What a workgroup keeps of a block of rows.

    Attributes:
        sums: For each group of weight rows (rows, 16) f32 accumulators.
        lifted: (rows of a tile, k of a chunk) u8 activations, for formats that take them so; or None.
    """

    sums: list[Value]
    lifted: Value | None


def _add_chunk(
    slots: _Slots,
    scratch: _Scratch,
    rows: Value,
    place: list[Value | int],
    steps: tuple[Value, Value],
) -> None:
    """Add the products of a chunk to a tile of rows: one read of activations serves all groups."""
    frame, b = slots.frame, slots.frame.b
    shape = (_TILE_ROWS, ROWS)
    start = [b.copy(plane, place, shape, space="accumulator") for plane in scratch.sums]
    with b.pipeline(steps[0], steps[1], 1, start) as pipe:
        with pipe.load() as step:
            x = frame.step_activations(rows, step, b.mul(step, STEP))
            number = b.sub(step, steps[0])
            if scratch.lifted is not None:
                x[0] = b.copy(scratch.lifted, [0, b.mul(number, STEP)], (_TILE_ROWS, STEP))
            pipe.yield_(*x)
        with pipe.compute() as x:
            number = b.sub(pipe.index, steps[0])
            pipe.yield_(
                *(
                    _add_step(slots, slots.address(group, number), x, total)
                    for group, total in enumerate(pipe.carried)
                )
            )
    for plane, total in zip(scratch.sums, pipe.results, strict=True):
        b.store_tile(plane, total, place)


def _add_step(slots: _Slots, at: Value, x: list[Value], total: Value) -> Value:
    """Add the products of one step with the weights at an address."""
    b = slots.frame.b
    if slots.frame.in_bytes:
        values, _ = read_bytes(x)
        return add_bytes(b, slots.codec, slots.load_bytes(at), values, total)
    weights = b.copy(slots.memory, at, layout=Layout.parse(_VALUES), dtype=f32)
    return b.mma(x[0], weights, total, signature="fma_chain")
