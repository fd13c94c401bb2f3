"""Memories of a running kernel: arguments and workgroup memory, with checks on every access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poot_core import DType
from poot_kernel.interpreter._races import Accessors, Touch, Tracker
from poot_kernel.interpreter.errors import BoundsFault, RaceFault, UninitialisedFault

__all__ = ["Memory"]

Array = np.ndarray[Any, Any]

_POISON = 0xCB


class Memory:
    """A flat buffer with extents and strides.

    Attributes:
        name: For messages.
        dtype: Element type.
        shape: Extents; None where unknown.
        strides: Strides in elements.
        flat: The elements; writes go through to the argument.
    """

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[int | None],
        strides: Sequence[int],
        flat: Array,
        *,
        check: bool,
        is_global: bool = True,
        is_constant: bool = False,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.flat = flat
        self._check = check
        self._bytes = flat.view(np.uint8)
        self._written = None if is_global else np.zeros(flat.size, np.bool_)
        tracked = check and not is_constant
        self.tracker = Tracker(flat.size, is_global=is_global) if tracked else None

    @classmethod
    def shared(cls, name: str, dtype: DType, shape: Sequence[int], *, check: bool) -> Memory:
        """Return poisoned workgroup memory."""
        size = int(np.prod(shape, dtype=np.int64))
        flat = np.full(size * dtype.itemsize, _POISON, np.uint8).view(dtype.numpy)
        strides = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
        return cls(name, dtype, shape, strides, flat, check=check, is_global=False)

    # ---- addresses

    def inside(self, indices: Sequence[Array]) -> Array:
        """Return where every index is inside of its extent."""
        result: Array = np.True_ * np.ones((), np.bool_)
        for index, extent in zip(indices, self.shape, strict=True):
            limit = self.flat.size if extent is None else extent
            result = result & (index >= 0) & (index < limit)
        return result

    def address(self, indices: Sequence[Array], active: Array, count: int = 1) -> Array:
        """Return flat element numbers, checked where active; elsewhere 0.

        Raises:
            BoundsFault: If an active one is outside of the array.
        """
        shape = np.broadcast_shapes(active.shape, *(np.shape(index) for index in indices))
        active = np.broadcast_to(active, shape)
        ok = self.inside(indices) if self._check else np.ones((), np.bool_)
        at = np.zeros(shape, np.int64)
        for index, stride in zip(indices, self.strides, strict=True):
            at = at + np.asarray(index, np.int64) * stride
        ok = np.broadcast_to(ok & (at >= 0) & (at + (count - 1) < self.flat.size), shape)
        self._refuse(active & ~ok, indices, count)
        return np.where(active, at, 0)

    def byte_address(self, index: Array, active: Array, num_bytes: int) -> Array:
        """Return byte offsets into a raw array, checked where active; elsewhere 0.

        Raises:
            BoundsFault: If an active one is outside of the array.
        """
        shape = np.broadcast_shapes(active.shape, np.shape(index))
        ok = np.broadcast_to((index >= 0) & (index + num_bytes <= self._bytes.size), shape)
        self._refuse(np.broadcast_to(active, shape) & ~ok, [index], num_bytes)
        return np.where(active, np.broadcast_to(index, shape), 0)

    def _refuse(self, bad: Array, indices: Sequence[Array], count: int) -> None:
        if not bad.any():
            return
        first = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(bad)))
        got = [int(np.atleast_1d(np.broadcast_to(index, bad.shape))[first]) for index in indices]
        extents = [self.flat.size if extent is None else extent for extent in self.shape]
        more = f" (and {count - 1} after it)" if count > 1 else ""
        raise BoundsFault(
            f"index {got}{more} is outside of {self.name!r} of extents {extents}; "
            f"{int(bad.sum())} elements are, the first at {list(first)} of the access",
            indices=got, extents=extents,
        )  # fmt: skip

    # ---- accesses

    def read(self, at: Array, active: Array, who: Accessors) -> Array:
        """Return elements at flat addresses; what is read elsewhere than active means nothing."""
        self._touch("read", at, active, who)
        return self.flat[at] if self.flat.size else np.zeros(at.shape, self.flat.dtype)

    def write(self, at: Array, values: Array, active: Array, who: Accessors, order: Array) -> None:
        """Write elements where active, one after the other in the given order of the first axis."""
        values = np.broadcast_to(np.asarray(values, self.flat.dtype), at.shape)
        conflict = self._conflicts("write", at, active, who)
        if "write" in conflict:  # the same bits twice is no race
            same = self._bits(self.flat[at]) == self._bits(values)
            conflict["write"] = conflict["write"] & ~same
        self._raise(conflict, "write", at)
        if at.ndim:
            at, values, active = at[order], values[order], active[order]
            who = Accessors(who.lane[order], who.subgroup[order], who.workgroup[order])
        self.flat[at[active]] = values[active]
        if self._written is not None:
            self._written[at[active]] = True
        if self.tracker is not None:
            clash = active & (self._bits(self.flat[at]) != self._bits(values))
            self._raise({"write": clash}, "write", at)
            self.tracker.note("write", at[active], _select(who, active))

    def combine(self, at: Array, active: Array, who: Accessors) -> None:
        """Check and remember an atomic access."""
        self._touch("atomic", at, active, who)

    def _touch(self, touch: Touch, at: Array, active: Array, who: Accessors) -> None:
        if self._written is not None and self._check and touch != "write":
            unwritten = active & ~self._written[at]
            if unwritten.any():
                raise UninitialisedFault(
                    f"reads element {int(at[unwritten].flat[0])} of {self.name!r}, which nobody "
                    "wrote"
                )
        self._raise(self._conflicts(touch, at, active, who), touch, at)
        if self.tracker is not None:
            self.tracker.note(touch, at[active], _select(who, active))

    def _conflicts(
        self, touch: Touch, at: Array, active: Array, who: Accessors
    ) -> dict[Touch, Array]:
        if self.tracker is None:
            return {}
        found = self.tracker.conflicts(touch, at, who)
        return {kind: bad & active for kind, bad in found.items()}

    def _raise(self, conflicts: dict[Touch, Array], touch: Touch, at: Array) -> None:
        for kind, bad in conflicts.items():
            if bad.any():
                raise RaceFault(
                    f"race on element {int(at[bad].flat[0])} of {self.name!r}: {touch} here, "
                    f"{kind} by another invocation, with no barrier between; {int(bad.sum())} "
                    "elements"
                )

    def _bits(self, values: Array) -> Array:
        return np.ascontiguousarray(values).view(f"u{self.dtype.itemsize}")


def _select(who: Accessors, active: Array) -> Accessors:
    return Accessors(who.lane[active], who.subgroup[active], who.workgroup[active])
