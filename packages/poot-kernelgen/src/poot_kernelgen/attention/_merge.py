"""The merge kernel: partial results of a token's splits, combined in ascending order."""

from __future__ import annotations

from collections.abc import Callable

from poot_core import dtype_by_name, f32, i32, i64
from poot_kernel import IRBuilder, KernelFunction, Value
from poot_kernelgen.attention._exponential import LOG2_E
from poot_kernelgen.attention._exponential import power_of_two as host_power_of_two
from poot_kernelgen.attention._main import LOWEST
from poot_kernelgen.requests import AttendRequest

__all__ = ["merge_kernel"]


def merge_kernel(
    request: AttendRequest, name: str, threads: int | None = None, *, in_turn: bool = False
) -> KernelFunction:
    """Return the merge kernel; its grid is heads by tokens. ``threads`` share one on a GPU.

    Args:
        request: What is asked for.
        name: Of the kernel.
        threads: Invocations of a workgroup, on a GPU.
        in_turn: Whether splits are combined one after the other by the formula of
            ``MatrixAttention``, so that bits are those of an item that covers several.
    """
    heads, dim, split = request.num_heads, request.value.head_dim, request.split
    fastmath = ["approximate"] if in_turn else []
    b = IRBuilder(
        name, level="lane", grid=[heads, "tokens"], workgroup_size=threads, fastmath=fastmath
    )

    def power_of_two(b: IRBuilder, x: Value) -> Value:
        return host_power_of_two(b, x) if threads is None else b.unary("exp2", x)

    partials = b.array("partials", f32, [None])
    num_parts = b.scalar("parts")
    positions = b.array("positions", i32, ["tokens"])
    rows = None if request.causal else b.array("rows", i32, ["tokens"])
    lengths = None if request.causal else b.array("lengths", i32, [None])
    sinks = b.array("sinks", f32, [heads]) if request.sinks else None
    dtype = dtype_by_name(request.result_dtype)
    result = b.array("result", dtype, ["tokens", heads, dim], access="w")
    b.scalar("tokens")
    head, token = b.workgroup_id(0), b.workgroup_id(1)
    position = b.convert(b.load(positions, token), i64)
    lowest = b.constant(0)
    if request.window is not None:
        lowest = b.maximum(b.sub(position, request.window - 1), 0)
    last_key = position
    if rows is not None and lengths is not None:
        row = b.convert(b.load(rows, token), i64)
        last_key = b.sub(b.convert(b.load(lengths, row), i64), 1)
        if request.window is not None:
            last_key = b.minimum(last_key, b.add(position, request.window - 1))
    first, last = b.floordiv(lowest, split), b.floordiv(last_key, split)
    count = b.add(b.sub(last, first), 1)

    def place(part: Value) -> Value:
        row = b.add(b.mul(token, num_parts), part)
        return b.mul(b.add(b.mul(row, heads), head), dim + 2)

    if threads is not None and in_turn:
        _merge_in_turn(request, b, (partials, result), (token, head), (first, last), place)
        return b.finish()
    if threads is not None:
        _merge_together(request, b, (partials, result), (token, head), (first, last), place, sinks)
        return b.finish()
    with b.if_(b.compare("lt", first, last)) as branch, branch.then():
        sink = None if sinks is None else b.mul(b.load(sinks, head), LOG2_E)
        start = b.constant(float("-inf")) if sink is None else sink
        with b.for_(0, count, 1, [start]) as parts:
            largest = b.load(partials, place(parts.index))
            parts.yield_(b.maximum(parts.carried[0], largest))
        overall = parts.result
        with b.for_(0, count, 1, [b.constant(0.0)]) as parts:
            at = place(parts.index)
            factor = power_of_two(b, b.sub(b.load(partials, at), overall))
            weighted = b.mul(b.load(partials, b.add(at, 1)), factor)
            parts.yield_(b.add(parts.carried[0], weighted))
        total = parts.result
        if sink is not None:
            total = b.add(total, power_of_two(b, b.sub(sink, overall)))
        with b.foreach(0, dim) as dims:
            with b.for_(0, count, 1, [b.constant(0.0)]) as parts:
                at = place(parts.index)
                factor = power_of_two(b, b.sub(b.load(partials, at), overall))
                value = b.load(partials, b.add(b.add(at, 2), dims.index))
                parts.yield_(b.add(parts.carried[0], b.mul(value, factor)))
            b.store(result, [token, head, dims.index], b.div(parts.result, total))
    return b.finish()


_MOST_PARTS = 256
_AHEAD = 4


