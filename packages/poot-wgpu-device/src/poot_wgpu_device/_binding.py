"""How a launch's arrays are bound: one binding each, several for a long one, one for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_core import ShapeError, UnsupportedError
from poot_kernel.targets.wgsl import ArrayAccess, Binding
from poot_wgpu_device._gpu import Range
from poot_wgpu_device._memory import WgpuBuffer

__all__ = ["BoundArrays", "BufferLimits", "bind_buffers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLimits:
    """What an adapter allows.

    Attributes:
        max_bindings: Storage buffers of one shader.
        max_bytes: Bytes of one binding, a multiple of the alignment.
        alignment: Of a binding's first byte.
    """

    max_bindings: int
    max_bytes: int
    alignment: int


@dataclass(frozen=True, slots=True)
class BoundArrays:
    """The result for one launch.

    Attributes:
        pattern: Parameter number and binding of each array, for the shader.
        ranges: What is bound at 1 and up.
        offsets: For each array's parameter number the byte of its binding at which it starts.
    """

    pattern: tuple[tuple[int, Binding], ...]
    ranges: tuple[Range, ...]
    offsets: dict[int, int]


def bind_buffers(
    arrays: Mapping[int, ArrayAccess],
    places: Mapping[int, tuple[WgpuBuffer, int]],
    limits: BufferLimits,
    label: str,
) -> BoundArrays:
    """Return how arrays are bound.

    A buffer that a launch writes anywhere is writable in all of its bindings: it cannot be read-only
    in one and written in another. How long an array is, is not known here: what is bound reaches to
    the end of its buffer, in parts where that is more than a binding holds.

    Args:
        arrays: How each array is accessed, by parameter number.
        places: Buffer and offset in bytes, by parameter number.
        limits: What the adapter allows.
        label: Of the launch, for messages.

    Raises:
        ShapeError: If an offset does not fit its element type or its buffer.
        UnsupportedError: If even the merged arrays are too many for the adapter.
    """
    for number, access in arrays.items():
        buffer, offset = places[number]
        aligned = access.element_bytes
        if offset % aligned or not 0 <= offset <= buffer.nbytes:
            raise ShapeError(
                f"launch {label!r} takes byte {offset} of {buffer!r}: it must be a multiple of "
                f"{aligned} inside of it"
            )
    groups = [_Group.of([number], places, limits) for number in arrays]
    if sum(group.num_bindings for group in groups) > limits.max_bindings:
        merged: dict[Any, list[int]] = {}
        for number, access in arrays.items():
            merged.setdefault((id(places[number][0]), access.element), []).append(number)
        groups = [_Group.of(numbers, places, limits) for numbers in merged.values()]
    total = sum(group.num_bindings for group in groups)
    if total > limits.max_bindings:
        raise UnsupportedError(
            f"launch {label!r} binds {total} storage buffers, the adapter has {limits.max_bindings}"
        )
    written = {id(places[n][0]) for n, access in arrays.items() if access.is_written}
    pattern: list[tuple[int, Binding]] = []
    ranges: list[Range] = []
    offsets: dict[int, int] = {}
    for group in groups:
        indices = tuple(range(len(ranges) + 1, len(ranges) + 1 + group.num_bindings))
        binding = Binding(indices, id(group.buffer) in written, limits.max_bytes)
        ranges += group.ranges(limits)
        for number in group.numbers:
            offsets[number] = places[number][1] - group.start
            pattern.append((number, binding))
    return BoundArrays(tuple(pattern), tuple(ranges), offsets)


@dataclass(frozen=True, slots=True)
class _Group:
    """Arrays that share bindings.

    Attributes:
        numbers: Their parameter numbers.
        buffer: What holds them.
        start: First byte that is bound.
        num_bindings: Parts.
    """

    numbers: list[int]
    buffer: WgpuBuffer
    start: int
    num_bindings: int

    @classmethod
    def of(
        cls,
        numbers: list[int],
        places: Mapping[int, tuple[WgpuBuffer, int]],
        limits: BufferLimits,
    ) -> _Group:
        """Return the group of arrays of one buffer."""
        buffer = places[numbers[0]][0]
        first = min(places[number][1] for number in numbers)
        start = min(first, buffer.size - 1) // limits.alignment * limits.alignment
        return cls(numbers, buffer, start, -(-(buffer.size - start) // limits.max_bytes))

    def ranges(self, limits: BufferLimits) -> list[Range]:
        """Return what is bound."""
        starts = range(self.start, self.buffer.size, limits.max_bytes)
        return [
            (self.buffer.handle, start, min(limits.max_bytes, self.buffer.size - start))
            for start in starts
        ]
