"""What tile values are while a kernel is lowered; each can be asked for as a fragment."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from poot_core import DType, UnsupportedError, u32
from poot_kernel.targets.common.fragments import Bit, Fragment, ceil_log2, log2, runs
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register, SpaceName

__all__ = ["FragmentTile", "IotaTile", "MemoryTile", "OpaqueTile", "Stride", "Tile", "UniformTile"]


class Tile(Protocol):
    """A tile value."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        ...

    @property
    def dtype(self) -> DType:
        """Element type."""
        ...

    def fragment(self, low: Lowering, layout: Fragment) -> FragmentTile:
        """Return the elements spread as the layout says; extents are the layout's or 1."""
        ...


@dataclass(frozen=True, slots=True)
class UniformTile:
    """Equal elements."""

    shape: tuple[int, ...]
    value: Register

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.value.dtype

    def fragment(self, low: Lowering, layout: Fragment) -> FragmentTile:
        """Return the elements spread as the layout says."""
        layout = layout.restricted(self.shape)
        return FragmentTile(layout, self.dtype, [self.value] * len(layout.coordinates()))


@dataclass(frozen=True, slots=True)
class IotaTile:
    """Coordinates along an axis."""

    shape: tuple[int, ...]
    axis: int
    dtype: DType

    def fragment(self, low: Lowering, layout: Fragment) -> FragmentTile:
        """Return the elements spread as the layout says."""
        layout = layout.restricted(self.shape)
        base = low.coordinate(layout, self.axis)
        ops = low.arithmetic
        found = [ops.convert(ops.add(base, c[self.axis]), self.dtype) for c in layout.coordinates()]
        return FragmentTile(layout, self.dtype, found)


@dataclass(frozen=True, slots=True)
class FragmentTile:
    """A tile in registers: elements in the order of ``layout.coordinates()``, or packed words."""

    layout: Fragment
    dtype: DType
    values: list[Register]
    words: list[Register] = field(default_factory=list[Register])

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.layout.shape

    def elements(self, low: Lowering) -> list[Register]:
        """Return one register for each element."""
        if self.values:
            return self.values
        return [x for word in self.words for x in low.arithmetic.unpack(word, self.dtype)]

    def by_coordinates(self, low: Lowering) -> dict[tuple[int, ...], Register]:
        """Return the registers by what they add to the coordinates."""
        return dict(zip(self.layout.coordinates(), self.elements(low), strict=True))

    def fragment(self, low: Lowering, layout: Fragment) -> FragmentTile:
        """Return the elements spread as the layout says, through shared memory where they move."""
        layout = layout.restricted(self.shape)
        if layout == self.layout:
            return self
        if layout.agrees(self.layout):
            found = self.by_coordinates(low)
            return FragmentTile(layout, self.dtype, [found[c] for c in layout.coordinates()])
        return self.in_shared(low).fragment(low, layout)

    def in_shared(self, low: Lowering) -> MemoryTile:
        """Return a copy in shared memory, ordered for every invocation.

        NOTE: blocks of one size are shared, so that the copy must be used before the next one.
        """
        num_bytes = shared_bytes(self.shape, self.dtype)
        start = low.allocate(("scratch", num_bytes), num_bytes)
        tile = shared_tile(self.shape, self.dtype, start)
        low.barrier()
        tile.store(low, self)
        low.barrier()
        return tile


@dataclass(frozen=True, slots=True)
class OpaqueTile(ABC):
    """An accumulator whose layout only the device knows; ``parts`` are the machine's values."""

    shape: tuple[int, ...]
    parts: list[Register]
    dtype: DType

    def rebuilt(self, parts: list[Register]) -> OpaqueTile:
        """Return a tile of the same form."""
        return replace(self, parts=parts)

    @abstractmethod
    def fragment(self, low: Lowering, layout: Fragment) -> FragmentTile:
        """Return the elements spread as the layout says."""

    @abstractmethod
    def store_global(self, low: Lowering, target: MemoryTile) -> bool:
        """Store to an array; False if it takes a fragment."""


@dataclass(frozen=True, slots=True)
class Stride:
    """Bytes between neighbours: ``constant``, times ``dynamic`` if there is one.

    ``multiple`` is a known divisor of ``dynamic``.
    """

    constant: int
    dynamic: Register | None = None
    multiple: int = 1

    def doubled(self) -> Stride:
        """Return twice the stride."""
        return replace(self, constant=self.constant * 2)


