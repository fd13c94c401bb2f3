"""The main kernel for many tokens, where matrix instructions run beside other work.

It is ``_matrix.py`` with larger tiles: 128 rows of (token, query head), whose keys and values are read
once. Its work items may cover several splits of a token's keys: splits are then combined in order here,
by the formula that combines parts, as the merge kernel combines what items of one split left. So bits
do not depend on whether an item was cut.

Parts that all rows see need no masks and come first in a split; those on the diagonal follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_core import DeviceCaps, Target, f32, i32, i64
from poot_kernel import KernelFunction, Value
from poot_kernelgen.attention._main import LOWEST
from poot_kernelgen.attention._matrix import PART, MatrixAttention, suits_matrix_attention
from poot_kernelgen.requests import AttendRequest

__all__ = ["joined_attend_kernel", "joined_tile_for"]

_FEATURE = "mma-async"
_ROWS = 128
_STAGES = 3
_PAD = 8  # f32 between rows of totals: rows of a subgroup lie in other banks


def joined_tile_for(request: AttendRequest, target: Target, caps: DeviceCaps) -> int:
    """Return the tokens of an item that may cover several splits; 0 where no kernel takes such."""
    group = request.num_heads // request.key.num_kv_heads
    padded = 1 << (group - 1).bit_length()
    suits = (
        _FEATURE in target.features
        and suits_matrix_attention(request, target, caps)
        and min(request.key.head_dim, request.value.head_dim) >= PART
        and padded < _ROWS
    )
    return _ROWS // padded if suits else 0


def joined_attend_kernel(request: AttendRequest, name: str) -> KernelFunction:
    """Return the main kernel; its grid is kv heads by work items."""
    return _Joined(request, name, heads_first=True).build()


class _Joined(MatrixAttention):
    def build(self) -> KernelFunction:
        b, split = self.b, self.request.split
        # The last items have the most keys: what is short fills the end.
        last = b.sub(b.grid_size(1), 1)
        self._begin(b.sub(last, b.workgroup_id(1)), b.workgroup_id(0))
        start = b.floordiv(self.first_key, PART)
        end = b.floordiv(b.add(self.end_key, PART - 1), PART)
        whole = self._first_masked(start, end)
        first = b.floordiv(self.first_key, split)
        behind = b.floordiv(b.add(self.end_key, split - 1), split)
        dim = self.request.value.head_dim
        sums = b.shared_alloc(f32, [self.tile, dim + _PAD])
        initial = self._initial()
        b.store_tile(sums, initial[2], [0, 0])
        parts = split // PART
        with b.for_(first, behind, 1, initial[:2]) as loop:
            begin = b.maximum(start, b.mul(loop.index, parts))
            stop = b.minimum(end, b.mul(b.add(loop.index, 1), parts))
            middle = b.minimum(b.maximum(whole, begin), stop)
            state = self._initial()
            if self.request.window is None:
                state = self._stretch((begin, middle), state, is_masked=False)
            state = self._stretch((middle, stop), state, is_masked=True)
            before = b.copy(sums, [0, 0], (self.tile, dim))
            found = self._combined([*loop.carried, before], state)
            b.store_tile(sums, found[2], [0, 0])
            loop.yield_(*found[:2])
        total = b.copy(sums, [0, 0], (self.tile, dim))
        self._finish([*loop.results, total])
        return b.finish()

    def _first_masked(self, start: Value, end: Value) -> Value:
        """Return the first part that some row does not see in full."""
        b = self.b
        if self.request.window is not None:
            return start
        seen = b.floordiv(b.add(b.convert(self.position, i64), 1), PART)
        seen = b.minimum(seen, b.floordiv(self.end_key, PART))
        return b.minimum(b.maximum(seen, start), end)

    def _stretch(
        self, bounds: tuple[Value, Value], state: Sequence[Value], *, is_masked: bool
    ) -> list[Value]:
        """Return the state after the parts from one bound to the other."""
        b, key, value = self.b, self.request.key, self.request.value
        with b.pipeline(*bounds, 1, state, stages=_STAGES) as pipe:
            with pipe.load() as part:
                blocks = [
                    self._integer(
                        self.tables,
                        [
                            self.table_row,
                            b.minimum(b.add(b.mul(part, self.blocks), number), self.last_block),
                        ],
                    )
                    for number in range(self.blocks)
                ]
                places = [[block, self.kv_head, 0, 0] for block in blocks]
                sizes = (key.head_dim, key.block_size), (value.block_size, value.head_dim)
                tiles = [b.copy(self.keys, place, sizes[0]) for place in places]
                tiles += [b.copy(self.values, place, sizes[1]) for place in places]
                pipe.yield_(*tiles)
            with pipe.compute() as tiles:
                found = self._joined_part(pipe.index, tiles, is_masked=is_masked)
                pipe.yield_(*self._combined(pipe.carried, found))
        return pipe.results

    def _joined_part(self, part: Value, tiles: Sequence[Value], *, is_masked: bool) -> list[Value]:
        """Return what ``_part`` does, by one product of 64 keys each."""
        b, size = self.b, self.request.key.block_size
        keys = b.interleave(*tiles[: self.blocks], axis=1, block=size)
        values = b.interleave(*tiles[self.blocks :], axis=0, block=size)
        zeros = b.tile_zeros((self.tile, PART), f32)
        scores = b.mma(self.query, keys, zeros, signature="k16")
        if is_masked:
            scores = self._masked(scores, part)
        largest = self._largest(scores)
        powers = b.map(self._power, scores, largest)
        shape = (self.tile, size)
        total = b.slice(powers, (0, 0), shape)
        for number in range(1, self.blocks):  # in the order of ``_part``
            total = b.map(b.add, total, b.slice(powers, (0, number * size), shape))
        zeros = b.tile_zeros((self.tile, self.request.value.head_dim), f32)
        weighted = b.mma(b.tile_convert(powers, self.half), values, zeros, signature="k16")
        return [largest, b.reduce(total, 1, "add"), weighted]

    def _masked(self, scores: Value, part: Value) -> Value:
        b = self.b
        token, _ = self._tokens((self.tile, 1))
        position = b.map(lambda t: b.add(t, self.position), token)
        base = b.convert(b.mul(part, PART), i32)
        key = b.tile_iota((1, PART), 1, i32)

        def masked(s: Value, k: Value, p: Value) -> Value:
            return b.select(self._is_seen(b.add(k, base), p), s, b.constant(LOWEST))

        return b.map(masked, scores, key, position)
