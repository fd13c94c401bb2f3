"""Memory layouts of operand tiles: nested blocks of axes with strides, innermost first."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from poot_core import ShapeError

__all__ = ["Layout", "LayoutPart", "interleaved"]

_PART = re.compile(r"([a-z])(\d+)@(\$?)(\d+)")


@dataclass(frozen=True, slots=True)
class LayoutPart:
    """One level of a layout: ``size`` steps along ``axis``, each ``stride`` array elements apart.

    With ``is_dynamic`` the stride is an index into the copy's stride operands.
    """

    axis: str
    size: int
    stride: int
    is_dynamic: bool = False

    def __str__(self) -> str:
        return f"{self.axis}{self.size}@{'$' if self.is_dynamic else ''}{self.stride}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each element of a tile stands in a one-dimensional array.

    The coordinate along an axis is split over that axis's parts, the first part varying fastest;
    the offset is the sum of part coordinate times part stride, in elements of the array (bytes for
    a ``u8`` array).

    Attributes:
        axes: One letter for each tile axis, in tile order: ``mk`` for the left operand of ``mma``,
            ``kn`` for the right one.
        parts: Levels, innermost (smallest stride, by convention) first.

    >>> Layout.parse("kn: k4@1 n16@4 k8@64").shape
    (32, 16)
    """

    axes: str
    parts: tuple[LayoutPart, ...]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout that ``str`` printed.

        Raises:
            ShapeError: If the text is no layout or a part's axis is not declared.
        """
        axes, colon, rest = text.partition(":")
        parts: list[LayoutPart] = []
        for word in rest.split():
            match = _PART.fullmatch(word)
            if match is None or match[1] not in axes:
                raise ShapeError(f"{word!r} in layout {text!r} is no part like k4@1 or n2@$0")
            parts.append(LayoutPart(match[1], int(match[2]), int(match[4]), bool(match[3])))
        if not colon or not axes.isalpha() or len(set(axes)) != len(axes):
            raise ShapeError(f"{text!r} is no layout: write it like 'kn: k4@1 n16@4 k8@64 n2@$0'")
        return cls(axes, tuple(parts))

    @property
    def shape(self) -> tuple[int, ...]:
        """The tile shape covered."""
        return tuple(math.prod(p.size for p in self.parts if p.axis == axis) for axis in self.axes)

    @property
    def num_dynamic_strides(self) -> int:
        """How many stride operands a copy with this layout takes."""
        return max((p.stride + 1 for p in self.parts if p.is_dynamic), default=0)

    def offset(self, coordinates: tuple[int, ...], strides: tuple[int, ...] = ()) -> int:
        """Return the array offset of one element, given the dynamic strides."""
        left = dict(zip(self.axes, coordinates, strict=True))
        total = 0
        for part in self.parts:
            left[part.axis], step = divmod(left[part.axis], part.size)
            total += step * (strides[part.stride] if part.is_dynamic else part.stride)
        return total

    def __str__(self) -> str:
        return f"{self.axes}: {' '.join(map(str, self.parts))}"


def interleaved(axes: str, blocks: str, shape: tuple[int, ...], *, itemsize: int = 1) -> Layout:
    """Return a layout from its short name, such as ``k4n16`` for ``axes="kn"``.

    The named blocks are contiguous, innermost first; what remains of each axis follows: the first
    axis named right after the blocks, contiguously; the others by dynamic strides ``$0 ...``.

    Args:
        axes: Axis letters in tile order.
        blocks: Axis letters with sizes, innermost first.
        shape: Tile shape.
        itemsize: Array elements that one tile element takes (2 for f16 in a byte array).

    >>> str(interleaved("kn", "k4n16", (32, 32)))
    'kn: k4@1 n16@4 k8@64 n2@$0'
    """
    left = dict(zip(axes, shape, strict=True))
    parts: list[LayoutPart] = []
    stride = itemsize
    order: list[str] = []
    for axis, digits in re.findall(r"([a-z])(\d+)", blocks):
        size = int(digits)
        if axis not in left or left[axis] % size:
            raise ShapeError(f"block {axis}{size} does not divide shape {shape} of axes {axes!r}")
        parts.append(LayoutPart(axis, size, stride))
        stride *= size
        left[axis] //= size
        order.append(axis)
    order = list(dict.fromkeys([*order, *axes]))
    for number, axis in enumerate(order):
        if left[axis] == 1:
            continue
        if number == 0:
            parts.append(LayoutPart(axis, left[axis], stride))
        else:
            parts.append(LayoutPart(axis, left[axis], number - 1, is_dynamic=True))
    return Layout(axes, tuple(parts))
