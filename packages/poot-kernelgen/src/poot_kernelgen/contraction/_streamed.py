"""Kernels that decode weights in registers: one, few and some rows, and dense weights at any number.

A workgroup owns 16 result columns and walks its rows in small tiles; the weight stream of a column
group is read once from memory and again from the cache.
"""

from __future__ import annotations

from poot_core import f32, i32
from poot_kernel import Value
from poot_kernelgen.contraction._codec import ROWS, STEP, Codec, codec_of, dense_bytes, is_dense
from poot_kernelgen.contraction._decode import Step, StepReader
from poot_kernelgen.contraction._kernel import Frame
from poot_kernelgen.contraction._shapes import shape_of
from poot_kernelgen.contraction._sums import (
    ByteOperand,
    ByteResidual,
    add_bytes,
    add_residual,
    byte_operand,
    dense_tile,
    float_weights,
    read_bytes,
)

__all__ = ["PREFETCH_BYTES", "build_streamed"]

PREFETCH_BYTES = 2560
"""How far ahead of compute-bound tiles the weight stream is fetched."""

_DENSE_STEP = 16


def build_streamed(frame: Frame, tile_rows: tuple[int, ...], row_block: int | None) -> None:
    """Build the body.

    Args:
        frame: The kernel, its grid being column groups and, with ``row_block``, blocks of rows.
        tile_rows: Sizes of row tiles, ascending: rows that fit one of the smaller ones use it.
        row_block: Rows of a workgroup; None for all.
    """
    b = frame.b
    # Sums of residuals are in scratch: few steps touch them, and registers are for the others.
    rest = b.shared_alloc(f32, [max(tile_rows), ROWS]) if frame.has_residual else None
    group = b.workgroup_id(0)
    start: Value | int = 0
    end = frame.m
    if row_block is not None:
        start = b.mul(b.workgroup_id(1), row_block)
        end = b.minimum(b.add(start, row_block), frame.m)

    def walk(count: int) -> None:
        with b.for_(start, end, count) as loop:
            _tile(frame, rest, group, loop.index, count)

    def choose(sizes: tuple[int, ...]) -> None:
        if len(sizes) == 1:
            walk(sizes[0])
            return
        with b.if_(b.compare("le", frame.m, sizes[0])) as branch:
            with branch.then():
                walk(sizes[0])
            with branch.otherwise():
                choose(sizes[1:])

    choose(tile_rows)


def _tile(frame: Frame, rest: Value | None, group: Value, row: Value, count: int) -> None:
    b = frame.b
    rows = frame.rows(row, count)
    halves = 2 if frame.request.gated else 1
    sums = [
        _accumulate(frame, rest, b.add(b.mul(group, halves), half), rows, count)
        for half in range(halves)
    ]
    frame.finish(sums, row, b.mul(group, ROWS))


def _accumulate(frame: Frame, rest: Value | None, group: Value, rows: Value, count: int) -> Value:
    source = frame.request.weight.source
    if is_dense(source):
        return _accumulate_dense(frame, source, group, rows, count)
    codec = codec_of(source)
    b = frame.b
    base = b.mul(group, group_bytes(frame, codec))
    reader = StepReader(b, frame.weight, codec)
    start = b.tile_zeros((count, ROWS), f32)
    if rest is not None:
        b.store_tile(rest, start, [0, 0])
    with b.pipeline(0, b.shr(frame.k, 5), 1, [start]) as pipe:
        with pipe.load() as step:
            header, at = reader.step_address(base, step)
            if count >= 8:
                for line in range(0, codec.step_bytes, 64):
                    b.prefetch(frame.weight, b.add(at, PREFETCH_BYTES + line))
            decoded = reader.read(header, at)
            column = b.mul(step, STEP)
            x = frame.step_activations(rows, step, column)
            x += frame.step_residuals(rows, step, column)
            pipe.yield_(decoded.codes, *decoded.scales, *(decoded.mins or []), *x)
        with pipe.compute() as tiles:
            step_tiles, x_tiles = tiles[: len(tiles) - len(x)], tiles[len(tiles) - len(x) :]
            again = _regroup(codec, step_tiles)
            acc = pipe.carried[0]
            if frame.in_bytes:
                operand = byte_operand(b, codec, again, is_lifted=frame.is_lifted)
                values, residual = read_bytes(x_tiles)
                acc = add_bytes(b, codec, operand, values, acc)
                if rest is not None and residual is not None:
                    _add_where_some(frame, codec, operand, residual, rest)
            else:
                acc = b.mma(x_tiles[0], float_weights(b, codec, again), acc, signature="fma_chain")
            pipe.yield_(acc)
    if rest is None:
        return pipe.result
    lost = b.copy(rest, [0, 0], (count, ROWS))
    return b.map(lambda total, r: b.add(total, r), pipe.result, lost)


def _add_where_some(
    frame: Frame, codec: Codec, weights: ByteOperand, x: ByteResidual, rest: Value
) -> None:
    """Add the residuals of a tile to their sums if some row has one."""
    b = frame.b
    count = shape_of(x.scales)[0]
    bits = b.reduce(b.map(lambda v: b.bitcast(v, i32), x.scales), 0, "or")
    with b.if_(b.compare("ne", b.tile_element(bits, (0, 0)), 0)) as branch, branch.then():
        sums = b.copy(rest, [0, 0], (count, ROWS), space="accumulator")
        b.store_tile(rest, add_residual(b, codec, weights, x, sums), [0, 0])


def _regroup(codec: Codec, tiles: list[Value]) -> Step:
    scales = tiles[1 : 1 + codec.groups]
    mins = tiles[1 + codec.groups :] if codec.has_min else None
    return Step(scales, mins, tiles[0])


def group_bytes(frame: Frame, codec: Codec) -> Value:
    """Return the bytes of one group of 16 rows."""
    b = frame.b
    if codec.kind == "super":
        return b.mul(b.shr(frame.k, 8), codec.block_bytes)
    return b.mul(b.shr(frame.k, 5), codec.step_bytes)


def _accumulate_dense(frame: Frame, source: str, group: Value, rows: Value, count: int) -> Value:
    b = frame.b
    pairs = frame.request.activation == "bf16"
    signature = "pair_chain" if pairs else "fma_chain"
    # Pairs of k are stored together: an odd K is padded with a zero weight.
    padded = b.and_(b.add(frame.k, 1), -2) if source == "bf16" else frame.k
    nbytes = b.mul(padded, ROWS * dense_bytes(source))
    base = b.mul(group, nbytes)
    whole = b.and_(frame.k, -_DENSE_STEP)
    start = b.tile_zeros((count, ROWS), f32)
    with b.pipeline(0, whole, _DENSE_STEP, [start]) as pipe:
        with pipe.load() as k:
            w = dense_tile(frame, source, base, k, _DENSE_STEP, 1, nbytes)
            pipe.yield_(w, frame.activation(0, rows, k, _DENSE_STEP))
        with pipe.compute() as (w, x):
            pipe.yield_(b.mma(x, w, pipe.carried[0], signature=signature))
    single = 2 if source == "bf16" else 1
    with b.for_(whole, b.and_(frame.k, -single), single, [pipe.result]) as tail:
        w = dense_tile(frame, source, base, tail.index, single, 1, nbytes)
        x = frame.activation(0, rows, tail.index, single)
        tail.yield_(b.mma(x, w, tail.carried[0], signature=signature))
    return tail.result
