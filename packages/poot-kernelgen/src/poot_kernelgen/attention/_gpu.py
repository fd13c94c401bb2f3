"""The main kernel for GPUs: keys are invocations for scores, dims are invocations for values.

A workgroup takes one work item and kv head, (token, head) rows in chunks. As on the host the arithmetic
of a (query token, split) does not depend on the tile it is computed in: a score is one ascending chain
over the dims; exponentials are summed by ``key % threads`` ascending and then over the workgroup; a
weighted value is a chain over every V-th key, ascending, and the V chains are added in order. Keys count
from the start of the split. Masked keys weigh 0, which changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from poot_core import DeviceCaps, UnsupportedError, dtype_by_name, f32, i32, i64
from poot_kernel import IRBuilder, KernelFunction, Value
from poot_kernelgen.attention._exponential import LOG2_E
from poot_kernelgen.attention._main import LOWEST
from poot_kernelgen.requests import AttendRequest

__all__ = ["gpu_attend_kernel", "gpu_blocking"]

_MOST_CHAINS = 64
_NARROW = 16
"""Subgroups below this are those of processors: few registers, slow compilers, costly barriers."""
_THREADS = {True: 64, False: 256}
_MOST_ROWS = {True: 4, False: 8}
_UNROLL = {True: 2, False: 8}
_UNROLL_ALONE = 16
"""Where an item is one token its rows are few. More would not pay: code is fetched from afar too."""


@dataclass(frozen=True, slots=True)
class GpuBlocking:
    """Sizes of one kernel.

    Attributes:
        threads: Invocations of a workgroup; part of the arithmetic.
        group: Query heads that share a kv head.
        chunk: Rows that are computed together; results do not depend on it.
        value_chains: Chains that a value's sum is cut into.
        unroll: Dims of a key, or keys of a chain of values, that are loaded before they are added.
    """

    threads: int
    group: int
    chunk: int
    value_chains: int
    unroll: int


def gpu_blocking(request: AttendRequest, caps: DeviceCaps) -> GpuBlocking:
    """Return the blocking for a request.

    Raises:
        UnsupportedError: If heads, layouts, the split or workgroup memory do not fit together.
    """
    key, value = request.key, request.value
    if request.num_heads % key.num_kv_heads:
        raise UnsupportedError(
            f"attention of {request.num_heads} heads over {key.num_kv_heads} kv heads is uneven"
        )
    if key.num_kv_heads != value.num_kv_heads or key.block_size != value.block_size:
        raise UnsupportedError(f"key and value pools differ in heads or block size: {key}, {value}")
    if request.split % key.block_size:
        raise UnsupportedError(
            f"split {request.split} is no multiple of the block size {key.block_size}"
        )
    is_narrow = caps.subgroup_size < _NARROW
    threads = max(caps.subgroup_size, min(_THREADS[is_narrow], caps.max_workgroup))
    chains = math.gcd(_MOST_CHAINS, key.block_size)
    while chains * value.head_dim > threads and chains > 1:
        chains //= 2
    group = request.num_heads // key.num_kv_heads
    rows = min(_MOST_ROWS[is_narrow], request.query_tile * group)
    blocks_bytes = 4 * (request.split // key.block_size)
    row_bytes = 4 * (key.head_dim + request.split + chains * value.head_dim)
    # Beside them stand the partial results of reductions, a row of numbers for each subgroup.
    free = caps.shared_bytes - 4 * rows * (threads // caps.subgroup_size) - blocks_bytes - 1024
    rows = min(rows, free // row_bytes)
    if rows < 1:
        raise UnsupportedError(
            f"attention over {request.split} keys and dims of {key.head_dim} and {value.head_dim} "
            f"needs {row_bytes} bytes of workgroup memory, the device has {caps.shared_bytes}"
        )
    is_alone = request.query_tile == 1 and not is_narrow
    unroll = _UNROLL_ALONE if is_alone else _UNROLL[is_narrow]
    return GpuBlocking(threads, group, rows, chains, unroll)


def gpu_attend_kernel(request: AttendRequest, blocking: GpuBlocking, name: str) -> KernelFunction:
    """Return the main kernel; its grid is work items by kv heads."""
    return _Main(request, blocking, name).build()


@dataclass(frozen=True, slots=True)
class _Row:
    """One (token, head) row of a chunk: uniform values."""

    token: Value
    head: Value
    position: Value
    lowest: Value
    last: Value


class _Main:
    def __init__(self, request: AttendRequest, blocking: GpuBlocking, name: str) -> None:
        self.request, self.k = request, blocking
        heads, key, value = request.num_heads, request.key, request.value
        b = self.b = IRBuilder(
            name, level="lane", grid=["items", key.num_kv_heads], workgroup_size=blocking.threads
        )
        self.queries = b.array("queries", f32, [None, heads, key.head_dim])
        self.keys = b.array("keys", dtype_by_name(key.dtype), [None], alignment=64)
        self.values = b.array("values", dtype_by_name(value.dtype), [None], alignment=64)
        self.positions = b.array("positions", i32, [None])
        self.rows = b.array("rows", i32, [None])
        self.tables = b.array("tables", i32, [None, "table_blocks"])
        self.work = b.array("work", i32, ["items", 4])
        b.scalar("items")
        b.scalar("table_blocks")
        self.lengths = None if request.causal else b.array("lengths", i32, [None])
        self.sinks = b.array("sinks", f32, [heads]) if request.sinks else None
        self.slopes = b.array("slopes", f32, [heads]) if request.alibi else None
        self.partials = b.array("partials", f32, [None], access="w")
        self.num_parts = b.scalar("parts")
        self.dtype = dtype_by_name(request.result_dtype)
        self.result = b.array("result", self.dtype, [None, heads, value.head_dim], access="w")

    def build(self) -> KernelFunction:
        b, k, request = self.b, self.k, self.request
        self.staged = b.shared_alloc(f32, [k.chunk, request.key.head_dim])
        self.scores = b.shared_alloc(f32, [k.chunk, request.split])
        self.mixed = b.shared_alloc(f32, [k.value_chains, k.chunk, request.value.head_dim])
        self.blocks = b.shared_alloc(i32, [request.split // request.key.block_size])
        item, self.kv_head = b.workgroup_id(0), b.workgroup_id(1)
        fields = [self._integer(self.work, [item, field]) for field in range(4)]
        self.first_token, num_tokens, self.first_key, self.end_key = fields
        self.table_row = self._integer(self.rows, [self.first_token])
        split = b.floordiv(self.first_key, request.split)
        self.split_start = b.mul(split, request.split)
        self.begin = b.sub(self.first_key, self.split_start)
        self.end = b.sub(self.end_key, self.split_start)
        self._find_blocks()
        num_rows = b.mul(num_tokens, k.group)
        with b.for_(0, num_rows, k.chunk) as loop:
            self._chunk(loop.index, num_rows)
        return b.finish()

    def _find_blocks(self) -> None:
        """Copy the split's part of the block table; a barrier follows before it is read."""
        b, tokens = self.b, self.request.key.block_size
        first = b.floordiv(self.split_start, tokens)
        begin, end = self._block_range()
        with b.foreach(begin, end) as loop:
            found = b.load(self.tables, [self.table_row, b.add(loop.index, first)])
            b.store(self.blocks, loop.index, found)

    def _block_range(self) -> tuple[Value, Value]:
        """Return the blocks of the split that hold the item's keys."""
        b, tokens = self.b, self.request.key.block_size
        return b.floordiv(self.begin, tokens), b.floordiv(b.add(self.end, tokens - 1), tokens)

    def _integer(self, memory: Value, indices: Sequence[Value | int]) -> Value:
        return self.b.convert(self.b.load(memory, indices), i64)

    def _row(self, number: Value) -> _Row:
        b = self.b
        token = b.add(self.first_token, b.floordiv(number, self.k.group))
        head = b.add(b.mul(self.kv_head, self.k.group), b.mod(number, self.k.group))
        position = self._integer(self.positions, [token])
        return _Row(token, head, position, self._lowest_key(position), self._last_key(position))

    def _lowest_key(self, position: Value) -> Value:
        b, window = self.b, self.request.window
        if window is None:
            return b.constant(0)
        return b.maximum(b.sub(position, window - 1), 0)

    def _last_key(self, position: Value) -> Value:
        b, window = self.b, self.request.window
        if self.lengths is None:
            return position
        last = b.sub(self._integer(self.lengths, [self.table_row]), 1)
        return last if window is None else b.minimum(last, b.add(position, window - 1))

    def _chunk(self, first: Value, num_rows: Value) -> None:
        b, k = self.b, self.k
        last = b.sub(num_rows, 1)
        # Rows beyond the item repeat its last one and are not stored.
        rows = [self._row(b.minimum(b.add(first, i), last)) for i in range(k.chunk)]
        b.barrier()  # the chunk before may still be read
        self._stage(first, last)
        b.barrier()
        largest = self._score(rows)
        total = self._weigh(rows, largest)
        b.barrier()
        self._mix()
        b.barrier()
        for index, row in enumerate(rows):
            number = b.add(first, index)
            facts = b.extract(largest, index), b.extract(total, index)
            with b.if_(b.compare("lt", number, num_rows)) as branch, branch.then():
                self._finish(index, row, *facts)

    def _stage(self, first: Value, last: Value) -> None:
        """Copy the chunk's queries, scaled so that scores are exponents of 2 or what tanh takes."""
        b, k, dim = self.b, self.k, self.request.key.head_dim
        with b.foreach(0, k.chunk * dim) as loop:
            index, place = b.floordiv(loop.index, dim), b.mod(loop.index, dim)
            number = b.minimum(b.add(first, index), last)
            token = b.add(self.first_token, b.floordiv(number, k.group))
            head = b.add(b.mul(self.kv_head, k.group), b.mod(number, k.group))
            element = b.load(self.queries, [token, head, place])
            b.store(self.staged, [index, place], b.mul(element, self._query_factor()))

    def _query_factor(self) -> float:
        softcap, scale = self.request.softcap, self.request.scale
        return scale * LOG2_E if softcap is None else scale / softcap

    def _block_start(self, block: Value, elements: int) -> Value:
        """Return where this kv head's part of a block of the split starts in a pool."""
        b = self.b
        found = self._integer(self.blocks, [block])
        place = b.add(b.mul(found, self.request.key.num_kv_heads), self.kv_head)
        return b.mul(place, elements)

    def _is_visible(self, key: Value, row: _Row) -> Value:
        b = self.b
        visible = b.compare("le", key, row.last)
        if self.request.window is not None:
            visible = b.and_(visible, b.compare("ge", key, row.lowest))
        return visible

    def _first_own(self) -> Value:
        """Return where dealing the split's keys starts: key j belongs to invocation j modulo all."""
        b, threads = self.b, self.k.threads
        if threads % self.request.key.block_size:
            return b.constant(0)
        return b.mul(b.floordiv(self.begin, threads), threads)

    def _score(self, rows: list[_Row]) -> Value:
        """Store the scores of the chunk and return the rows' largest, a vector."""
        b, k, layout = self.b, self.k, self.request.key
        tokens, dim = layout.block_size, layout.head_dim
        lowest = b.splat(b.constant(LOWEST), k.chunk)
        with b.foreach(self._first_own(), self.end, [lowest]) as keys:
            place = b.maximum(keys.index, self.begin)  # earlier keys are computed in vain
            key = b.add(self.split_start, place)
            block = self._block_start(b.floordiv(place, tokens), dim * tokens)
            base = b.add(block, b.mod(place, tokens))
            zero = [b.constant(0.0)] * k.chunk
            step = next(n for n in (k.unroll, 16, 8, 4, 2, 1) if n <= k.unroll and dim % n == 0)
            with b.for_(0, dim, step, zero) as dims:
                at = b.add(base, b.mul(dims.index, tokens))
                elements = [
                    b.load(self.keys, b.add(at, n * tokens) if n else at) for n in range(step)
                ]
                wide = [b.convert(element, f32) for element in elements]
                totals = list(dims.carried)
                for index in range(k.chunk):
                    for n, query in enumerate(self._queries(index, dims.index, step)):
                        totals[index] = b.fma(query, wide[n], totals[index])
                dims.yield_(*totals)
            is_wanted = b.compare("ge", keys.index, self.begin)
            found: list[Value] = []
            for index, (score, row) in enumerate(zip(dims.results, rows, strict=True)):
                bent = self._bent(score, key, row)
                seen = b.and_(self._is_visible(key, row), is_wanted)
                masked = b.select(seen, bent, b.constant(LOWEST))
                b.store(self.scores, [index, place], masked, mask=is_wanted)
                found.append(b.maximum(b.extract(keys.carried[0], index), masked))
            keys.yield_(b.vector_build(*found))
        return b.workgroup_reduce(keys.result, "max")

    def _queries(self, index: int, dim: Value, count: int) -> list[Value]:
        """Return neighbouring elements of a staged query, four at a time where they fit."""
        b = self.b
        if count % 4:
            places = [b.add(dim, n) if n else dim for n in range(count)]
            return [b.load(self.staged, [index, place]) for place in places]
        found: list[Value] = []
        for first in range(0, count, 4):
            place = b.add(dim, first) if first else dim
            quad = b.load(self.staged, [index, place], count=4, alignment=16)
            found += [b.extract(quad, n) for n in range(4)]
        return found

    def _bent(self, score: Value, key: Value, row: _Row) -> Value:
        """Apply the softcap and the slope."""
        b, softcap = self.b, self.request.softcap
        if softcap is not None:
            score = b.mul(b.unary("tanh", score), softcap * LOG2_E)
        if self.slopes is not None:
            slope = b.mul(b.load(self.slopes, row.head), LOG2_E)
            distance = b.convert(b.sub(key, row.position), f32)
            score = b.fma(slope, distance, score)
        return score

    def _weigh(self, rows: list[_Row], largest: Value) -> Value:
        """Turn scores into weights, 0 for the other keys of the blocks; return the rows' sums."""
        b, k = self.b, self.k
        _, end_block = self._block_range()
        end = b.mul(end_block, self.request.key.block_size)
        zero = b.splat(b.constant(0.0), k.chunk)
        with b.foreach(self._first_own(), end, [zero]) as keys:
            place = keys.index
            is_wanted = b.and_(b.compare("ge", place, self.begin), b.compare("lt", place, self.end))
            key = b.add(self.split_start, place)
            found: list[Value] = []
            for index, row in enumerate(rows):
                score = b.load(self.scores, [index, place], mask=is_wanted)
                power = b.unary("exp2", b.sub(score, b.extract(largest, index)))
                seen = b.and_(self._is_visible(key, row), is_wanted)
                weight = b.select(seen, power, b.constant(0.0))
                b.store(self.scores, [index, place], weight)
                found.append(b.add(b.extract(keys.carried[0], index), weight))
            keys.yield_(b.vector_build(*found))
        return b.workgroup_reduce(keys.result, "add")

    def _mix(self) -> None:
        """Sum weighted values: an invocation takes a dim of one chain of keys."""
        b, k, layout = self.b, self.k, self.request.value
        tokens, dim, chains = layout.block_size, layout.head_dim, k.value_chains
        with b.foreach(0, chains * dim) as items:
            chain, place = (
                (b.constant(0), items.index)
                if chains == 1
                else (b.floordiv(items.index, dim), b.mod(items.index, dim))
            )
            zero = [b.constant(0.0)] * k.chunk
            begin, end = self._block_range()
            share = tokens // chains
            step = next(n for n in range(min(k.unroll, share), 0, -1) if share % n == 0)
            with b.for_(begin, end, 1, zero) as blocks:
                start = self._block_start(blocks.index, dim * tokens)
                start = b.add(b.add(start, b.mul(chain, dim)), place)
                first = b.add(b.mul(blocks.index, tokens), chain)
                with b.for_(0, tokens, step * chains, blocks.carried) as keys:
                    at = b.add(first, keys.index)
                    source = b.add(start, b.mul(keys.index, dim))
                    values = [self._value(source, at, n * chains) for n in range(step)]
                    totals = list(keys.carried)
                    for n, value in enumerate(values):
                        for index in range(k.chunk):
                            weight = b.load(self.scores, [index, b.add(at, n * chains)])
                            totals[index] = b.fma(weight, value, totals[index])
                    keys.yield_(*totals)
                blocks.yield_(*keys.results)
            for index, total in enumerate(blocks.results):
                b.store(self.mixed, [chain, index, place], total)

    def _value(self, source: Value, place: Value, ahead: int) -> Value:
        """Return an element of the value ``ahead`` keys on, 0 where that is not the item's."""
        b = self.b
        key = b.add(place, ahead)
        value = b.load(self.values, b.add(source, ahead * self.request.value.head_dim))
        inside = b.and_(b.compare("ge", key, self.begin), b.compare("lt", key, self.end))
        return b.select(inside, b.convert(value, f32), b.constant(0.0))

    # ---- results

    def _finish(self, index: int, row: _Row, largest: Value, total: Value) -> None:
        b, split = self.b, self.request.split
        begins = b.maximum(self.first_key, row.lowest)
        ends = b.minimum(self.end_key, b.add(row.last, 1))
        first, last = b.floordiv(row.lowest, split), b.floordiv(row.last, split)
        with (
            b.if_(b.compare("lt", begins, ends)) as used,
            used.then(),
            b.if_(b.compare("eq", first, last)) as whole,
        ):
            with whole.then():
                self._store_result(index, row, largest, total)
            with whole.otherwise():
                part = b.sub(b.floordiv(begins, split), first)
                self._store_partial(index, row, part, largest, total)

    def _mixed_value(self, index: int, dim: Value) -> Value:
        b = self.b
        total = b.load(self.mixed, [0, index, dim])
        for chain in range(1, self.k.value_chains):
            total = b.add(total, b.load(self.mixed, [chain, index, dim]))
        return total

    def _store_result(self, index: int, row: _Row, largest: Value, total: Value) -> None:
        b = self.b
        factor = b.constant(1.0)
        if self.sinks is not None:
            sink = b.mul(b.load(self.sinks, row.head), LOG2_E)
            overall = b.maximum(largest, sink)
            factor = b.unary("exp2", b.sub(largest, overall))
            total = b.add(b.mul(total, factor), b.unary("exp2", b.sub(sink, overall)))
        factor = b.div(factor, total)
        with b.foreach(0, self.request.value.head_dim) as dims:
            value = b.mul(self._mixed_value(index, dims.index), factor)
            value = b.convert(value, self.dtype)
            b.store(self.result, [row.token, row.head, dims.index], value)

    def _store_partial(
        self, index: int, row: _Row, part: Value, largest: Value, total: Value
    ) -> None:
        b, dim = self.b, self.request.value.head_dim
        place = b.add(b.mul(row.token, self.num_parts), part)
        place = b.mul(b.add(b.mul(place, self.request.num_heads), row.head), dim + 2)
        with b.foreach(0, dim) as dims:
            value = self._mixed_value(index, dims.index)
            b.store(self.partials, b.add(b.add(place, 2), dims.index), value)
        b.store(self.partials, place, largest)
        b.store(self.partials, b.add(place, 1), total)
