"""The contraction kernel: the lanes of a subgroup split K, its registers hold a tile of results."""

from __future__ import annotations

from collections.abc import Sequence

from poot_kernel import KernelFunction, Value
from poot_kernelgen.contraction.gpu._chunks import Chunks, chunks_of
from poot_kernelgen.contraction.gpu._frame import Frame, open_frame
from poot_kernelgen.contraction.gpu._shape import Blocking
from poot_kernelgen.requests import ContractionRequest

__all__ = ["build_multiply"]

Sums = list[list[Value]]


def build_multiply(request: ContractionRequest, blocking: Blocking, name: str) -> KernelFunction:
    """Return the kernel over a grid of (column blocks, row blocks)."""
    grid = [f"ceildiv(N, {blocking.workgroup_columns})", f"ceildiv(M, {blocking.rows})"]
    frame = open_frame(request, name, grid, blocking.threads)
    _Multiply(frame, blocking).build()
    return frame.b.finish()


class _Multiply:
    def __init__(self, frame: Frame, blocking: Blocking) -> None:
        self.frame, self.blocking = frame, blocking
        self.chunks: Chunks = chunks_of(frame)

    def build(self) -> None:
        b, blocking, frame = self.frame.b, self.blocking, self.frame
        thread = b.query("local_id")
        self.lane = b.and_(thread, blocking.lanes - 1)
        part = b.shr(thread, blocking.lanes.bit_length() - 1)
        block = b.mul(b.workgroup_id(0), blocking.workgroup_columns)
        self.column = b.add(block, b.mul(part, blocking.columns))
        self.row = b.mul(b.workgroup_id(1), blocking.rows)
        last_row, last_column = b.sub(frame.m, 1), b.sub(frame.n, 1)
        # Rows and columns beyond the result repeat the last one and are not stored.
        self.rows = [b.minimum(b.add(self.row, i), last_row) for i in range(blocking.rows)]
        columns = [b.minimum(b.add(self.column, j), last_column) for j in range(blocking.columns)]
        self.bases = [
            self.chunks.row(frame.weight_row(column, half))
            for column in columns
            for half in range(frame.halves)
        ]
        self._combine(self._sums())

    # ---- sums of one lane

    def _sums(self) -> Sums:
        b, frame = self.frame.b, self.frame
        length = self.chunks.length
        if length == 32:
            return self._walk(is_whole=True)
        # Rows of whole chunks are aligned: the other way reads element by element.
        rest = b.and_(frame.k, length - 1)
        with b.if_(b.compare("eq", rest, 0)) as branch:
            with branch.then():
                branch.yield_(*_flat(self._walk(is_whole=True)))
            with branch.otherwise():
                branch.yield_(*_flat(self._walk(is_whole=False)))
        return self._shaped(branch.results)

    def _walk(self, *, is_whole: bool) -> Sums:
        b, blocking = self.frame.b, self.blocking
        shift = self.chunks.length.bit_length() - 1
        chunks = b.shr(b.add(self.frame.k, self.chunks.length - 1), shift)
        zero = b.constant(0.0)
        sums = [zero] * (blocking.rows * len(self.bases))
        start: Value | int = 0
        for ahead in blocking.ahead if is_whole else ():
            stride = blocking.lanes * ahead
            end = b.sub(chunks, b.and_(b.sub(chunks, start), stride - 1))
            sums, start = self._walk_ahead(start, end, ahead, sums), end
        with b.while_([b.add(start, self.lane), *sums]) as loop:
            with loop.condition() as values:
                loop.test(b.compare("lt", values[0], chunks))
            with loop.body() as values:
                weights, activations = self._load(values[0], is_whole=is_whole)
                found = self.chunks.add(weights, activations, self._shaped(values[1:]))
                loop.yield_(b.add(values[0], blocking.lanes), *_flat(found))
        return self._shaped(loop.results[1:])

    def _walk_ahead(
        self, start: Value | int, end: Value, ahead: int, sums: list[Value]
    ) -> list[Value]:
        """Add whole runs of chunks: a lane loads ``ahead`` of them before it adds them."""
        b, lanes = self.frame.b, self.blocking.lanes
        with b.for_(start, end, lanes * ahead, sums) as loop:
            first = b.add(loop.index, self.lane)
            turns = [self._load(b.add(first, turn * lanes), is_whole=True) for turn in range(ahead)]
            found = self._shaped(loop.carried)
            for weights, activations in turns:
                found = self.chunks.add(weights, activations, found)
            loop.yield_(*_flat(found))
        return loop.results

    def _load(self, chunk: Value, *, is_whole: bool) -> tuple[list[list[Value]], list[list[Value]]]:
        weights = [self.chunks.load_weight(base, chunk) for base in self.bases]
        activations = [
            self.chunks.load_activation(row, chunk, is_whole=is_whole) for row in self.rows
        ]
        return weights, activations

    def _shaped(self, flat: Sequence[Value]) -> Sums:
        width = len(self.bases)
        return [list(flat[i : i + width]) for i in range(0, len(flat), width)]

    # ---- sums of all lanes

    def _combine(self, sums: Sums) -> None:
        """Add the lanes' sums by halving; where several results wait, each half keeps its own.

        Results are numbered row by row; those of a gated pair's halves stay together.
        """
        b, frame, halves = self.frame.b, self.frame, self.frame.halves
        results = [row[j : j + halves] for row in sums for j in range(0, len(row), halves)]
        number = b.constant(0)
        owner = b.constant(0)  # lanes that hold copies store nothing
        mask = self.blocking.lanes // 2
        while mask:
            bit = b.and_(self.lane, mask)
            if len(results) > 1:
                is_upper = b.compare("ne", bit, 0)
                half = len(results) // 2
                results = [
                    self._exchanged(low, high, is_upper, mask)
                    for low, high in zip(results[:half], results[half:], strict=True)
                ]
                number = b.add(number, b.select(is_upper, b.constant(half), b.constant(0)))
            else:
                results = [[b.add(x, b.subgroup_shuffle_xor(x, mask)) for x in results[0]]]
                owner = b.or_(owner, bit)
            mask //= 2
        is_owner = b.compare("eq", owner, 0)
        shift = self.blocking.columns.bit_length() - 1
        for offset, values in enumerate(results):
            place = b.add(number, offset) if offset else number
            row = b.add(self.row, b.shr(place, shift))
            column = b.add(self.column, b.and_(place, self.blocking.columns - 1))
            inside = b.and_(b.compare("lt", row, frame.m), b.compare("lt", column, frame.n))
            frame.store(values, row, column, b.and_(inside, is_owner))

    def _exchanged(
        self, low: list[Value], high: list[Value], is_upper: Value, mask: int
    ) -> list[Value]:
        b = self.frame.b
        found: list[Value] = []
        for x, y in zip(low, high, strict=True):
            kept, given = b.select(is_upper, y, x), b.select(is_upper, x, y)
            found.append(b.add(kept, b.subgroup_shuffle_xor(given, mask)))
        return found


def _flat(sums: Sums) -> list[Value]:
    return [x for row in sums for x in row]
