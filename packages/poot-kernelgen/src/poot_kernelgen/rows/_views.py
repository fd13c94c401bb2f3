"""Where a node's operands are read for one position of its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from poot_kernelgen.requests import RowNode
from poot_kernelgen.rows._position import Position, flatten, piece_of, unflatten

__all__ = ["VIEWS", "operand_positions"]

VIEWS = frozenset({"broadcast", "reshape", "transpose", "slice", "concatenate"})
"""Operations that only say where an element comes from."""

Shape = Sequence[int]


def operand_positions(
    node: RowNode, shapes: Sequence[Shape], position: Position
) -> list[tuple[int, Position]]:
    """Return (which operand, its position) for every element that one element needs.

    Args:
        node: Any node but a reduction, a literal or an iota.
        shapes: Row-local shapes of its operands.
        position: Flat position in its result.

    Raises:
        Factor, Cut: If a loop variable has to be split first.
    """
    if node.op not in VIEWS:
        return [
            (index, position if math.prod(shape) > 1 else Position())
            for index, shape in enumerate(shapes)
        ]
    attributes: dict[str, Any] = dict(node.attributes)
    shape = shapes[0]
    if node.op != "concatenate" and math.prod(shape) == 1:
        return [(0, Position())]
    if node.op == "reshape" or (node.op == "broadcast" and tuple(shape) == tuple(node.shape)):
        return [(0, position)]
    if node.op == "slice":
        return [(0, _sliced(node, shape, attributes, position))]
    digits = unflatten(position, node.shape)
    if node.op == "broadcast":
        found = [
            digits[axis] if extent > 1 else Position()
            for extent, axis in zip(shape, attributes["dimensions"], strict=True)
        ]
        return [(0, flatten(found, shape))]
    if node.op == "transpose":
        source = [Position()] * len(digits)
        for axis, origin in enumerate(attributes["permutation"]):
            source[origin] = digits[axis]
        return [(0, flatten(source, shape))]
    axis = attributes["axis"]
    index, start = piece_of(digits[axis], [found[axis] for found in shapes])
    digits[axis] = digits[axis].shifted(-start)
    return [(index, flatten(digits, shapes[index]))]


def _sliced(
    node: RowNode, shape: Shape, attributes: dict[str, Any], position: Position
) -> Position:
    starts = attributes["starts"]
    strides = attributes.get("strides") or (1,) * len(starts)
    if tuple(node.shape[1:]) == tuple(shape[1:]) and strides[0] == 1:
        return position.shifted(starts[0] * math.prod(shape[1:]))
    digits = unflatten(position, node.shape)
    moved = [
        digit.times(stride).shifted(start)
        for digit, start, stride in zip(digits, starts, strides, strict=True)
    ]
    return flatten(moved, shape)
