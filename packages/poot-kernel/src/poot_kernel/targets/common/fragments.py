"""Layout algebra: which invocation holds which element of a tile.

Extents are powers of two, so a layout is a list of bits: each bit of the register number, of the
lane and of the subgroup moves along one axis by a power of two, or along none (copies). Views then
only rename bits, and two layouts agree when their bits do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from poot_core import UnsupportedError

__all__ = ["Bit", "Fragment", "bits_along", "ceil_log2", "log2", "runs", "spread"]


def log2(extent: int) -> int:
    """Return the exponent of a power of two.

    Raises:
        UnsupportedError: If it is none.
    """
    if extent < 1 or extent & (extent - 1):
        raise UnsupportedError(
            f"GPU targets need tile extents that are powers of two, got {extent}"
        )
    return extent.bit_length() - 1


def ceil_log2(extent: int) -> int:
    """Return how many bits count an extent."""
    return (extent - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Bit:
    """Moves by ``step`` elements along ``axis``."""

    axis: int
    step: int


def bits_along(axis: int, first_step: int, extent: int) -> tuple[Bit, ...]:
    """Return the bits that count ``extent`` steps of ``first_step`` along an axis."""
    return tuple(Bit(axis, first_step << i) for i in range(log2(extent)))


@dataclass(frozen=True, slots=True)
class Fragment:
    """A tile spread over the registers, lanes and subgroups of a workgroup, lowest bit first."""

    shape: tuple[int, ...]
    registers: tuple[Bit, ...]
    lanes: tuple[Bit | None, ...]
    subgroups: tuple[Bit | None, ...]

    def coordinates(self) -> list[tuple[int, ...]]:
        """Return what each register adds to the coordinates of its invocation."""
        found: list[tuple[int, ...]] = []
        for number in range(1 << len(self.registers)):
            where = [0] * len(self.shape)
            for index, bit in enumerate(self.registers):
                where[bit.axis] += bit.step * (number >> index & 1)
            found.append(tuple(where))
        return found

    def restricted(self, shape: tuple[int, ...]) -> Fragment:
        """Return the layout of an operand that broadcasts along its extents of 1."""
        keep = [extent != 1 for extent in shape]
        return Fragment(
            shape,
            tuple(b for b in self.registers if keep[b.axis]),
            tuple(b if b and keep[b.axis] else None for b in self.lanes),
            tuple(b if b and keep[b.axis] else None for b in self.subgroups),
        )

    def agrees(self, other: Fragment) -> bool:
        """Whether the layouts differ at most in the order of registers."""
        same_place = (self.lanes, self.subgroups) == (other.lanes, other.subgroups)
        return same_place and set(self.registers) == set(other.registers)

    def renamed(self, shape: tuple[int, ...], names: dict[Bit, Bit]) -> Fragment:
        """Return the layout of a view that renames bits."""
        return Fragment(
            shape,
            tuple(names[b] for b in self.registers),
            tuple(b and names[b] for b in self.lanes),
            tuple(b and names[b] for b in self.subgroups),
        )

    def widened(self, shape: tuple[int, ...]) -> Fragment:
        """Return the layout of a larger tile: what is new lies in more registers."""
        more = [
            bit
            for axis, extent in enumerate(self.shape)
            for bit in bits_along(axis, extent, shape[axis] // extent)
        ]
        return Fragment(shape, (*self.registers, *more), self.lanes, self.subgroups)

    def narrowed(self, shape: tuple[int, ...]) -> Fragment | None:
        """Return the layout of a part that only drops registers; None if lanes would move."""
        kept = [b for b in self.registers if b.step < shape[b.axis]]
        if any(b and b.step >= shape[b.axis] for b in (*self.lanes, *self.subgroups)):
            return None
        return Fragment(shape, tuple(kept), self.lanes, self.subgroups)

    def with_registers(self, registers: tuple[Bit, ...]) -> Fragment:
        """Return the layout with other register bits."""
        return replace(self, registers=registers)


def runs(slots: tuple[Bit | None, ...]) -> Iterator[tuple[int, int, Bit]]:
    """Yield (first bit number, count, first bit) of runs that count along one axis."""
    start = 0
    while start < len(slots):
        first, count = slots[start], 1
        if first is not None:
            while start + count < len(slots) and slots[start + count] == Bit(
                first.axis, first.step << count
            ):
                count += 1
            yield start, count, first
        start += count


def spread(shape: tuple[int, ...], num_lanes: int, num_subgroups: int) -> Fragment:
    """Return a layout for tiles that no product shapes.

    Four lanes along the last axis hold neighbouring pairs (words of 16-bit elements), the other
    lanes and the subgroups go along the axis before it, and copies fill what is left.
    """
    last = len(shape) - 1
    left = [list(bits_along(axis, 1, extent)) for axis, extent in enumerate(shape)]

    def take(axis: int, count: int) -> list[Bit]:
        taken, left[axis] = left[axis][:count], left[axis][count:]
        return taken

    registers = take(last, 1)
    order = [last, *range(last - 1, -1, -1)]
    lanes: list[Bit | None] = []
    lanes += take(last, 2 if last else log2(num_lanes))
    subgroups: list[Bit | None] = []
    for slots, size in ((lanes, num_lanes), (subgroups, num_subgroups)):
        for axis in [*order[1:], last]:
            slots += take(axis, log2(size) - len(slots))
        slots += [None] * (log2(size) - len(slots))
    for axis in order:
        registers += left[axis]
    return Fragment(shape, tuple(registers), tuple(lanes), tuple(subgroups))
