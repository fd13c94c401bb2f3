"""Tiles whose rows lie anywhere: each row's number is an element of another tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from poot_core import DType, UnsupportedError
from poot_kernel.ir.core import Op
from poot_kernel.ir.types import TileType
from poot_kernel.targets.common.copies import Pointer
from poot_kernel.targets.common.fragments import Bit, Fragment
from poot_kernel.targets.common.lowering import Handler, Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.tiles import FragmentTile, Tile

__all__ = ["ROW_HANDLERS"]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of an array of two axes, read when they are used.

    Attributes:
        pointer: The array.
        numbers: Row numbers, a tile of one axis.
        column: First column.
        alignment: Bytes by which the first element of every row is aligned.
    """

    pointer: Pointer
    numbers: Tile
    column: Register
    shape: tuple[int, ...]
    dtype: DType
    alignment: int

    def fragment(self, low: Lowering, layout: Fragment) -> FragmentTile:
        """Load the elements."""
        layout, count = self.vectors(layout.restricted(self.shape))
        values: list[Register] = []
        places = layout.coordinates()
        for where, (address, offset, _) in zip(
            places[::count], self.addresses(low, layout, count), strict=True
        ):
            del where
            values += low.machine.load("global", address, offset, self.dtype, count)
        return FragmentTile(layout, self.dtype, values)

    def vectors(self, layout: Fragment) -> tuple[Fragment, int]:
        """Return the layout with neighbouring columns first, and how many stand together."""
        bits, near = list(layout.registers), list[Bit]()
        size = self.dtype.itemsize
        while size << len(near) < min(16, self.alignment):
            wanted = Bit(1, 1 << len(near))
            if wanted not in bits:
                break
            bits.remove(wanted)
            near.append(wanted)
        return layout.with_registers((*near, *bits)), 1 << len(near)

    def addresses(
        self, low: Lowering, layout: Fragment, count: int
    ) -> list[tuple[Register, int, Register]]:
        """Return address, byte offset and row number of each vector."""
        ops, size = low.arithmetic, self.dtype.itemsize
        held = self.numbers.fragment(low, _along_rows(layout)).by_coordinates(low)
        stride = low.strides(self.pointer.memory)[0]
        first = ops.add(low.column(low.coordinate(layout, 1)), self.column)
        known: dict[int, tuple[Register, Register]] = {}
        found: list[tuple[Register, int, Register]] = []
        for row, column in layout.coordinates()[::count]:
            if row not in known:
                number = ops.convert(held[(row,)], low.index_dtype)
                place = ops.add(ops.mul(number, stride), first)
                base = self.pointer.address
                moved = ops.mul(ops.convert(place, base.dtype), size)
                known[row] = ops.add(base, moved), number
            found.append((known[row][0], column * size, known[row][1]))
        return found


def _along_rows(layout: Fragment) -> Fragment:
    """Return who holds which row."""

    def kept(bit: Bit | None) -> Bit | None:
        return bit if bit is not None and bit.axis == 0 else None

    return Fragment(
        layout.shape[:1],
        tuple(b for b in layout.registers if b.axis == 0),
        tuple(kept(b) for b in layout.lanes),
        tuple(kept(b) for b in layout.subgroups),
    )


def _rows(low: Lowering, op: Op, tile: TileType, first: int) -> _Rows:
    pointer = low.get(op.operands[0])
    widths = (16, 32) if op.opcode == "store_rows" else (32,)
    if (
        not isinstance(pointer, Pointer)
        or pointer.memory.rank != 2
        or tile.dtype.bits not in widths
    ):
        raise UnsupportedError(
            f"{op.opcode!r} is lowered for arrays of two axes of {' or '.join(map(str, widths))} bits "
            f"alone, not {tile.dtype}"
        )
    column = op.operands[first + 1]
    memory, size = pointer.memory, tile.dtype.itemsize
    steps = [low.promises.of_size(low.stride_sizes(memory)[0]), low.promises.of(column)]
    base = max(memory.alignment, low.promises.multiples.get(op.operands[0].name, 1))
    alignment = math.gcd(base, *(step * size for step in steps))
    numbers = cast(Tile, low.get(op.operands[first]))
    return _Rows(pointer, numbers, low.index(column), tile.shape, tile.dtype, alignment)


def _copy_rows(low: Lowering, op: Op) -> None:
    found = op.result.type
    assert isinstance(found, TileType)
    low.set(op.result, _rows(low, op, found, 1))


def _store_rows(low: Lowering, op: Op) -> None:
    """Write each row where its number says; negative ones are dropped."""
    value = op.operands[1]
    assert isinstance(value.type, TileType)
    target = _rows(low, op, value.type, 2)
    tile = cast(Tile, low.get(value)).fragment(low, low.layout_of(value, value.type.shape))
    layout, count = target.vectors(tile.layout)
    elements = tile.fragment(low, layout).elements(low)
    zero = low.machine.constant(0, low.index_dtype)
    for number, (address, offset, row) in enumerate(target.addresses(low, layout, count)):
        part = elements[number * count : (number + 1) * count]

        def emit(
            address: Register = address, offset: int = offset, part: list[Register] = part
        ) -> None:
            words = low.arithmetic.pack(part) if len(part) > 1 else part
            low.machine.store("global", address, offset, words)

        low.machine.branch(low.machine.compare("ge", row, zero), emit)


ROW_HANDLERS: dict[str, Handler] = {"copy_rows": _copy_rows, "store_rows": _store_rows}
