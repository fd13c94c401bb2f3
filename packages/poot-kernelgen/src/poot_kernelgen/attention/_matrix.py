"""The main kernel on matrix instructions: parts of 64 keys, combined in ascending order.

Scores are products of groups of 16 dims, weighted values products of groups of 16 keys. A part's
keys stand at absolute multiples of 64: its largest score, the sum of its powers and its weighted
values follow from the part alone, and parts are combined in order by one formula. So a row has the
same bits whatever tile it is computed in. Keys that a row does not see weigh 0, and a part without
any changes no bit.

A single token a row (decoding): subgroups share the parts of an item and hand their results to the
first, which combines them. More tokens: rows are shared, and parts follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_core import DeviceCaps, Target, dtype_by_name, f32, i32, i64
from poot_kernel import IRBuilder, KernelFunction, Value
from poot_kernelgen.attention._exponential import LOG2_E
from poot_kernelgen.attention._main import LOWEST
from poot_kernelgen.requests import AttendRequest

__all__ = ["PART", "MatrixAttention", "matrix_attend_kernel", "suits_matrix_attention"]

_FEATURE = "mma-k16"
PART = 64
"""Keys of a part."""

FLOOR = -1e38
"""Above ``LOWEST`` and below every score of use: the power of a masked score is 0 beside it."""

_STAGE_BYTES = 96 << 10  # of workgroup memory for keys and values on their way


def suits_matrix_attention(request: AttendRequest, target: Target, caps: DeviceCaps) -> bool:
    """Whether this kernel answers a request: plain attention over 16-bit pools of even sizes."""
    key, value = request.key, request.value
    sizes = (key.head_dim, value.head_dim, key.block_size)
    return (
        _FEATURE in target.features
        and caps.subgroup_size == 32
        and key.dtype == value.dtype
        and key.dtype in {"f16", "bf16"}
        and key.num_kv_heads == value.num_kv_heads
        and key.block_size == value.block_size
        and not (key.pairs or value.pairs)
        and request.causal
        and request.split <= 16 * PART
        and request.causal
        and not (request.sinks or request.alibi or request.softcap is not None)
        and all(size & (size - 1) == 0 for size in sizes)
        and min(sizes[:2]) >= 16
        and max(sizes[:2]) <= 128
        and 16 <= key.block_size <= PART
        and request.split % PART == 0
        and request.num_heads % key.num_kv_heads == 0
    )


def matrix_attend_kernel(request: AttendRequest, name: str) -> KernelFunction:
    """Return the main kernel; its grid is work items by kv heads."""
    return MatrixAttention(request, name).build()


class MatrixAttention:
    """Builds the kernel of one request.

    Args:
        request: What is asked for.
        name: Of the kernel.
        heads_first: Whether the grid counts kv heads before work items.
    """

    def __init__(self, request: AttendRequest, name: str, *, heads_first: bool = False) -> None:
        self.request = request
        heads, key, value = request.num_heads, request.key, request.value
        self.group = heads // key.num_kv_heads
        self.padded = 1 << (self.group - 1).bit_length()
        self.is_shared = request.query_tile == 1
        self.tile = max(8, self.padded) if self.is_shared else self.padded * request.query_tile
        self.tile = self.tile if self.is_shared else max(16, self.tile)
        self.half = dtype_by_name(key.dtype)
        self.blocks = PART // key.block_size
        b = self.b = IRBuilder(
            name,
            level="tile",
            grid=[key.num_kv_heads, "items"] if heads_first else ["items", key.num_kv_heads],
            fastmath=["approximate"],
        )
        self.queries = b.array("queries", f32, [None, key.head_dim], alignment=16)
        pool = [None, key.num_kv_heads]
        self.keys = b.array("keys", self.half, [*pool, key.head_dim, key.block_size], alignment=64)
        self.values = b.array(
            "values", self.half, [*pool, value.block_size, value.head_dim], alignment=64
        )
        self.positions = b.array("positions", i32, [None])
        self.rows = b.array("rows", i32, [None])
        self.tables = b.array("tables", i32, [None, "table_blocks"])
        self.work = b.array("work", i32, ["items", 4])
        b.scalar("items")
        b.scalar("table_blocks")
        self.partials = b.array(
            "partials", f32, [None, value.head_dim + 2], access="w", alignment=8
        )
        self.num_parts = b.scalar("parts")
        self.dtype = dtype_by_name(request.result_dtype)
        self.result = b.array(
            "result", self.dtype, [None, value.head_dim], access="w", alignment=16
        )

    def build(self) -> KernelFunction:
        """Return the kernel."""
        b = self.b
        self._begin(b.workgroup_id(0), b.workgroup_id(1))
        start = b.floordiv(self.first_key, PART)
        end = b.floordiv(b.add(self.end_key, PART - 1), PART)
        if self.is_shared:
            state = self._shared(start, end)
        else:
            state = self._parts(start, end, stages=self._stages())
        self._finish(state)
        return b.finish()

    def _begin(self, item: Value, kv_head: Value) -> None:
        """Read the work item and its queries."""
        b, request = self.b, self.request
        self.kv_head = kv_head
        fields = [self._integer(self.work, [item, field]) for field in range(4)]
        self.first_token, self.num_tokens, self.first_key, self.end_key = fields
        self.table_row = self._integer(self.rows, [self.first_token])
        self.last_block = b.floordiv(b.sub(self.end_key, 1), request.key.block_size)
        self.position = b.load(self.positions, self.first_token)
        self.low = b.convert(self.first_key, i32)
        self.high = b.convert(self.end_key, i32)
        self.query = self._queries()

    def _integer(self, memory: Value, indices: Sequence[Value | int]) -> Value:
        return self.b.convert(self.b.load(memory, indices), i64)

    def _stages(self) -> int:
        key, value = self.request.key, self.request.value
        part = 2 * PART * (key.head_dim + value.head_dim)
        return 2 if 2 * part <= _STAGE_BYTES else 1

    # ---- rows: (token, head), heads of a token together

    def _tokens(self, shape: tuple[int, ...]) -> tuple[Value, Value]:
        """Return for each row its token's number in the item and its head's in the group."""
        b, shift = self.b, self.padded.bit_length() - 1
        number = b.tile_iota(shape, 0, i32)
        token = b.map(lambda r: b.shr(r, b.constant(shift, i32)), number)
        head = b.map(lambda r: b.and_(r, b.constant(self.padded - 1, i32)), number)
        return token, head

    def _queries(self) -> Value:
        """Return the scaled queries; rows beyond the item repeat others."""
        b = self.b
        token, head = self._tokens((self.tile,))
        last = b.sub(b.convert(self.num_tokens, i32), b.constant(1, i32))
        first = b.mul(self.kv_head, self.group)

        def place(t: Value, h: Value) -> Value:
            number = b.add(self.first_token, b.convert(b.minimum(t, last), i64))
            own = b.convert(b.minimum(h, b.constant(self.group - 1, i32)), i64)
            return b.add(b.mul(number, self.request.num_heads), b.add(own, first))

        rows = b.map(place, token, head)
        found = b.copy_rows(self.queries, rows, [0], (self.request.key.head_dim,))
        factor = self.request.scale * LOG2_E
        return b.tile_convert(b.map(lambda x: b.mul(x, b.constant(factor)), found), self.half)

    # ---- parts

    def _initial(self) -> list[Value]:
        b, shape = self.b, (self.tile, 1)
        return [
            b.tile_full(shape, b.constant(LOWEST)),
            b.tile_full(shape, b.constant(0.0)),
            b.tile_zeros((self.tile, self.request.value.head_dim), f32),
        ]

    def _parts(self, start: Value, end: Value, *, stages: int) -> list[Value]:
        """Return largest score, sum of powers and weighted values over parts in order."""
        b, key, value = self.b, self.request.key, self.request.value
        with b.pipeline(start, end, 1, self._initial(), stages=stages) as pipe:
            with pipe.load() as part:
                tiles: list[Value] = []
                for number in range(self.blocks):
                    wanted = b.add(b.mul(part, self.blocks), number)
                    block = self._integer(
                        self.tables, [self.table_row, b.minimum(wanted, self.last_block)]
                    )
                    place = [block, self.kv_head, 0, 0]
                    tiles.append(b.copy(self.keys, place, (key.head_dim, key.block_size)))
                    tiles.append(b.copy(self.values, place, (value.block_size, value.head_dim)))
                pipe.yield_(*tiles)
            with pipe.compute() as tiles:
                found = self._part(pipe.index, tiles)
                pipe.yield_(*self._combined(pipe.carried, found))
        return pipe.results

    def _part(self, part: Value, tiles: Sequence[Value]) -> list[Value]:
        b, size = self.b, self.request.key.block_size
        zeros = b.tile_zeros((self.tile, size), f32)
        base = b.convert(b.mul(part, PART), i32)
        token, _ = self._tokens((self.tile, 1))
        position = b.map(lambda t: b.add(t, self.position), token)
        scores: list[Value] = []
        for number in range(self.blocks):
            product = b.mma(self.query, tiles[2 * number], zeros, signature="k16")
            start = b.add(base, b.constant(number * size, i32))
            key = b.tile_iota((1, size), 1, i32)

            def masked(s: Value, k: Value, p: Value, start: Value = start) -> Value:
                return b.select(self._is_seen(b.add(k, start), p), s, b.constant(LOWEST))

            scores.append(b.map(masked, product, key, position))
        largest = scores[0]
        for score in scores[1:]:
            largest = b.map(b.maximum, largest, score)
        largest = self._largest(largest)
        powers = [b.map(self._power, score, largest) for score in scores]
        total = powers[0]
        for power in powers[1:]:
            total = b.map(b.add, total, power)
        weighted = b.tile_zeros((self.tile, self.request.value.head_dim), f32)
        for number, power in enumerate(powers):
            weight = b.tile_convert(power, self.half)
            weighted = b.mma(weight, tiles[2 * number + 1], weighted, signature="k16")
        return [largest, b.reduce(total, 1, "add"), weighted]

    def _is_seen(self, key: Value, position: Value) -> Value:
        b, window = self.b, self.request.window
        seen = b.and_(b.compare("le", key, position), b.compare("lt", key, self.high))
        seen = b.and_(seen, b.compare("ge", key, self.low))
        if window is None:
            return seen
        return b.and_(seen, b.compare("gt", key, b.sub(position, b.constant(window, i32))))

    def _largest(self, scores: Value) -> Value:
        """Return the rows' largest scores, ``FLOOR`` where all are masked."""
        b = self.b
        return b.map(lambda x: b.maximum(x, b.constant(FLOOR)), b.reduce(scores, 1, "max"))

    def _power(self, score: Value, largest: Value) -> Value:
        return self.b.unary("exp2", self.b.sub(score, largest))

    def _combined(self, before: Sequence[Value], part: Sequence[Value]) -> list[Value]:
        """Return the state after one more part."""
        b = self.b
        largest = b.map(b.maximum, before[0], part[0])
        old = b.map(lambda x, y: b.unary("exp2", b.sub(x, y)), before[0], largest)
        new = b.map(lambda x, y: b.unary("exp2", b.sub(x, y)), part[0], largest)

        def joined(x: Value, y: Value, o: Value, n: Value) -> Value:
            return b.fma(x, o, b.mul(y, n))

        return [
            largest,
            b.map(joined, before[1], part[1], old, new),
            b.map(joined, before[2], part[2], old, new),
        ]

    def _shared(self, start: Value, end: Value) -> list[Value]:
        """Deal parts to subgroups; combine what they leave, in order."""
        b, dim = self.b, self.request.value.head_dim
        most = self.request.split // PART
        sums = b.shared_alloc(f32, [most, self.tile, dim])
        facts = b.shared_alloc(f32, [2 * most, self.tile, 1])
        with b.for_(start, end, 1, dealt=True) as parts:
            found = self._parts(parts.index, b.add(parts.index, 1), stages=1)
            number = b.sub(parts.index, start)
            b.store_tile(sums, found[2], [number, 0, 0])
            for fact in range(2):
                place = b.add(b.mul(number, 2), fact)
                b.store_tile(facts, found[fact], [place, 0, 0])
        with b.for_(0, b.sub(end, start), 1, self._initial()) as loop:
            part = [
                b.copy(facts, [b.add(b.mul(loop.index, 2), fact), 0, 0], (self.tile, 1))
                for fact in range(2)
            ]
            part.append(b.copy(sums, [loop.index, 0, 0], (self.tile, dim)))
            loop.yield_(*self._combined(loop.carried, part))
        return loop.results

    # ---- results

    def _finish(self, state: Sequence[Value]) -> None:
        b = self.b
        largest, total, weighted = state
        token, head = self._tokens((self.tile,))
        whole = b.map(lambda t, h: self._place(t, h, is_whole=True), token, head)
        part = b.map(lambda t, h: self._place(t, h, is_whole=False), token, head)
        result = b.map(b.div, weighted, total)
        if self.dtype is not f32:
            result = b.tile_convert(result, self.dtype)
        b.store_rows(self.result, result, whole, [0])
        b.store_rows(self.partials, largest, part, [0])
        b.store_rows(self.partials, total, part, [1])
        b.store_rows(self.partials, weighted, part, [2])

    def _place(self, token: Value, head: Value, *, is_whole: bool) -> Value:
        """Return the row of the result or of the partial results, -1 where it is not stored."""
        b, request = self.b, self.request
        split = request.split
        number = b.add(self.first_token, b.convert(token, i64))
        position = b.convert(b.add(token, self.position), i64)
        lowest = b.constant(0)
        if request.window is not None:
            lowest = b.maximum(b.sub(position, request.window - 1), 0)
        first = b.floordiv(lowest, split)
        own = b.add(b.mul(self.kv_head, self.group), b.convert(head, i64))
        begins = b.maximum(self.first_key, lowest)
        ends = b.minimum(self.end_key, b.add(position, 1))
        used = b.and_(
            b.compare("lt", head, b.constant(self.group, i32)),
            b.compare("lt", b.convert(token, i64), self.num_tokens),
        )
        used = b.and_(used, b.compare("lt", begins, ends))
        used = b.and_(used, self._covers(begins, ends, (lowest, position), is_whole=is_whole))
        row = number
        if not is_whole:
            index = b.sub(b.floordiv(begins, split), first)
            row = b.add(b.mul(number, self.num_parts), index)
        return b.select(used, b.add(b.mul(row, request.num_heads), own), b.constant(-1))

    def _covers(
        self, begins: Value, ends: Value, keys: tuple[Value, Value], *, is_whole: bool
    ) -> Value:
        """Return whether an item has all of a token's keys, or only some if not ``is_whole``."""
        b, (lowest, last) = self.b, keys
        if is_whole:
            return b.and_(b.compare("le", begins, lowest), b.compare("gt", ends, last))
        return b.or_(b.compare("gt", begins, lowest), b.compare("le", ends, last))
