"""Builder methods for memory, subgroups and queries."""

from __future__ import annotations

from collections.abc import Sequence

from poot_core import DType
from poot_kernel.ir._build_elements import ElementBuilder
from poot_kernel.ir._emitter import Operand
from poot_kernel.ir.core import Value
from poot_kernel.ir.sizes import SizeLike, as_size

__all__ = ["LaneBuilder"]

Indices = Operand | Sequence[Operand]


class LaneBuilder(ElementBuilder):
    """Loads, stores, atomics, subgroup operations, identifiers."""

    def indices(self, given: Indices) -> list[Value]:
        """Return one index or several as i64 values."""
        items = [given] if isinstance(given, Value | int | float) else given
        return [self.index(item) for item in items]

    def load(
        self,
        memory: Value,
        indices: Indices,
        *,
        mask: Value | None = None,
        other: Value | None = None,
        count: int = 1,
        dtype: DType | None = None,
        alignment: int = 0,
    ) -> Value:
        """Return an element, or ``count`` contiguous ones as a vector; see opcode ``load``."""
        extra = [v for v in (mask, other) if v is not None]
        operands = [memory, *self.indices(indices), *extra]
        return self.one("load", operands, count=count, dtype=dtype or False, alignment=alignment)

    def store(
        self,
        memory: Value,
        indices: Indices,
        value: Value,
        *,
        mask: Value | None = None,
        alignment: int = 0,
    ) -> None:
        """Write a scalar or a vector."""
        operands = [memory, *self.indices(indices), value]
        self.op("store", [*operands, mask] if mask else operands, alignment=alignment)

    def prefetch(self, memory: Value, indices: Indices) -> None:
        """Ask for a cache line; may address past the end."""
        self.op("prefetch", [memory, *self.indices(indices)])

    def atomic(
        self, kind: str, memory: Value, indices: Indices, value: Value, *, mask: Value | None = None
    ) -> Value:
        """Combine into memory and return the old value."""
        operands = [memory, *self.indices(indices), value]
        return self.one("atomic", [*operands, mask] if mask else operands, kind=kind)

    def shared_alloc(self, dtype: DType, shape: Sequence[SizeLike]) -> Value:
        """Return uninitialised workgroup memory."""
        return self.one("shared_alloc", dtype=dtype, shape=tuple(as_size(s) for s in shape))

    def constant_table(self, values: Sequence[int], dtype: DType, shape: Sequence[int]) -> Value:
        """Return read-only memory that holds integers, row-major."""
        return self.one("constant_table", dtype=dtype, shape=tuple(shape), values=tuple(values))

    def extent(self, memory: Value, axis: int) -> Value:
        """Return an array's extent."""
        return self.one("extent", [memory], axis=axis)

    def workgroup_id(self, axis: int = 0) -> Value:
        """Return the workgroup's coordinate."""
        return self.one("workgroup_id", axis=axis)

    def grid_size(self, axis: int = 0) -> Value:
        """Return the number of workgroups along an axis."""
        return self.one("grid_size", axis=axis)

    def query(self, opcode: str) -> Value:
        """Return ``local_id local_size subgroup_id num_subgroups subgroup_lane subgroup_size``."""
        return self.one(opcode)

    def subgroup_reduce(self, x: Value, kind: str) -> Value:
        """Return the active lanes combined."""
        return self.one("subgroup_reduce", [x], kind=kind)

    def subgroup_scan(self, x: Value, kind: str, *, exclusive: bool = False) -> Value:
        """Return prefix combinations by ascending lane."""
        return self.one("subgroup_scan", [x], kind=kind, exclusive=exclusive)

    def subgroup_shuffle(self, x: Value, lane: Operand) -> Value:
        """Return x of another lane."""
        return self.one("subgroup_shuffle", [x, self.index(lane)])

    def subgroup_shuffle_xor(self, x: Value, lane_mask: int) -> Value:
        """Return x of lane ^ lane_mask."""
        return self.one("subgroup_shuffle_xor", [x], lane_mask=lane_mask)

    def subgroup_broadcast(self, x: Value, lane: Operand) -> Value:
        """Return x of one lane, uniform in the subgroup."""
        return self.one("subgroup_broadcast", [x, self.index(lane)])

    def subgroup_vote(self, x: Value, kind: str) -> Value:
        """Return whether any or all active lanes hold true."""
        return self.one("subgroup_vote", [x], kind=kind)

    def workgroup_reduce(self, x: Value, kind: str) -> Value:
        """Return all invocations combined, uniform; synchronises the workgroup."""
        return self.one("workgroup_reduce", [x], kind=kind)

    def barrier(self, scope: str = "workgroup") -> None:
        """Order memory among the scope's invocations."""
        self.op("barrier", scope=scope)

    def clamp_index(
        self, status: Value, index: Value, extent: Operand, row: Operand, *, bit: int
    ) -> Value:
        """Return index inside of [0, extent); out of range marks row in the status word."""
        operands = [status, self.index(index), self.index(extent), self.index(row)]
        return self.one("clamp_index", operands, bit=bit)

    def status_set(
        self, status: Value, row: Operand, *, bit: int, mask: Value | None = None
    ) -> None:
        """Mark row in the status word."""
        operands = [status, self.index(row)]
        self.op("status_set", [*operands, mask] if mask else operands, bit=bit)
