"""Copies between arrays and tiles: what a tile's elements' addresses are, and where it waits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

from poot_core import UnsupportedError
from poot_kernel.ir.core import Op, Region, Value
from poot_kernel.ir.layouts import Layout
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import ArrayType, SharedType, TileType, TokenType
from poot_kernel.targets.common.fragments import ceil_log2
from poot_kernel.targets.common.lowering import Handler, Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.staging import Stage, StagedCopy
from poot_kernel.targets.common.tiles import MemoryTile, OpaqueTile, Stride, Tile

__all__ = ["COPY_HANDLERS", "Pointer", "product_operands"]

_VIEWS = ("transpose", "reshape", "slice", "tile_move", "wait", "broadcast")


class Pointer:
    """An array argument: its address, and the type that the kernel gave it."""

    def __init__(self, address: Register, memory: ArrayType) -> None:
        self.address, self.memory = address, memory


def product_operands(region: Region) -> dict[Value, tuple[Op, int]]:
    """Return the values that reach an operand of a product through views and pipelines alone."""
    found: dict[Value, tuple[Op, int]] = {}
    for op in region.walk():
        if op.opcode == "mma":
            found[op.operands[0]], found[op.operands[1]] = (op, 0), (op, 1)
    while True:
        size = len(found)
        for op in region.walk():
            if op.opcode in _VIEWS and op.result in found:
                found[op.operands[0]] = found[op.result]
            if op.opcode == "pipeline":
                load, compute = op.regions
                moved = load.terminator.operands
                for value, argument in zip(moved, compute.arguments[-len(moved) :], strict=True):
                    if argument in found:
                        found[value] = found[argument]
        if len(found) == size:
            return found


def global_tile(low: Lowering, op: Op, tile: TileType, first: int) -> MemoryTile:
    """Return the tile that a copy or a store addresses; its indices start at operand ``first``."""
    pointer = low.get(op.operands[0])
    if not isinstance(pointer, Pointer):
        return _workgroup_tile(low, op, tile, first)
    memory = pointer.memory
    indices = [low.index(value) for value in op.operands[first : first + memory.rank]]
    layout = op.attributes["layout"]
    alignment = op.attributes["alignment"]
    assert isinstance(alignment, int)
    ops, size = low.arithmetic, memory.dtype.itemsize
    strides = low.strides(memory)
    offset = low.machine.constant(0, low.index_dtype)
    for index, stride in zip(indices, strides, strict=True):
        offset = ops.add(ops.mul(index, stride), offset)
    address = pointer.address
    base = ops.add(address, ops.mul(ops.convert(offset, address.dtype), size))
    known = _alignment(low, op, memory, first, alignment)
    bounds: list[tuple[Register, Register] | None] = []
    if isinstance(layout, Layout):
        operands = op.operands[first + memory.rank :]
        dynamic = [(low.index(v), low.promises.of(v)) for v in operands]
        found = [_layout_strides(layout, axis, dynamic, size) for axis in layout.axes]
    else:
        rank = len(tile.shape)
        sizes = low.stride_sizes(memory)[-rank:]
        found = [
            tuple(_bits(extent, stride, size, low.promises.of_size(known_size)))
            for extent, stride, known_size in zip(tile.shape, strides[-rank:], sizes, strict=True)
        ]
        if op.attributes["bounds"] == "masked":
            starts = op.operands[first : first + memory.rank][-rank:]
            bounds = [
                _bound(low, v, extent, size)
                for v, extent, size in zip(starts, tile.shape, memory.shape[-rank:], strict=True)
            ]
    return MemoryTile(
        "global", tile.dtype, tile.shape, base, tuple(found),
        tuple(bounds) if any(bounds) else (), known, address,
    )  # fmt: skip


def _workgroup_tile(low: Lowering, op: Op, tile: TileType, first: int) -> MemoryTile:
    """Return a tile of workgroup memory, which has constant extents."""
    memory, base = cast("tuple[SharedType, Register]", low.get(op.operands[0]))
    ops, size, rank = low.arithmetic, memory.dtype.itemsize, len(tile.shape)
    if op.attributes["layout"] or op.attributes["bounds"] == "masked":
        raise UnsupportedError(f"{op.opcode!r} of workgroup memory takes no layout and no mask")
    steps = [cast(int, step.constant) * size for step in low.stride_sizes(memory)]
    for value, step in zip(op.operands[first : first + memory.rank], steps, strict=True):
        base = ops.add(ops.mul(ops.convert(low.index(value), base.dtype), step), base)
    strides = tuple(
        tuple(Stride(step << i) for i in range(ceil_log2(extent)))
        for extent, step in zip(tile.shape, steps[-rank:], strict=True)
    )
    return MemoryTile("shared", tile.dtype, tile.shape, base, strides)


def _alignment(low: Lowering, op: Op, memory: ArrayType, first: int, given: int) -> int:
    """Return the bytes by which a tile's address is known to be aligned."""
    base = max(memory.alignment, low.promises.multiples.get(op.operands[0].name, 1))
    indices = op.operands[first : first + memory.rank]
    sizes = low.stride_sizes(memory)
    for index, size in zip(indices, sizes, strict=True):
        step = low.promises.of(index) * low.promises.of_size(size)
        base = math.gcd(base, step * memory.dtype.itemsize)
    return max(base, given)


