"""How a launch's arrays are bound: one binding each, or one for all of a buffer where they are many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_core import ShapeError, UnsupportedError
from poot_kernel.targets.wgsl import Binding
from poot_wgpu_device._gpu import Range
from poot_wgpu_device._memory import WgpuBuffer

__all__ = ["BoundArrays", "BufferLimits", "bind_buffers"]

_WIDEST = 16  # bytes of the widest element


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLimits:
    """What an adapter allows.

    Attributes:
        max_bindings: Storage buffers of one shader.
        max_bytes: Bytes of one binding.
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
    views: Mapping[int, tuple[str, bool]],
    places: Mapping[int, tuple[WgpuBuffer, int]],
    limits: BufferLimits,
    label: str,
) -> BoundArrays:
    """Return how arrays are bound.

    A buffer that a launch writes anywhere is writable in all of its bindings: it cannot be read-only
    in one and written in another.

    Args:
        views: Element type and whether it is written, by parameter number.
        places: Buffer and offset in bytes, by parameter number.
        limits: What the adapter allows.
        label: Of the launch, for messages.

    Raises:
        ShapeError: If an offset does not fit its element type or its buffer.
        UnsupportedError: If even the merged arrays are too many for the adapter.
    """
    for number, (view, _) in views.items():
        buffer, offset = places[number]
        aligned = _WIDEST if "vec4" in view else 4
        if offset % aligned or not 0 <= offset <= buffer.nbytes:
            raise ShapeError(
                f"launch {label!r} takes byte {offset} of {buffer!r}: it must be a multiple of "
                f"{aligned} inside of it"
            )
    is_merged = len(views) > limits.max_bindings
    groups: dict[Any, list[int]] = {}
    for number, (view, _) in views.items():
        buffer, _ = places[number]
        key = (id(buffer), view) if is_merged else number
        groups.setdefault(key, []).append(number)
    if len(groups) > limits.max_bindings:
        raise UnsupportedError(
            f"launch {label!r} binds {len(groups)} storage buffers, the adapter has "
            f"{limits.max_bindings}"
        )
    written = {id(places[n][0]) for n, (_, is_written) in views.items() if is_written}
    pattern: list[tuple[int, Binding]] = []
    ranges: list[Range] = []
    offsets: dict[int, int] = {}
    for index, numbers in enumerate(groups.values(), 1):
        buffer, _ = places[numbers[0]]
        starts = [places[n][1] for n in numbers]
        start = min(starts) // limits.alignment * limits.alignment
        size = min(buffer.size - start, limits.max_bytes)
        if max(starts) - start >= max(size, 1):
            raise UnsupportedError(
                f"launch {label!r} binds arrays of {buffer!r} that lie further apart than the "
                f"adapter's {limits.max_bytes} bytes of a binding"
            )
        ranges.append((buffer.handle, start, size))
        for number in numbers:
            offsets[number] = places[number][1] - start
            pattern.append((number, Binding(index, id(buffer) in written)))
    return BoundArrays(tuple(pattern), tuple(ranges), offsets)