def _merge_together(
    request: AttendRequest,
    b: IRBuilder,
    memory: tuple[Value, Value],
    row: tuple[Value, Value],
    splits: tuple[Value, Value],
    place: Callable[[Value], Value],
    sinks: Value | None,
) -> None:
    """Merge by a workgroup: an invocation reads a part's facts, then each sums some dims.

    The planner's splits are few, at most 16 of a sequence.
    """
    partials, result = memory
    token, head = row
    factors = b.shared_alloc(f32, [_MOST_PARTS])
    weights = b.shared_alloc(f32, [_MOST_PARTS])
    count = b.minimum(b.add(b.sub(splits[1], splits[0]), 1), _MOST_PARTS)
    with b.foreach(0, count, [b.constant(float("-inf"))]) as parts:
        largest = b.load(partials, place(parts.index))
        b.store(factors, parts.index, largest)
        parts.yield_(b.maximum(parts.carried[0], largest))
    overall = b.workgroup_reduce(parts.result, "max")
    sink = None if sinks is None else b.mul(b.load(sinks, head), LOG2_E)
    if sink is not None:
        overall = b.maximum(overall, sink)
    b.barrier()
    with b.foreach(0, count) as parts:  # the parts that this invocation has stored
        factor = b.unary("exp2", b.sub(b.load(factors, parts.index), overall))
        b.store(factors, parts.index, factor)
        total = b.load(partials, b.add(place(parts.index), 1))
        b.store(weights, parts.index, b.mul(total, factor))
    b.barrier()
    with b.for_(0, count, 1, [b.constant(0.0)]) as parts:
        parts.yield_(b.add(parts.carried[0], b.load(weights, parts.index)))
    total = parts.result
    if sink is not None:
        total = b.add(total, b.unary("exp2", b.sub(sink, overall)))
    is_split = b.compare("lt", splits[0], splits[1])
    with b.foreach(0, request.value.head_dim) as dims:
        with b.for_(0, count, _AHEAD, [b.constant(0.0)]) as parts:
            turns: list[tuple[Value, Value]] = []
            for ahead in range(_AHEAD):
                part = b.add(parts.index, ahead)
                inside = b.compare("lt", part, count)
                at = b.add(b.add(place(part), 2), dims.index)
                turns.append((b.load(partials, at, mask=inside), b.minimum(part, b.sub(count, 1))))
            found = parts.carried[0]
            for value, part in turns:
                found = b.add(found, b.mul(value, b.load(factors, part)))
            parts.yield_(found)
        quotient = b.div(parts.result, total)
        quotient = b.convert(quotient, dtype_by_name(request.result_dtype))
        b.store(result, [token, head, dims.index], quotient, mask=is_split)


def _merge_in_turn(
    request: AttendRequest,
    b: IRBuilder,
    memory: tuple[Value, Value],
    row: tuple[Value, Value],
    splits: tuple[Value, Value],
    place: Callable[[Value], Value],
) -> None:
    """Merge by a workgroup, one split after the other: the largest score so far is the base."""
    partials, result = memory
    token, head = row
    tops = b.shared_alloc(f32, [_MOST_PARTS])
    sums = b.shared_alloc(f32, [_MOST_PARTS])
    count = b.minimum(b.add(b.sub(splits[1], splits[0]), 1), _MOST_PARTS)
    with b.foreach(0, count) as parts:
        at = place(parts.index)
        b.store(tops, parts.index, b.load(partials, at))
        b.store(sums, parts.index, b.load(partials, b.add(at, 1)))
    b.barrier()
    is_split = b.compare("lt", splits[0], splits[1])
    with b.foreach(0, request.value.head_dim) as dims:
        initial = [b.constant(LOWEST), b.constant(0.0), b.constant(0.0)]
        with b.for_(0, count, _AHEAD, initial) as parts:
            turns: list[tuple[Value, Value, Value]] = []
            for ahead in range(_AHEAD):
                part = b.add(parts.index, ahead)
                inside = b.compare("lt", part, count)
                at = b.add(b.add(place(part), 2), dims.index)
                turns.append((b.load(partials, at, mask=inside), part, inside))
            top, total, mixed = parts.carried
            for value, part, inside in turns:
                own = b.minimum(part, b.sub(count, 1))
                # What lies behind the last split changes nothing.
                new_top = b.select(inside, b.load(tops, own), b.constant(LOWEST))
                largest = b.maximum(top, new_top)
                old, new = (b.unary("exp2", b.sub(x, largest)) for x in (top, new_top))
                total = b.fma(total, old, b.mul(b.load(sums, own), new))
                mixed = b.fma(mixed, old, b.mul(value, new))
                top = largest
            parts.yield_(top, total, mixed)
        quotient = b.convert(
            b.div(parts.results[2], parts.results[1]), dtype_by_name(request.result_dtype)
        )
        b.store(result, [token, head, dims.index], quotient, mask=is_split)
