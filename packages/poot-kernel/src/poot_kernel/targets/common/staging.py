"""Copies that feed products wait in shared memory: in the background, or through registers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from poot_kernel.ir.core import Op
from poot_kernel.targets.common.fragments import Bit, Fragment, bits_along, ceil_log2, log2
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.tiles import MemoryTile, Stride

__all__ = ["Stage", "StagedCopy"]

CHUNK_BYTES = 16
MIN_ROW_BYTES = 64


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """One copy and the memory that it reads.

    Attributes:
        op: The copy.
        source: The memory, its extents rounded up to powers of two and masked beyond.
        shape: The tile's own extents.
        order: Bits of the coordinates in the order of memory, nearest first.
    """

    op: Op
    source: MemoryTile
    shape: tuple[int, ...]
    order: tuple[Bit, ...]

    @classmethod
    def of(cls, low: Lowering, op: Op, source: MemoryTile) -> StagedCopy:
        """Return the plan for a copy."""
        shape = tuple(1 << ceil_log2(extent) for extent in source.shape)
        padded = source
        if shape != source.shape:
            index = low.index_dtype
            whole = source.bounds or (None,) * len(shape)
            bounds = tuple(
                (low.machine.constant(0, index), low.machine.constant(extent, index))
                if extent != wide else bound
                for extent, wide, bound in zip(source.shape, shape, whole, strict=True)
            )  # fmt: skip
            padded = replace(source, shape=shape, bounds=bounds)

        def place(bit: Bit) -> tuple[bool, int, int]:
            stride = source.stride(bit)
            return stride.dynamic is not None, -bit.axis if stride.dynamic else 0, stride.constant

        bits = [b for axis, extent in enumerate(shape) for b in bits_along(axis, 1, extent)]
        return cls(op, padded, source.shape, tuple(sorted(bits, key=place)))

    def layout(self, low: Lowering) -> Fragment:
        """Return who copies what: 16 bytes an invocation, neighbours side by side."""
        count = log2(CHUNK_BYTES // self.source.dtype.itemsize)
        near = [b for i, b in enumerate(self.order[:count]) if self._is_near(i)]
        rest = self.order[len(near) :]
        slots: list[Bit | None] = [*rest[: log2(low.threads)]]
        slots += [None] * (log2(low.threads) - len(slots))
        lanes = log2(low.machine.subgroup_size)
        left = rest[log2(low.threads) :]
        registers = (*near, *left)
        return Fragment(self.source.shape, registers, tuple(slots[:lanes]), tuple(slots[lanes:]))

    def _is_near(self, number: int) -> bool:
        return self.source.stride(self.order[number]) == Stride(
            self.source.dtype.itemsize << number
        )

    def is_direct(self, low: Lowering) -> bool:
        """Whether the copy can go in the background, 16 bytes at a time."""
        count = self.source.vectors(self.layout(low))[1]
        return low.machine.has_async_copy and count * self.source.dtype.itemsize == CHUNK_BYTES

    def in_shared(self, base: Register) -> tuple[MemoryTile, int]:
        """Return the tile in shared memory, in the order of the source, and its bytes.

        Rows along one axis, of 64 bytes and more or apart in the source, get 16 bytes of padding,
        which keeps the banks of neighbouring rows apart; interleaved blocks lie as they came.
        """
        strides: dict[Bit, Stride] = {}
        step, is_padded = self.source.dtype.itemsize, False
        for number, bit in enumerate(self.order):
            rows = len({b.axis for b in self.order[:number]}) == 1 and step >= MIN_ROW_BYTES
            ends = rows and bit.axis != self.order[0].axis
            if not is_padded and (ends or not self._is_near(number)):
                step, is_padded = step + 16, True
            strides[bit] = Stride(step)
            step *= 2
        axes = tuple(
            tuple(strides[b] for b in bits_along(axis, 1, extent))
            for axis, extent in enumerate(self.source.shape)
        )
        return MemoryTile("shared", self.source.dtype, self.shape, base, axes), -(
            -step // 128
        ) * 128


@dataclass(slots=True)
class Stage:
    """What a pipeline's load part does at present.

    Attributes:
        mode: ``issue`` starts background copies, ``fetch`` loads to registers, ``deposit`` writes
            those to shared memory, ``use`` only names the tiles.
        slot: Number of the ring's slot.
        num_slots: Slots of the ring.
        words: What was fetched, by copy.
    """

    mode: Literal["issue", "fetch", "deposit", "use"]
    slot: Register
    num_slots: int
    words: dict[Op, list[Register]] = field(default_factory=dict["Op", "list[Register]"])

    def copy(self, low: Lowering, staged: StagedCopy) -> MemoryTile:
        """Do this stage's part of a copy and return the tile in shared memory."""
        source, layout = staged.source, staged.layout(low)
        _, num_bytes = staged.in_shared(self.slot)
        start = low.allocate(staged.op, num_bytes * self.num_slots)
        base = low.arithmetic.add(low.arithmetic.mul(self.slot, num_bytes), start)
        tile, _ = staged.in_shared(base)
        wide = replace(tile, shape=source.shape)
        if self.mode == "issue" and staged.is_direct(low):
            _copy_in_background(low, source, wide, layout)
            return tile
        if self.mode in ("issue", "fetch"):
            loaded = source.fragment(low, layout)
            self.words[staged.op] = loaded.words or loaded.fragment(low, layout).values
        if self.mode in ("issue", "deposit"):
            _deposit(low, source, wide, layout, self.words[staged.op])
        return tile

    @classmethod
    def at_once(cls, low: Lowering, staged: StagedCopy) -> MemoryTile:
        """Copy to shared memory and wait."""
        tile = cls("issue", low.arithmetic.word(0), 1).copy(low, staged)
        low.machine.async_commit()
        low.machine.async_wait(0)
        low.barrier()
        return tile


def _copy_in_background(
    low: Lowering, source: MemoryTile, tile: MemoryTile, layout: Fragment
) -> None:
    layout, count = source.vectors(layout)
    read, write = source.address(low, layout), tile.address(low, layout)
    for where in layout.coordinates()[::count]:
        at, constant = source.moved(low, read, where)
        valid = source.valid(low, layout, where)
        at = low.arithmetic.add(at, constant)
        if valid is not None and source.origin is not None:
            at = low.machine.select(valid, at, source.origin)
        to, constant = tile.moved(low, write, where)
        low.machine.async_copy(to, constant, at, valid)


def _deposit(
    low: Lowering, source: MemoryTile, tile: MemoryTile, layout: Fragment, found: list[Register]
) -> None:
    ordered, _ = source.vectors(layout)
    is_packed = len(found) < len(layout.coordinates())
    elements = found
    if is_packed:
        elements = [x for word in found for x in low.arithmetic.unpack(word, source.dtype)]
    by_place = dict(zip((ordered if is_packed else layout).coordinates(), elements, strict=True))
    chunk, count = tile.vectors(layout)
    write = tile.address(low, chunk)
    if is_packed and ordered == chunk:  # words go as they came
        per = count * source.dtype.itemsize // 4
        for number, where in enumerate(chunk.coordinates()[::count]):
            to, constant = tile.moved(low, write, where)
            low.machine.store("shared", to, constant, found[number * per : (number + 1) * per])
        return
    places = chunk.coordinates()
    for first in range(0, len(places), count):
        to, constant = tile.moved(low, write, places[first])
        values = [by_place[c] for c in places[first : first + count]]
        if count * source.dtype.bits >= 32:
            values = low.arithmetic.pack(values)
        low.machine.store("shared", to, constant, values)
