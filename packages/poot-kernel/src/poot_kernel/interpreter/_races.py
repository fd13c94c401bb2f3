"""Who touched each element of a memory since the last barrier; finds races."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["Accessors", "Touch", "Tracker"]

Array = np.ndarray[Any, Any]
Touch = Literal["read", "write", "atomic"]

_NOBODY = -1
_SEVERAL = -2
_CONFLICTS: dict[Touch, tuple[Touch, ...]] = {
    "read": ("write", "atomic"),
    "write": ("read", "write", "atomic"),
    "atomic": ("read", "write"),
}


@dataclass(frozen=True, slots=True)
class Accessors:
    """Which invocation stands behind each address of an access.

    Attributes:
        lane: Invocation in its workgroup.
        subgroup: Its subgroup.
        workgroup: Flat number of the workgroup.
    """

    lane: Array
    subgroup: Array
    workgroup: Array

    def by_scope(self, *, is_global: bool) -> tuple[Array, ...]:
        """Return them from the narrowest scope to the widest that matters."""
        narrow = (self.lane, self.subgroup)
        return (*narrow, self.workgroup) if is_global else narrow


class Tracker:
    """Remembers for each element, kind of touch and scope: nobody, one, or several.

    A subgroup barrier forgives conflicts inside of a subgroup, a workgroup barrier those inside of
    a workgroup; between workgroups there is no barrier, so global memory also remembers those.
    """

    def __init__(self, size: int, *, is_global: bool) -> None:
        self._size = size
        self._is_global = is_global
        self._records: dict[tuple[Touch, int], Array] = {}

    def conflicts(self, touch: Touch, at: Array, who: Accessors) -> dict[Touch, Array]:
        """Return which addresses were touched in a conflicting way by somebody else, by kind."""
        found: dict[Touch, Array] = {}
        for other in _CONFLICTS[touch]:
            bad = np.zeros(at.shape, np.bool_)
            for scope, mine in enumerate(who.by_scope(is_global=self._is_global)):
                record = self._records.get((other, scope))
                if record is not None:
                    known = record[at]
                    bad |= (known != _NOBODY) & (known != mine)
            if bad.any():
                found[other] = bad
        return found

    def note(self, touch: Touch, at: Array, who: Accessors) -> None:
        """Remember an access."""
        for scope, mine in enumerate(who.by_scope(is_global=self._is_global)):
            record = self._records.setdefault(
                (touch, scope), np.full(self._size, _NOBODY, np.int32)
            )
            before = record[at]
            record[at] = mine
            several = (before != _NOBODY) & (before != mine) | (record[at] != mine)
            record[at[several]] = _SEVERAL

    def barrier(self, subgroups: Array | None = None) -> None:
        """Forget conflicts that a barrier settles.

        Args:
            subgroups: Those that meet at a subgroup barrier; None for the whole workgroup.
        """
        for (touch, scope), record in self._records.items():
            if scope == 2:
                continue
            if subgroups is None:
                record.fill(_NOBODY)
            elif scope == 0:
                owner = self._records[touch, 1]
                record[np.isin(owner, subgroups)] = _NOBODY

    def next_workgroup(self) -> None:
        """Forget everything inside of the last workgroup."""
        self.barrier()
