"""Tiles in memory: which loads and stores move the lanes that are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from poot_core import DType, boolean, i32, i64, u8, u16, u32, u64
from poot_kernel.ir.core import Op
from poot_kernel.ir.layouts import Layout
from poot_kernel.ir.types import TileType
from poot_kernel.targets.host.emitter import Emitter, Val
from poot_kernel.targets.host.lowering import Lowering
from poot_kernel.targets.host.memory import Memory, load_value, store_value
from poot_kernel.targets.host.tiles import (
    Coordinates,
    RegisterTile,
    Tile,
    default_blocks,
    grid_coordinates,
)

__all__ = ["Addresses", "MemoryTile", "row_addresses", "store_elements", "tile_addresses"]

_WORDS = {1: u8, 2: u16, 4: u32, 8: u64}


@dataclass(frozen=True, slots=True)
class _Bound:
    """A masked axis: coordinate + start must lie in 0..extent."""

    axis: int
    start: Val
    extent: Val


class Addresses:
    """Where the elements of a tile lie: a static byte offset and a few dynamic parts.

    Attributes:
        memory: What is addressed.
        bounds: Axes whose elements may lie outside.
    """

    def __init__(
        self,
        memory: Memory,
        steps: list[tuple[int, int, int, int]],
        dynamic: list[tuple[int, int, int, Val]],
        start: Val,
        outer: Val,
        bounds: list[_Bound],
        rows: list[Val] | None = None,
    ) -> None:
        """Describe addresses.

        Args:
            memory: What is addressed.
            steps: (axis, divisor, size, bytes): coordinate // divisor % size steps of so many bytes.
            dynamic: The same with a run-time number of bytes.
            start: Bytes to the tile's origin that change often, such as the k index.
            outer: Bytes to it that seldom change; added first, so that they leave inner loops.
            bounds: Masked axes.
            rows: Byte offset of each row of axis 0, where rows are gathered.
        """
        self.memory = memory
        self.bounds = bounds
        self._steps = steps
        self._dynamic = dynamic
        self._start = start
        self._outer = outer
        self._rows = rows
        self._pointers: dict[tuple[int, ...], tuple[int, str]] = {}
        self._whole: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def offsets(self, coordinates: Coordinates) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return static byte offsets (lanes,) and dynamic steps (lanes, parts)."""
        static = np.zeros(len(coordinates), np.int64)
        for axis, divisor, size, stride in self._steps:
            static += coordinates[:, axis] // divisor % size * stride
        columns = [
            coordinates[:, axis] // divisor % size for axis, divisor, size, _ in self._dynamic
        ]
        if self._rows is not None:
            columns.append(coordinates[:, 0])
        keys = np.stack(columns, axis=1) if columns else np.zeros((len(static), 0), np.int64)
        return static, keys

    def whole(self, shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets of all elements of the tile."""
        if self._whole is None:
            self._whole = self.offsets(grid_coordinates(shape))
        return self._whole

    def pointer(self, lowering: Lowering, key: tuple[int, ...], static: int) -> str:
        """Return the address of an element."""
        e = lowering.emitter
        known = self._pointers.get(key)
        if known is None or not lowering.is_open(known[0]):
            fixed = self._outer
            for step, (*_, stride) in zip(key, self._dynamic, strict=False):
                fixed = e.add(fixed, e.mul(stride, e.index(step)))
            if self._rows is not None:
                fixed = e.add(fixed, self._rows[key[-1]])
            base = e.offset(self.memory.pointer, fixed)
            known = (lowering.scope, e.offset(base, self._start))
            self._pointers[key] = known
        return e.offset(known[1], e.index(static))

    def mask(self, lowering: Lowering, coordinates: Coordinates) -> Val | None:
        """Return which lanes lie inside; None if all do."""
        e, result = lowering.emitter, None
        lanes = len(coordinates) if len(coordinates) > 1 else 0
        for bound in self.bounds:
            along = coordinates[:, bound.axis]
            if (along == along[0]).all():
                index = e.add(bound.start, e.index(int(along[0])))
                inside = e.compare("icmp slt", index, bound.extent)
                inside = e.splat(inside, lanes) if lanes else inside
            else:
                # 32 bits are enough for what is left of an axis once it is limited.
                left = e.binary("sub nsw", bound.extent, bound.start)
                left = e.overloaded("smin", left, e.index(1 << 20))
                narrow = e.splat(e.cast("trunc", left, i32), lanes)
                texts = ", ".join(f"i32 {int(i)}" for i in along)
                inside = e.compare("icmp slt", Val(f"<{texts}>", i32, lanes), narrow)
            result = inside if result is None else e.binary("and", result, inside)
        return result


def tile_addresses(
    lowering: Lowering, op: Op, memory: Memory, first: int, shape: tuple[int, ...]
) -> Addresses:
    """Return the addresses of a copy or store whose base indices start at operand ``first``."""
    e = lowering.emitter
    indices = [_as_index(e, lowering.val(v)) for v in op.operands[first : first + memory.rank]]
    layout = op.attributes["layout"]
    if isinstance(layout, Layout):
        given = [lowering.val(v) for v in op.operands[first + memory.rank :]]
        return _layout_addresses(e, memory, layout, indices[0], given)
    is_masked = op.attributes["bounds"] == "masked"
    return _plain_addresses(e, memory, indices, shape, is_masked=is_masked)


def _as_index(e: Emitter, x: Val) -> Val:
    return x if x.dtype is i64 else e.cast("sext", x, i64)


def _layout_addresses(
    e: Emitter, memory: Memory, layout: Layout, base: Val, strides: list[Val]
) -> Addresses:
    itemsize = memory.dtype.itemsize
    steps: list[tuple[int, int, int, int]] = []
    dynamic: list[tuple[int, int, int, Val]] = []
    divisors = dict.fromkeys(layout.axes, 1)
    for part in layout.parts:
        axis, divisor = layout.axes.index(part.axis), divisors[part.axis]
        if part.is_dynamic:
            nbytes = e.mul(strides[part.stride], e.index(itemsize))
            dynamic.append((axis, divisor, part.size, nbytes))
        else:
            steps.append((axis, divisor, part.size, part.stride * itemsize))
        divisors[part.axis] *= part.size
    return Addresses(memory, steps, dynamic, e.mul(base, e.index(itemsize)), e.index(0), [])


def _plain_addresses(
    e: Emitter,
    memory: Memory,
    indices: list[Val],
    shape: tuple[int, ...],
    *,
    is_masked: bool = False,
    rows: list[Val] | None = None,
) -> Addresses:
    """Addresses of a box at ``indices``; with ``rows`` those are the byte offsets along axis 0."""
    itemsize = memory.dtype.itemsize
    steps: list[tuple[int, int, int, int]] = []
    dynamic: list[tuple[int, int, int, Val]] = []
    bounds: list[_Bound] = []
    start = outer = e.index(0)
    lead = memory.rank - len(shape)
    for number, (index, stride) in enumerate(zip(indices, memory.strides, strict=True)):
        nbytes = e.mul(stride, e.index(itemsize))
        moved = e.mul(index, nbytes)
        if isinstance(stride.constant, int):
            start = e.add(start, moved)
        else:
            outer = e.add(outer, moved)
        axis = number - lead
        if axis < 0 or (axis == 0 and rows is not None):
            continue
        if isinstance(nbytes.constant, int):
            steps.append((axis, 1, shape[axis], nbytes.constant))
        else:
            dynamic.append((axis, 1, shape[axis], nbytes))
        extent = memory.extents[number]
        if is_masked and extent is not None:
            bounds.append(_Bound(axis, index, extent))
    return Addresses(memory, steps, dynamic, start, outer, bounds, rows)


def row_addresses(
    lowering: Lowering, memory: Memory, rows: list[Val], indices: list[Val], shape: tuple[int, ...]
) -> Addresses:
    """Return the addresses of gathered rows; ``indices`` start the axes after the first."""
    e = lowering.emitter
    stride = e.mul(memory.strides[0], e.index(memory.dtype.itemsize))
    offsets = [e.mul(_as_index(e, row), stride) for row in rows]
    starts = [e.index(0), *(_as_index(e, index) for index in indices)]
    return _plain_addresses(e, memory, starts, shape, rows=offsets)


class MemoryTile(Tile):
    """A tile that is read from memory when its elements are asked for.

    It is frozen into registers before its memory changes.
    """

    def __init__(self, found: TileType, addresses: Addresses) -> None:
        super().__init__(found)
        self._addresses = addresses
        self._frozen: RegisterTile | None = None

    @property
    def memory(self) -> Memory:
        """Where it lies."""
        return self._addresses.memory

    def freeze(self, lowering: Lowering) -> None:
        """Read all elements now."""
        if self._frozen is None:
            blocks = default_blocks(lowering, self.type)
            values = [self.get(lowering, block) for block in blocks]
            self._frozen = RegisterTile(self.type, blocks, values, lowering.scope)

    def fetch(self, lowering: Lowering, coordinates: Coordinates) -> Val:
        """Load the lanes."""
        if self._frozen is not None:
            return self._frozen.get(lowering, coordinates)
        return _load(lowering, self._addresses, coordinates, self.type)


def _runs(static: NDArray[np.int64], keys: NDArray[np.int64], itemsize: int) -> int:
    """Return the longest power of two such that runs of that many lanes are contiguous."""
    lanes = len(static)
    run = 1
    while run < lanes and lanes % (2 * run) == 0:
        wide = 2 * run
        blocks = static.reshape(-1, wide)
        rows = keys.reshape(lanes // wide, wide, keys.shape[1])
        same = rows == rows[:, :1]
        if not ((blocks - blocks[:, :1] == np.arange(wide) * itemsize).all() and same.all()):
            break
        run = wide
    return run


def _load(
    lowering: Lowering, addresses: Addresses, coordinates: Coordinates, found: TileType
) -> Val:
    e, dtype = lowering.emitter, found.dtype
    lanes, itemsize = len(coordinates), dtype.itemsize
    static, keys = addresses.offsets(coordinates)
    run = _runs(static, keys, itemsize)
    if addresses.bounds:
        return _load_masked(lowering, addresses, coordinates, found, run)

    def pointer(lane: int) -> str:
        return addresses.pointer(lowering, tuple(int(i) for i in keys[lane]), int(static[lane]))

    if lanes == 1:
        return load_value(e, pointer(0), dtype, 0)
    if run == lanes:
        return load_value(e, pointer(0), dtype, lanes)
    nbytes = run * itemsize
    repeats = (static == np.tile(static[:run], lanes // run)).all() and (keys == keys[0]).all()
    if repeats and nbytes in _WORDS:
        word = load_value(e, pointer(0), _WORDS[nbytes], 0)
        return e.reinterpret(e.splat(word, lanes // run), dtype, lanes)
    strided = _strided_word(addresses, static, keys, found) if run == 1 else None
    if strided is not None:
        stride, within = strided
        word = _WORDS[stride]
        base = addresses.pointer(lowering, tuple(int(i) for i in keys[0]), int(static[0]) - within)
        wide = load_value(e, base, word, lanes)
        moved = e.binary("lshr", wide, e.const(8 * within, word, lanes)) if within else wide
        narrow = e.cast("trunc", moved, _WORDS[itemsize])
        return e.reinterpret(narrow, dtype, lanes)
    return _gather(lowering, addresses, static, keys, dtype, run)


def _strided_word(
    addresses: Addresses, static: NDArray[np.int64], keys: NDArray[np.int64], found: TileType
) -> tuple[int, int] | None:
    """Return (word bytes, offset in the word) if the lanes are one part of neighbouring words.

    All of the words must lie inside of the tile: its elements are known to be readable.
    """
    stride = int(static[1] - static[0])
    if stride not in _WORDS or not (keys == keys[0]).all():
        return None
    if not (np.diff(static) == stride).all() or stride <= found.dtype.itemsize:
        return None
    all_static, all_keys = addresses.whole(found.shape)
    mine = all_static[(all_keys == keys[0]).all(axis=1)]
    within = int(static[0]) % stride
    base = static[0] - within
    needed = base + np.arange(0, len(static) * stride, found.dtype.itemsize)
    return (stride, within) if np.isin(needed, mine).all() else None


def _gather(
    lowering: Lowering,
    addresses: Addresses,
    static: NDArray[np.int64],
    keys: NDArray[np.int64],
    dtype: DType,
    run: int,
) -> Val:
    """Join runs of contiguous elements, each loaded as one word or vector."""
    e, lanes = lowering.emitter, len(static)
    nbytes = run * dtype.itemsize
    pointers = [
        addresses.pointer(lowering, tuple(int(i) for i in keys[at]), int(static[at]))
        for at in range(0, lanes, run)
    ]
    if nbytes in _WORDS:
        word = dtype if run == 1 else _WORDS[nbytes]
        joined = e.undefined(word, lanes // run)
        for number, pointer in enumerate(pointers):
            joined = e.insert(joined, load_value(e, pointer, word, 0), number)
        return e.reinterpret(joined, dtype, lanes)
    vectors = [load_value(e, pointer, dtype, run) for pointer in pointers]
    while len(vectors) > 1:
        wide = 2 * vectors[0].lanes
        vectors = [
            e.shuffle(vectors[i], vectors[i + 1], list(range(wide)))
            for i in range(0, len(vectors), 2)
        ]
    return vectors[0]


def _masked_name(kind: str, value: Val) -> str:
    element = {"f32": "f32", "f64": "f64", "f16": "f16"}.get(value.dtype.name)
    return f"llvm.masked.{kind}.v{value.lanes}{element or f'i{value.dtype.bits}'}.p0"


def _load_masked(
    lowering: Lowering, addresses: Addresses, coordinates: Coordinates, found: TileType, run: int
) -> Val:
    e, dtype, lanes = lowering.emitter, found.dtype, len(coordinates)
    static, keys = addresses.offsets(coordinates)
    zero = e.const(0, dtype, lanes if lanes > 1 else 0)

    def pointer(lane: int) -> str:
        return addresses.pointer(lowering, tuple(int(i) for i in keys[lane]), int(static[lane]))

    if lanes > 1 and run == lanes and dtype.bits >= 32:
        mask = addresses.mask(lowering, coordinates)
        assert mask is not None
        name = _masked_name("load", zero)
        e.declare(f"{zero.type} @{name}(ptr, i32, {mask.type}, {zero.type})")
        return e.emit(f"call {zero.type} @{name}(ptr {pointer(0)}, i32 {dtype.itemsize}, "
                      f"{mask.typed}, {zero.typed})", dtype, lanes)  # fmt: skip
    # Runs whose elements are all inside or all outside: read the memory's start instead, then drop.
    while run > 1 and not _is_uniform(addresses, coordinates, run):
        run //= 2
    nbytes = run * dtype.itemsize
    while nbytes not in _WORDS:
        run, nbytes = run // 2, nbytes // 2
    word = dtype if run == 1 else _WORDS[nbytes]
    joined = e.undefined(word, lanes // run)
    for number, at in enumerate(range(0, lanes, run)):
        inside = addresses.mask(lowering, coordinates[at : at + 1])
        assert inside is not None
        chosen = e.name(f"select {inside.typed}, ptr {pointer(at)}, ptr {addresses.memory.pointer}")
        value = e.select(inside, load_value(e, chosen, word, 0), e.const(0, word))
        if lanes == run:
            return e.reinterpret(value, dtype, lanes if lanes > 1 else 0)
        joined = e.insert(joined, value, number)
    return e.reinterpret(joined, dtype, lanes)


def _is_uniform(addresses: Addresses, coordinates: Coordinates, run: int) -> bool:
    for bound in addresses.bounds:
        along = coordinates[:, bound.axis].reshape(-1, run)
        if not (along == along[:, :1]).all():
            # An extent that is a multiple of the run never cuts through one.
            start, extent = bound.start.constant, bound.extent.constant
            aligned = isinstance(start, int) and isinstance(extent, int)
            if not aligned or cast("int", start) % run or cast("int", extent) % run:
                return False
    return True


def store_elements(
    lowering: Lowering,
    tile: Tile,
    addresses: Addresses,
    order: Coordinates,
    guards: list[Val | None] | None = None,
) -> None:
    """Write a tile's elements, in an order in which neighbours in memory follow each other.

    Args:
        lowering: Where to emit.
        tile: What to write.
        addresses: Where to.
        order: All coordinates.
        guards: For each row of axis 0, a condition under which it is written.
    """
    e, dtype = lowering.emitter, tile.dtype
    most = lowering.machine.lanes(dtype.bits)
    static, keys = addresses.offsets(order)
    at = 0
    while at < len(order):
        lanes = _run_from(static, keys, at, dtype.itemsize, most)
        block = order[at : at + lanes]
        value = tile.get(lowering, block)
        pointer = addresses.pointer(lowering, tuple(int(i) for i in keys[at]), int(static[at]))
        mask = addresses.mask(lowering, block)
        guard = guards[int(block[0, 0])] if guards is not None else None
        if guard is not None:
            wide = e.splat(guard, value.lanes) if value.lanes else guard
            mask = wide if mask is None else e.binary("and", mask, wide)
        _store(lowering, pointer, value, mask)
        at += lanes


def _run_from(
    static: NDArray[np.int64], keys: NDArray[np.int64], at: int, itemsize: int, most: int
) -> int:
    lanes = 1
    while lanes < most and at + 2 * lanes <= len(static):
        block = static[at : at + 2 * lanes]
        same = (keys[at : at + 2 * lanes] == keys[at]).all()
        if not same or not (block - block[0] == np.arange(2 * lanes) * itemsize).all():
            break
        lanes *= 2
    return lanes


def _store(lowering: Lowering, pointer: str, value: Val, mask: Val | None) -> None:
    e = lowering.emitter
    if mask is None:
        store_value(e, pointer, value)
    elif value.lanes and value.dtype.bits >= 32 and value.dtype is not boolean:
        name = _masked_name("store", value)
        e.declare(f"void @{name}({value.type}, ptr, i32, {mask.type})")
        e.line(f"call void @{name}({value.typed}, ptr {pointer}, i32 {value.dtype.itemsize}, "
               f"{mask.typed})")  # fmt: skip
    else:
        for lane in range(max(value.lanes, 1)):
            inside = e.extract(mask, lane) if mask.lanes else mask
            one = e.extract(value, lane) if value.lanes else value
            write, done = e.fresh("write"), e.fresh("done")
            e.line(f"br i1 {inside.name}, label %{write}, label %{done}")
            e.start(write)
            at = e.offset(pointer, e.index(lane * value.dtype.itemsize))
            store_value(e, at, one)
            e.line(f"br label %{done}")
            e.start(done)
