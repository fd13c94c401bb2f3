"""The main kernel: scores, softmax and weighted values of one work item and kv head.

The arithmetic of a (query token, split) does not depend on the tile it is computed in: a score is one
ascending chain over the dims; the maximum is that of the whole split; exponentials are summed by
``key % lanes`` ascending and then by halving; a weighted value is one ascending chain over the keys.
Keys that another token of the tile needs are masked to a weight of 0, which changes no bit.

Pools of pairs are read as 32-bit words, each of which is one step of such a chain: a pair of dims of
scaled queries rounded to bf16, a pair of keys of weights cut to bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_core import DType, Target, bf16, dtype_by_name, f32, i32, i64, u8, u16, u32
from poot_kernel import IRBuilder, KernelFunction, Value
from poot_kernelgen.attention._exponential import LOG2_E, power_of_two
from poot_kernelgen.attention._shape import Blocking, choose_blocking
from poot_kernelgen.requests import AttendRequest

__all__ = ["attend_kernel"]

LOWEST = -3.0e38
"""Below every score; finite, so that a masked score's distance from it is no NaN."""


def attend_kernel(request: AttendRequest, target: Target, name: str) -> KernelFunction:
    """Return the main kernel; its grid is work items by kv heads."""
    return _Main(request, choose_blocking(request, target), name).build()


@dataclass(slots=True)
class _Span:
    """One chunk of rows of a work item and the keys that it covers, as index values.

    ``first_visible`` is the last key that its first token sees.
    """

    first_row: Value
    num_rows: Value
    first_visible: Value
    last_position: Value
    first_key: Value
    end_key: Value