@dataclass(frozen=True, slots=True)
class MemoryTile:
    """A tile in memory, read when it is used.

    Attributes:
        base: Byte address (global) or byte offset (shared) of its first element.
        strides: For each axis, the stride of each bit of its coordinate, lowest first.
        bounds: For each axis, its first index and the array's extent if accesses are masked.
        alignment: Bytes by which the base is known to be aligned.
        origin: The array's address, for masked reads.
    """

    space: SpaceName
    dtype: DType
    shape: tuple[int, ...]
    base: Register
    strides: tuple[tuple[Stride, ...], ...]
    bounds: tuple[tuple[Register, Register] | None, ...] = ()
    alignment: int = 16
    origin: Register | None = None

    def stride(self, bit: Bit) -> Stride:
        """Return how far a bit moves."""
        return self.strides[bit.axis][log2(bit.step)]

    def address(self, low: Lowering, layout: Fragment) -> Register:
        """Return the address of an invocation's first element."""
        total = self.base
        for source, slots in ((low.lane, layout.lanes), (low.subgroup, layout.subgroups)):
            for start, count, first in self._straight(slots):
                field = start, count, len(slots), self.stride(first)
                total = low.arithmetic.add(total, self._moved_by(low, source, field))
        return total

    def _moved_by(
        self, low: Lowering, source: Callable[[], Register], field: tuple[int, int, int, Stride]
    ) -> Register:
        """Return what some bits of the lane's or the subgroup's number add to the address."""
        start, count, width, stride = field
        ops, dtype = low.arithmetic, self.base.dtype

        def emit() -> Register:
            part = ops.convert(ops.field(source(), start, count, width, stride.constant), dtype)
            if stride.dynamic is None:
                return part
            return ops.mul(part, ops.convert(stride.dynamic, dtype))

        if not low.is_from_entry(stride.dynamic):
            return emit()
        return low.at_entry(("field", source.__name__, field, dtype), emit)

    def _straight(self, slots: tuple[Bit | None, ...]) -> Iterator[tuple[int, int, Bit]]:
        for start, count, first in runs(slots):
            begin = 0
            for i in range(1, count + 1):
                here = Bit(first.axis, first.step << i)
                before = Bit(first.axis, first.step << (i - 1))
                if i == count or self.stride(here) != self.stride(before).doubled():
                    yield start + begin, i - begin, Bit(first.axis, first.step << begin)
                    begin = i

    def moved(self, low: Lowering, address: Register, where: Sequence[int]) -> tuple[Register, int]:
        """Return an address moved by coordinates, and a constant left to add."""
        constant = 0
        for axis, coordinate in enumerate(where):
            for i, stride in enumerate(self.strides[axis]):
                if not coordinate >> i & 1:
                    continue
                if stride.dynamic is None:
                    constant += stride.constant
                    continue
                wide = low.arithmetic.convert(stride.dynamic, address.dtype)
                step = low.arithmetic.mul(wide, stride.constant)
                address = low.arithmetic.add(address, step)
        return address, constant

    def valid(self, low: Lowering, layout: Fragment, where: Sequence[int]) -> Register | None:
        """Return whether an element lies inside of the array; None if it always does."""
        found: Register | None = None
        ops = low.arithmetic
        for axis, bound in enumerate(self.bounds):
            if bound is None:
                continue
            at = ops.add(bound[0], low.column(low.coordinate(layout, axis)))
            inside = low.machine.compare("lt", ops.add(at, where[axis]), bound[1])
            found = inside if found is None else low.machine.binary("and", found, inside)
        return found

    def vectors(self, layout: Fragment) -> tuple[Fragment, int]:
        """Return the layout with neighbours in memory first, and how many of them there are.

        A row that is known to be aligned to a vector ends with a whole one, so masks may look at
        its first element alone.
        """
        bits, size = list(layout.registers), self.dtype.itemsize
        ordered: list[Bit] = []
        while size << len(ordered) < 16:
            wanted = size << len(ordered)
            near = next((b for b in bits if self.stride(b) == Stride(wanted)), None)
            if near is None or self._granule(wanted) % (2 * wanted):
                break
            bits.remove(near)
            ordered.append(near)
        return layout.with_registers((*ordered, *bits)), 1 << len(ordered)

    def _granule(self, within: int) -> int:
        """Return a divisor of every address but for bits that move ``within`` bytes at most."""
        strides = [s for axis in self.strides for s in axis]
        apart = [s for s in strides if s.dynamic is not None or s.constant > within]
        return math.gcd(self.alignment, *(s.constant * s.multiple for s in apart))

    def fragment(self, low: Lowering, layout: Fragment) -> FragmentTile:
        """Load the elements."""
        layout, count = self.vectors(layout.restricted(self.shape))
        address = self.address(low, layout)
        values: list[Register] = []
        words: list[Register] = []
        is_packed = self.dtype.bits < 32 and count * self.dtype.itemsize >= 4
        for where in layout.coordinates()[::count]:
            at, constant = self.moved(low, address, where)
            valid = self.valid(low, layout, where)
            if valid is not None:  # what is masked reads the array's first element instead
                origin = self.base if self.origin is None else self.origin
                at = low.machine.select(valid, low.arithmetic.add(at, constant), origin)
                constant = 0
            if is_packed:
                num_words = count * self.dtype.itemsize // 4
                found = low.machine.load(self.space, at, constant, u32, num_words)
                words += _masked(low, found, valid)
                continue
            values += _masked(low, self._elements(low, at, constant, count), valid)
        return FragmentTile(layout, self.dtype, values, words)

    def _elements(
        self, low: Lowering, address: Register, offset: int, count: int
    ) -> list[Register]:
        """Load neighbours: together, or one by one where they do not fill a word."""
        load, size = low.machine.load, self.dtype.itemsize
        if self.dtype.bits >= 32:
            return load(self.space, address, offset, self.dtype, count)
        places = range(offset, offset + count * size, size)
        return [load(self.space, address, place, self.dtype, 1)[0] for place in places]

    def store(self, low: Lowering, tile: FragmentTile) -> None:
        """Write the elements."""
        layout, count = self.vectors(tile.layout)
        tile = tile.fragment(low, layout)
        address = self.address(low, layout)
        elements = tile.elements(low)
        for number, where in enumerate(layout.coordinates()[::count]):
            values = elements[number * count : (number + 1) * count]
            valid = self.valid(low, layout, where)
            self._write(low, self.moved(low, address, where), values, valid)

    def _write(
        self,
        low: Lowering,
        place: tuple[Register, int],
        values: list[Register],
        valid: Register | None,
    ) -> None:
        narrow, size = self.dtype.bits * len(values) < 32, self.dtype.itemsize
        groups = [[x] for x in values] if narrow else [low.arithmetic.pack(values)]

        def emit() -> None:
            for number, group in enumerate(groups):
                low.machine.store(self.space, place[0], place[1] + number * size, group)

        if valid is None:
            emit()
        else:
            low.machine.branch(valid, emit)

    def transposed(self, order: Sequence[int]) -> MemoryTile:
        """Return the view with axes permuted."""
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in order),
            strides=tuple(self.strides[axis] for axis in order),
            bounds=tuple(self.bounds[axis] for axis in order) if self.bounds else (),
        )

    def reshaped(self, shape: tuple[int, ...]) -> MemoryTile:
        """Return the row-major view of another shape."""
        if self.bounds:
            raise UnsupportedError("a masked tile cannot be reshaped in memory; use full bounds")
        bits = [stride for axis in reversed(self.strides) for stride in axis]
        strides: list[tuple[Stride, ...]] = []
        for extent in reversed(shape):
            strides.insert(0, tuple(bits[: log2(extent)]))
            bits = bits[log2(extent) :]
        return replace(self, shape=shape, strides=tuple(strides))

    def sliced(self, low: Lowering, starts: Sequence[int], shape: tuple[int, ...]) -> MemoryTile:
        """Return the view of a box."""
        base, constant = self.moved(low, self.base, starts)
        bounds = tuple(
            b and (low.arithmetic.add(b[0], start), b[1])
            for b, start in zip(self.bounds, starts, strict=False)
        )
        strides = tuple(s[: ceil_log2(e)] for s, e in zip(self.strides, shape, strict=True))
        base = low.arithmetic.add(base, constant)
        return replace(self, shape=shape, base=base, strides=strides, bounds=bounds)


def shared_pitch(shape: tuple[int, ...], dtype: DType) -> int:
    """Return the bytes between rows in shared memory: 16 of padding keep banks apart."""
    return shape[-1] * dtype.itemsize + 16


def shared_bytes(shape: tuple[int, ...], dtype: DType) -> int:
    """Return the bytes that a tile takes in shared memory."""
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    return rows * shared_pitch(shape, dtype)


def shared_tile(shape: tuple[int, ...], dtype: DType, base: Register) -> MemoryTile:
    """Return a row-major tile in shared memory at a byte offset."""
    pitch = shared_pitch(shape, dtype)
    strides: list[tuple[Stride, ...]] = [_bits(dtype.itemsize, shape[-1])]
    for extent in reversed(shape[:-1]):
        strides.insert(0, _bits(pitch, extent))
        pitch *= extent
    return MemoryTile("shared", dtype, shape, base, tuple(strides))


def _bits(stride: int, extent: int) -> tuple[Stride, ...]:
    return tuple(Stride(stride << i) for i in range(ceil_log2(extent)))


def _masked(low: Lowering, values: list[Register], valid: Register | None) -> list[Register]:
    if valid is None:
        return values
    return [low.machine.select(valid, x, low.machine.constant(0, x.dtype)) for x in values]
