"""Placing intermediates in one arena: two share bytes only if they are never alive together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from poot_executor._planned import PlannedLaunch, Temp

__all__ = ["Arena", "live_launches", "place"]

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Arena:
    """Offsets of intermediates.

    Attributes:
        nbytes: Size of the arena.
        offsets: For each temp its first byte.
    """

    nbytes: int
    offsets: tuple[int, ...]


def live_launches(
    launches: Sequence[PlannedLaunch], num_temps: int, kept: Iterable[int]
) -> list[tuple[int, int]]:
    """Return the first and last launch that touches each temp; kept ones live to the end."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, launch in enumerate(launches):
        for operand in launch.operands:
            if operand.kind == "temp":
                assert isinstance(operand.value, int)
                first.setdefault(operand.value, index)
                last[operand.value] = index
    last.update(dict.fromkeys(kept, len(launches)))
    return [(first.get(t, 0), last.get(t, 0)) for t in range(num_temps)]


def place(
    temps: Sequence[Temp],
    live: Sequence[tuple[int, int]],
    rows: Mapping[str, int],
) -> Arena:
    """Return offsets, each temp placed in the lowest gap that is free while it lives.

    Args:
        temps: Intermediates.
        live: First and last launch of each.
        rows: Most rows of each symbol.
    """
    sizes = [-(-t.row_bytes * rows[t.symbol] // ALIGNMENT) * ALIGNMENT for t in temps]
    # The large ones first among those that start together: small ones fill the gaps.
    order = sorted(range(len(temps)), key=lambda t: (live[t][0], -sizes[t]))
    offsets = [0] * len(temps)
    alive: list[tuple[int, int, int]] = []  # offset, end, last launch; by offset
    total = 0
    for temp in order:
        first, last = live[temp]
        alive = [block for block in alive if block[2] >= first]
        offset = 0
        for start, end, _ in alive:
            if start - offset >= sizes[temp]:
                break
            offset = max(offset, end)
        offsets[temp] = offset
        alive.append((offset, offset + sizes[temp], last))
        alive.sort()
        total = max(total, offset + sizes[temp])
    return Arena(total, tuple(offsets))