class _Main:
    def __init__(self, request: AttendRequest, blocking: Blocking, name: str) -> None:
        self.request, self.k = request, blocking
        heads, key, value = request.num_heads, request.key, request.value
        self.pairs = key.pairs
        self.unit = 2 if key.pairs else 1  # elements of one index of a pool
        b = self.b = IRBuilder(name, level="lane", grid=["items", key.num_kv_heads])
        self.queries = b.array("queries", f32, [None, heads, key.head_dim])
        self.keys = b.array("keys", self._stored(key.dtype), [None], alignment=64)
        self.values = b.array("values", self._stored(value.dtype), [None], alignment=64)
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
        self.result = b.array("result", f32, [None, heads, value.head_dim], access="w")

    def _stored(self, dtype: str) -> DType:
        return u32 if self.pairs else dtype_by_name(dtype)

    def build(self) -> KernelFunction:
        b, k, request = self.b, self.k, self.request
        staged = u32 if self.pairs else f32
        self.staged = b.shared_alloc(staged, [k.chunk, request.key.head_dim // self.unit])
        self.scores = b.shared_alloc(f32, [k.chunk, k.stride])
        if self.pairs:
            self.weights = b.shared_alloc(u8, [k.chunk * k.stride * bf16.itemsize])
        self.sums = b.shared_alloc(f32, [k.chunk, 2])
        self.mixed = b.shared_alloc(f32, [k.chunk, request.value.head_dim])
        item, self.kv_head = b.workgroup_id(0), b.workgroup_id(1)
        fields = [self._integer(self.work, [item, field]) for field in range(4)]
        self.first_token, num_tokens, self.first_key, self.end_key = fields
        self.table_row = self._integer(self.rows, [self.first_token])
        self.split_start = b.mul(b.floordiv(self.first_key, request.split), request.split)
        if self._is_alone():
            following = b.minimum(b.add(item, 1), b.sub(b.grid_size(0), 1))
            self.next_row = self._integer(self.rows, [self._integer(self.work, [following, 0])])
            self.next_key = self._integer(self.work, [following, 2])
            next_end = self._integer(self.work, [following, 3])
            self.next_last_block = b.floordiv(b.sub(next_end, 1), request.key.block_size)
        num_rows = b.mul(num_tokens, k.group)
        with b.for_(0, num_rows, k.chunk) as loop:
            span = self._span(loop.index, num_rows)
            with b.if_(b.compare("lt", span.first_key, span.end_key)) as branch, branch.then():
                self._chunk(span)
        return b.finish()

    def _integer(self, memory: Value, indices: Sequence[Value | int]) -> Value:
        return self.b.convert(self.b.load(memory, indices), i64)

    def _token(self, row: Value) -> Value:
        """Return the index of a row's token."""
        return self.b.add(self.first_token, self.b.floordiv(row, self.k.group))

    def _head(self, row: Value) -> Value:
        b = self.b
        return b.add(b.mul(self.kv_head, self.k.group), b.mod(row, self.k.group))

    def _lowest_key(self, position: Value) -> Value:
        b, window = self.b, self.request.window
        if window is None:
            return b.constant(0)
        return b.maximum(b.sub(position, window - 1), 0)

    def _last_key(self, position: Value) -> Value:
        """Return the last key that a token at a position sees."""
        b, window = self.b, self.request.window
        if self.lengths is None:
            return position
        last = b.sub(self._integer(self.lengths, [self.table_row]), 1)
        return last if window is None else b.minimum(last, b.add(position, window - 1))

    def _span(self, first_row: Value, num_rows: Value) -> _Span:
        """Return a chunk: positions ascend, so its first and last token bound its keys."""
        b = self.b
        count = b.minimum(b.sub(num_rows, first_row), self.k.chunk)
        last_row = b.sub(b.add(first_row, count), 1)
        first = self._integer(self.positions, [self._token(first_row)])
        last = self._integer(self.positions, [self._token(last_row)])
        return _Span(
            first_row,
            count,
            self._last_key(first),
            last,
            b.maximum(self.first_key, self._lowest_key(first)),
            b.minimum(self.end_key, b.add(self._last_key(last), 1)),
        )

    def _chunk(self, span: _Span) -> None:
        b = self.b
        with b.for_(0, span.num_rows) as loop:
            self._stage(b.add(span.first_row, loop.index), loop.index)
        self._score(span)
        with b.for_(0, span.num_rows) as loop:
            if self.request.softcap is not None or self.request.alibi:
                self._bend(span, loop.index)
            self._mask(span, loop.index)
        # Two loops: one row's reductions run while the next row's vectors do.
        with b.for_(0, span.num_rows) as loop:
            self._find_largest(span, loop.index)
        with b.for_(0, span.num_rows) as loop:
            self._weigh(span, loop.index)
        self._mix(span)
        with b.for_(0, span.num_rows) as loop:
            self._finish(span, loop.index)

    def _stage(self, row: Value, index: Value) -> None:
        """Keep a row's scaled query, as pairs of bf16 if products take such."""
        b, factor, unit = self.b, self._query_factor(), self.unit
        token, head = self._token(row), self._head(row)
        with b.foreach(0, self.request.key.head_dim // unit) as dims:
            parts = [
                b.mul(
                    b.load(self.queries, [token, head, b.add(b.mul(dims.index, unit), half)]),
                    factor,
                )
                for half in range(unit)
            ]
            if self.pairs:
                low, high = (b.convert(b.bitcast(b.convert(x, bf16), u16), u32) for x in parts)
                parts = [b.or_(low, b.shl(high, b.constant(16, u32)))]
            b.store(self.staged, [index, dims.index], parts[0])

    def _block_start(self, block: Value, elements: int) -> Value:
        """Return where this kv head's part of a block of a pool starts."""
        b = self.b
        found = self._integer(self.tables, [self.table_row, block])
        place = b.add(b.mul(found, self.request.key.num_kv_heads), self.kv_head)
        return b.mul(place, elements // self.unit)

    def _splat(self, x: Value, count: int) -> Value:
        return x if count == 1 else self.b.splat(x, count)

    def _widen(self, x: Value) -> Value:
        return x if self.pairs else self.b.convert(x, f32)

    def _add_product(self, x: Value, y: Value, total: Value) -> Value:
        return self.b.dot2(x, y, total, bf16) if self.pairs else self.b.fma(x, y, total)

    # ---- scores

    def _score(self, span: _Span) -> None:
        if self.k.key_blocks == 1 and self.request.key.block_size % self._keys_at_once() == 0:
            self._score_vectors(span)
        else:
            self._score_blocks(span)

    def _keys_at_once(self) -> int:
        return self.k.lanes * self.k.key_count

    def _score_vectors(self, span: _Span) -> None:
        """Walk over vectors of keys within blocks: few keys are computed in vain at the end."""
        b, tokens, step = self.b, self.request.key.block_size, self._keys_at_once()
        first = b.mul(b.floordiv(span.first_key, step), step)
        with b.for_(first, span.end_key, step) as keys:
            block, offset = b.floordiv(keys.index, tokens), b.mod(keys.index, tokens)
            place = b.sub(keys.index, self.split_start)
            with b.foreach(0, self.k.lanes) as lanes:
                lane = b.mul(lanes.index, self.k.key_count)
                ahead = self._ahead([block], offset)
                self._score_keys([block], b.add(offset, lane), [b.add(place, lane)], ahead, step)

    def _score_blocks(self, span: _Span) -> None:
        b, k, tokens = self.b, self.k, self.request.key.block_size
        first = b.floordiv(span.first_key, tokens)
        end = b.floordiv(b.add(span.end_key, tokens - 1), tokens)
        with b.for_(first, end, k.key_blocks) as blocks:
            wanted = [
                b.minimum(b.add(blocks.index, step), b.sub(end, 1)) for step in range(k.key_blocks)
            ]
            place = b.sub(b.mul(blocks.index, tokens), self.split_start)
            with b.foreach(0, tokens // k.key_count) as keys:
                lane = b.mul(keys.index, k.key_count)
                places = [b.add(b.add(place, step * tokens), lane) for step in range(k.key_blocks)]
                self._score_keys(wanted, lane, places, self._ahead(wanted), tokens)

    def _score_keys(
        self,
        blocks: list[Value],
        lane: Value,
        places: list[Value],
        ahead: list[Value],
        num_ahead: int,
    ) -> None:
        """Store the scores of a vector of keys of some blocks; fetch values of ``num_ahead`` keys."""
        b, k, layout = self.b, self.k, self.request.key
        tokens, dim = layout.block_size, layout.head_dim // self.unit
        starts = [self._block_start(block, layout.head_dim * tokens) for block in blocks]
        zero = self._splat(b.constant(0.0), k.key_count)
        unroll = 1 if k.chunk >= 8 else 4  # many rows hide the loop; compiling them takes time
        with b.for_(0, dim, 1, [zero] * (k.chunk * len(blocks)), unroll=unroll) as dims:
            offset = b.add(b.mul(dims.index, tokens), lane)
            for start in ahead:  # a share of the block with each step
                share = num_ahead * self.request.value.head_dim // (dim * self.unit)
                b.prefetch(self.values, b.add(start, b.mul(dims.index, share)))
            dims.yield_(*self._score_step(starts, offset, dims.index, dims.carried))
        for step, place in enumerate(places):
            for row in range(k.chunk):
                b.store(self.scores, [row, place], dims.results[step * k.chunk + row])

    def _is_alone(self) -> bool:
        """Whether an item is one chunk, which reads its keys and values once, from far away."""
        return self.request.query_tile == 1 and self.k.group <= self.k.chunk

    def _ahead(self, blocks: list[Value], first: Value | None = None) -> list[Value]:
        """Return where values lie, from a key of each block on, to be fetched during its scores."""
        if not self._is_alone():
            return []
        b, value = self.b, self.request.value
        starts = [self._block_start(block, value.block_size * value.head_dim) for block in blocks]
        if first is None:
            return starts
        offset = b.floordiv(b.mul(first, value.head_dim), self.unit)
        return [b.add(start, offset) for start in starts]

    def _fetch_next_keys(self, key: Value) -> None:
        """Fetch keys of the next item while the values of this one are summed."""
        b, layout = self.b, self.request.key
        if not self._is_alone():
            return
        tokens, dim = layout.block_size, layout.head_dim
        words = dim // self.unit
        place = b.add(self.next_key, b.sub(key, self.first_key))
        block = b.minimum(b.floordiv(place, tokens), self.next_last_block)
        found = self._integer(self.tables, [self.next_row, block])
        start = b.mul(b.add(b.mul(found, layout.num_kv_heads), self.kv_head), words * tokens)
        start = b.add(start, b.mul(b.mod(place, tokens), words))
        line = 64 // self._stored(layout.dtype).itemsize
        for step in range(0, words * self.unit, line):  # as many keys as values are summed at once
            b.prefetch(self.keys, b.add(start, step))

    def _score_step(
        self, starts: list[Value], offset: Value, dim: Value, sums: list[Value]
    ) -> list[Value]:
        b, k = self.b, self.k
        queries = [
            self._splat(b.load(self.staged, [row, dim]), k.key_count) for row in range(k.chunk)
        ]
        result: list[Value] = []
        for step, start in enumerate(starts):
            key = self._widen(b.load(self.keys, b.add(start, offset), count=k.key_count))
            result += [
                self._add_product(query, key, sums[step * k.chunk + row])
                for row, query in enumerate(queries)
            ]
        return result

    # ---- softmax of one row

    def _query_factor(self) -> float:
        """Return the factor on queries: scores come out as exponents of 2, or as tanh takes them."""
        softcap, scale = self.request.softcap, self.request.scale
        return scale * LOG2_E if softcap is None else scale / softcap

    def _bend(self, span: _Span, index: Value) -> None:
        """Apply the softcap and the slope."""
        b, softcap = self.b, self.request.softcap
        row = b.add(span.first_row, index)
        position = self._integer(self.positions, [self._token(row)])
        slope = None
        if self.slopes is not None:
            slope = b.mul(b.load(self.slopes, self._head(row)), LOG2_E)
        start, end = self._vectors(span)
        with b.for_(start, end, self.k.lanes, unroll=2) as loop:
            at = b.add(loop.index, b.query("subgroup_lane"))
            score = b.load(self.scores, [index, at])
            if softcap is not None:
                score = b.mul(b.unary("tanh", score), softcap * LOG2_E)
            if slope is not None:
                distance = b.convert(b.sub(b.add(at, self.split_start), position), f32)
                score = b.add(score, b.mul(distance, slope))
            b.store(self.scores, [index, at], score)

    def _mask(self, span: _Span, index: Value) -> None:
        """Mask keys that this row's token does not see, in vectors that not all rows see whole."""
        b, k = self.b, self.k
        position = self._integer(self.positions, [self._token(b.add(span.first_row, index))])
        start, end = self._vectors(span)
        high = b.sub(b.add(self._last_key(position), 1), self.split_start)
        tail = b.maximum(start, self._vector_of(b.add(span.first_visible, 1)))
        self._mask_where("ge", high, index, tail, end)
        if self.request.window is not None:
            low = b.sub(self._lowest_key(position), self.split_start)
            last = b.add(self._lowest_key(span.last_position), k.lanes - 1)
            self._mask_where("lt", low, index, start, b.minimum(end, self._vector_of(last)))

    def _mask_where(self, test: str, bound: Value, index: Value, start: Value, end: Value) -> None:
        b, bound = self.b, self.b.convert(bound, i32)
        with b.for_(start, end, self.k.lanes) as loop:
            at = b.add(loop.index, b.query("subgroup_lane"))
            is_masked = b.compare(test, b.convert(at, i32), bound)
            score = b.load(self.scores, [index, at])
            score = b.select(is_masked, b.constant(float("-inf")), score)
            b.store(self.scores, [index, at], score)

    def _find_largest(self, span: _Span, index: Value) -> None:
        b = self.b
        start, end = self._vectors(span)
        with b.for_(start, end, self.k.lanes, [b.constant(LOWEST)], unroll=4) as loop:
            at = b.add(loop.index, b.query("subgroup_lane"))
            loop.yield_(b.maximum(loop.carried[0], b.load(self.scores, [index, at])))
        b.store(self.sums, [index, 0], b.workgroup_reduce(loop.result, "max"))

    def _weigh(self, span: _Span, index: Value) -> None:
        b = self.b
        start, end = self._vectors(span)
        largest = b.load(self.sums, [index, 0])
        with b.for_(start, end, self.k.lanes, [b.constant(0.0)], unroll=2) as loop:
            at = b.add(loop.index, b.query("subgroup_lane"))
            weight = power_of_two(b, b.sub(b.load(self.scores, [index, at]), largest))
            weight = self._keep_weight(index, at, weight)
            loop.yield_(b.add(loop.carried[0], weight))
        b.store(self.sums, [index, 1], b.workgroup_reduce(loop.result, "add"))

    def _keep_weight(self, index: Value, at: Value, weight: Value) -> Value:
        """Store a weight for ``_mix``; return what of it is summed."""
        b = self.b
        if not self.pairs:
            b.store(self.scores, [index, at], weight)
            return weight
        bits = b.bitcast(weight, u32)
        cut = b.convert(b.shr(bits, b.constant(16, u32)), u16)
        b.store(self.weights, self._weight_place(index, at), cut)
        return b.bitcast(b.and_(bits, b.constant(0xFFFF0000, u32)), f32)

    def _weight_place(self, index: Value | int, at: Value) -> Value:
        """Return the byte where a row's weight of a key of the split lies."""
        b = self.b
        return b.mul(b.add(b.mul(b.index(index), self.k.stride), at), bf16.itemsize)

    def _vector_of(self, key: Value) -> Value:
        """Return where in the split the vector that holds a key starts."""
        b, lanes = self.b, self.k.lanes
        return b.mul(b.floordiv(b.sub(key, self.split_start), lanes), lanes)

    def _vectors(self, span: _Span) -> tuple[Value, Value]:
        """Return the chunk's keys within the split, widened to whole vectors at fixed places."""
        end = self.b.add(span.end_key, self.k.lanes - 1)
        return self._vector_of(span.first_key), self._vector_of(end)

    # ---- weighted values

    def _mix(self, span: _Span) -> None:
        b, k, unit = self.b, self.k, self.unit
        first, end = b.floordiv(span.first_key, unit), b.floordiv(span.end_key, unit)
        with b.foreach(0, self.request.value.head_dim // k.value_count) as dims:
            lane = b.mul(dims.index, k.value_count)
            sums = [self._splat(b.constant(0.0), k.value_count)] * k.chunk
            with b.for_(first, end, 1, sums, unroll=1) as keys:
                self._fetch_next_keys(b.mul(keys.index, unit))
                keys.yield_(*self._mix_step(keys.index, lane, keys.carried))
            sums = keys.results
            if self.pairs:
                sums = self._mix_half(span, lane, sums)
            for row in range(k.chunk):
                b.store(self.mixed, [row, lane], sums[row])

    def _mix_half(self, span: _Span, lane: Value, sums: list[Value]) -> list[Value]:
        """Add the first key of a pair whose second is beyond the end: it may hold anything."""
        b = self.b
        with b.if_(b.compare("ne", b.mod(span.end_key, 2), 0)) as branch:
            with branch.then():
                branch.yield_(
                    *self._mix_step(b.floordiv(span.end_key, 2), lane, sums, is_half=True)
                )
            with branch.otherwise():
                branch.yield_(*sums)
        return branch.results

    def _mix_step(
        self, index: Value, lane: Value, sums: list[Value], *, is_half: bool = False
    ) -> list[Value]:
        """Return the sums and a key, or pair of keys, by its number, times its weights."""
        b, k, layout, unit = self.b, self.k, self.request.value, self.unit
        tokens, dim = layout.block_size // unit, layout.head_dim
        start = self._block_start(b.floordiv(index, tokens), dim * layout.block_size)
        start = b.add(start, b.mul(b.mod(index, tokens), dim))
        value = self._widen(b.load(self.values, b.add(start, lane), count=k.value_count))
        if is_half:
            value = b.and_(value, self._splat(b.constant(0xFFFF, u32), k.value_count))
        at = b.sub(b.mul(index, unit), self.split_start)
        if self.pairs:
            places = [self._weight_place(row, at) for row in range(k.chunk)]
            weights = [b.load(self.weights, place, dtype=u32) for place in places]
        else:
            weights = [b.load(self.scores, [row, at]) for row in range(k.chunk)]
        return [
            self._add_product(self._splat(weight, k.value_count), value, total)
            for weight, total in zip(weights, sums, strict=True)
        ]

    # ---- results

    def _finish(self, span: _Span, index: Value) -> None:
        b, split = self.b, self.request.split
        row = b.add(span.first_row, index)
        token, head = self._token(row), self._head(row)
        position = self._integer(self.positions, [token])
        lowest = self._lowest_key(position)
        begins = b.maximum(self.first_key, lowest)
        last_key = self._last_key(position)
        ends = b.minimum(self.end_key, b.add(last_key, 1))
        largest, total = b.load(self.sums, [index, 0]), b.load(self.sums, [index, 1])
        first, last = b.floordiv(lowest, split), b.floordiv(last_key, split)
        is_whole = b.compare("eq", first, last)
        with (
            b.if_(b.compare("lt", begins, ends)) as used,
            used.then(),
            b.if_(is_whole) as whole,
        ):
            with whole.then():
                self._store_result(index, token, head, largest, total)
            with whole.otherwise():
                part = b.sub(b.floordiv(begins, split), first)
                self._store_partial(index, token, head, part, largest, total)

    def _store_result(
        self, index: Value, token: Value, head: Value, largest: Value, total: Value
    ) -> None:
        b = self.b
        factor = b.constant(1.0)
        if self.sinks is not None:
            sink = b.mul(b.load(self.sinks, head), LOG2_E)
            overall = b.maximum(largest, sink)
            factor = power_of_two(b, b.sub(largest, overall))
            total = b.add(b.mul(total, factor), power_of_two(b, b.sub(sink, overall)))
        factor = b.div(factor, total)
        with b.foreach(0, self.request.value.head_dim) as dims:
            value = b.mul(b.load(self.mixed, [index, dims.index]), factor)
            b.store(self.result, [token, head, dims.index], value)

    def _store_partial(
        self, index: Value, token: Value, head: Value, part: Value, largest: Value, total: Value
    ) -> None:
        b, dim = self.b, self.request.value.head_dim
        place = b.add(b.mul(token, self.num_parts), part)
        place = b.mul(b.add(b.mul(place, self.request.num_heads), head), dim + 2)
        b.store(self.partials, place, largest)
        b.store(self.partials, b.add(place, 1), total)
        start = b.add(place, 2)
        with b.foreach(0, dim) as dims:
            value = b.load(self.mixed, [index, dims.index])
            b.store(self.partials, b.add(start, dims.index), value)