def _bound(
    low: Lowering, start: Value, extent: int, size: Size | None
) -> tuple[Register, Register] | None:
    """Return first index and end for a mask; None where tiles are known to be whole.

    NOTE: a whole tile may still lie past the end, but grids and loops that follow the array's
    extent start none there.
    """
    if size is None or low.is_whole:
        return None
    if low.promises.of(start) % extent == 0 and low.promises.of_size(size) % extent == 0:
        return None
    return low.index(start), low.size(size)


def _bits(extent: int, stride: Register, size: int, multiple: int) -> Iterator[Stride]:
    for i in range(ceil_log2(extent)):
        if isinstance(stride.literal, int):
            yield Stride(stride.literal * size << i)
        else:
            yield Stride(size << i, stride, multiple)


def _layout_strides(
    layout: Layout, axis: str, dynamic: list[tuple[Register, int]], size: int
) -> tuple[Stride, ...]:
    found: list[Stride] = []
    for part in layout.parts:
        if part.axis != axis:
            continue
        for i in range(ceil_log2(part.size)):
            if part.is_dynamic:
                found.append(Stride(size << i, *dynamic[part.stride]))
            else:
                found.append(Stride(part.stride * size << i))
    return tuple(found)


def _copy(low: Lowering, op: Op) -> None:
    found = op.result.type
    tile_type = found.tile if isinstance(found, TokenType) else found
    assert isinstance(tile_type, TileType)
    source = global_tile(low, op, tile_type, 1)
    if source.space == "shared":
        low.set(op.result, source)
        return
    target = product_operands(low.kernel.body).get(op.result)
    staged = StagedCopy.of(low, op, source)
    is_worth = target is not None or tile_type.space == "shared"
    if not is_worth and not (low.stage is not None and staged.is_direct(low)):
        low.set(op.result, source)
        return
    if low.stage is not None:
        low.set(op.result, low.stage.copy(low, staged))
        return
    result: Tile = Stage.at_once(low, staged)
    if target is not None:
        # Outside of a pipeline the tile is used by many steps: keep it in registers if it may.
        layout = low.products.operand(low, *target)
        if layout is not None and layout.shape == result.shape:
            result = result.fragment(low, layout)
    low.set(op.result, result)


def _wait(low: Lowering, op: Op) -> None:
    low.set(op.result, low.get(op.operands[0]))


def _store_tile(low: Lowering, op: Op) -> None:
    value = op.operands[1]
    tile = cast(Tile, low.get(value))
    assert isinstance(value.type, TileType)
    target = global_tile(low, op, value.type, 2)
    if isinstance(tile, OpaqueTile) and tile.store_global(low, target):
        return
    layout = low.layout_of(value, value.type.shape)
    target.store(low, tile.fragment(low, layout))


COPY_HANDLERS: dict[str, Handler] = {
    "copy": _copy,
    "copy_async": _copy,
    "wait": _wait,
    "store_tile": _store_tile,
}
