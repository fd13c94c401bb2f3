"""A machine that runs what it is told at once, on NumPy arrays over a workgroup's invocations.

It checks the shared lowering, a target's atoms and their layouts without a device: loops repeat the
lowering of their body, addresses outside of the arguments are errors. Barriers do nothing, so that
races are not found; the devices' own tests are for those.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from poot_core import DType, bf16, boolean, f16, f32, i32, u32, u64
from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.types import ArrayType, ScalarType
from poot_kernel.targets.common.fragments import Fragment
from poot_kernel.targets.common.lower import default_threads, lower_kernel
from poot_kernel.targets.common.machine import Register, SpaceName, kind_of
from poot_kernel.targets.common.products import Atom, AtomMachine, AtomSide, FragmentProducts

__all__ = ["EagerMachine", "run_eagerly"]

Values = np.ndarray[Any, Any]
_GAP = 256  # bytes between arrays, so that a step outside is seen


def _rsqrt(x: Values) -> Values:
    return 1 / np.sqrt(x)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift,
    "shr": np.right_shift, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "neg": np.negative, "abs": np.abs,
    "not": np.invert, "exp2": np.exp2, "log2": np.log2, "sqrt": np.sqrt, "sin": np.sin,
    "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint,
    "rsqrt": _rsqrt,
}  # fmt: skip


class EagerMachine(AtomMachine):
    """One workgroup; values are arrays over its invocations."""

    shared_limit = 1 << 20

    def __init__(
        self, heap: Values, regions: Sequence[tuple[int, int]], threads: int,
        place: tuple[int, int, int], grid: tuple[int, int, int],
        *, atoms: tuple[Atom, ...], subgroup_size: int, has_async_copy: bool,
    ) -> None:  # fmt: skip
        self.heap, self.regions, self.threads = heap, regions, threads
        self.place, self.grid = place, grid
        self.atoms, self.subgroup_size, self.has_async_copy = atoms, subgroup_size, has_async_copy
        self.shared = np.full(self.shared_limit, 0xA5, np.uint8)
        self.mask = np.ones(threads, bool)
        self.values: dict[str, Values] = {}
        self._names = itertools.count()
        self._dtypes: dict[str, DType] = {}

    # ---- values

    def wrap(self, values: Values, dtype: DType) -> Register:
        """Return an array over the invocations as a register."""
        kind = {"boolean": bool, "float": np.float32, "long": np.int64}.get(kind_of(dtype))
        signed = kind or (np.int32 if dtype.kind == "int" else np.uint32)
        if kind_of(dtype) == "long" and dtype.kind == "uint":
            signed = np.uint64
        name = f"e{next(self._names)}"
        self.values[name] = np.broadcast_to(values, (self.threads,)).astype(signed)
        return Register(name, dtype)

    def of(self, x: Register) -> Values:
        """Return a register's array."""
        return self.values[x.code]

    def constant(self, value: float, dtype: DType) -> Register:
        """Return a literal."""
        bits = 64 if kind_of(dtype) == "long" else 32
        held = value if dtype in (f32, boolean) else int(value) & (1 << bits) - 1
        array = np.array(held, np.float32) if dtype is f32 else np.array(held, np.uint64)
        found = self.wrap(array, dtype)
        return Register(found.code, dtype, value if dtype is f32 else int(value))

    def binary(self, name: str, a: Register, b: Register) -> Register:
        """Return a binary result."""
        x, y = self.of(a), self.of(b).astype(self.of(a).dtype)
        with np.errstate(all="ignore"):
            if name == "div":
                found = x / y if a.dtype is f32 else np.trunc(x / np.where(y == 0, 1, y))
            elif name == "rem":
                found = np.fmod(x, np.where(y == 0, 1, y))
            elif name == "mul_high":
                found = x.astype(object) * y.astype(object) >> a.dtype.bits
            else:
                found = _FUNCTIONS[name](x, y)
        return self.wrap(found, a.dtype)

    def unary(self, name: str, x: Register) -> Register:
        """Return a unary result."""
        with np.errstate(all="ignore"):
            return self.wrap(_FUNCTIONS[name](self.of(x)), x.dtype)

    def fma(self, a: Register, b: Register, c: Register) -> Register:
        """Return a * b + c."""
        x, y, z = (self.of(r).astype(np.float64) for r in (a, b, c))
        return self.wrap(x * y + z, f32)

    def dot4(self, a: Register, b: Register, acc: Register, signs: tuple[bool, bool]) -> Register:
        """Return acc plus four byte products."""
        kinds = [np.int8 if signed else np.uint8 for signed in signs]
        x, y = (
            self.of(r)[:, None].view(k).astype(np.int64) for r, k in zip((a, b), kinds, strict=True)
        )
        return self.wrap((x * y).sum(1) + self.of(acc), i32)

    def compare(self, name: str, a: Register, b: Register) -> Register:
        """Return a comparison."""
        return self.wrap(_FUNCTIONS[name](self.of(a), self.of(b)), boolean)

    def select(self, condition: Register, a: Register, b: Register) -> Register:
        """Return a or b."""
        return self.wrap(np.where(self.of(condition), self.of(a), self.of(b)), a.dtype)

    def convert(self, x: Register, dtype: DType) -> Register:
        """Return x as another dtype."""
        held = self.of(x)
        with np.errstate(all="ignore"):
            if x.dtype in (bf16, f16):
                return self.wrap(_halves(held, x.dtype).astype(np.float32), dtype)
            if dtype in (bf16, f16):
                return self.wrap(held.astype(dtype.numpy).view(np.uint16), dtype)
            return self.wrap(held, dtype)

    def reinterpret(self, x: Register, dtype: DType) -> Register:
        """Return the same bits."""
        held = self.of(x)
        if kind_of(x.dtype) == "float" or kind_of(dtype) == "float":
            held = held.view(np.float32 if dtype is f32 else np.uint32)
        found = self.wrap(held, dtype)
        return Register(found.code, dtype, x.literal)

    def pack_halves(self, low: Register, high: Register) -> Register:
        """Return two 16-bit floats in a word."""
        return self.wrap(self.of(high) << 16 | self.of(low), u32)

    # ---- invocations and memory

    def thread(self) -> Register:
        """Return the invocations' numbers."""
        return self.wrap(np.arange(self.threads), u32)

    def workgroup(self, axis: int) -> Register:
        """Return the workgroup's coordinate."""
        return self.wrap(np.array(self.place[axis]), u32)

    def num_workgroups(self, axis: int) -> Register:
        """Return the grid's extent."""
        return self.wrap(np.array(self.grid[axis]), u32)

    def shared_base(self) -> Register:
        """Return where shared memory begins."""
        return self.constant(0, u32)

    def _bytes(self, space: SpaceName, address: Register, offset: int, size: int) -> Values:
        start = self.of(address).astype(np.int64) + offset
        if space == "global":
            inside = np.zeros(self.threads, bool)
            for first, end in self.regions:
                inside |= (start >= first) & (start + size <= end)
            if not inside[self.mask].all():
                raise IndexError(f"{size} bytes at {start[self.mask & ~inside][:4]} are outside")
        if (start[self.mask] % min(size, 16)).any():
            raise IndexError(f"{size} bytes at {start[self.mask][:4]} are not aligned")
        return np.where(self.mask, start, 0)[:, None] + np.arange(size)

    def load(
        self, space: SpaceName, address: Register, offset: int, dtype: DType, count: int
    ) -> list[Register]:
        """Load neighbouring elements."""
        memory = self.heap if space == "global" else self.shared
        places = self._bytes(space, address, offset, dtype.itemsize * count)
        raw = np.ascontiguousarray(memory[places])
        numpy = np.dtype(np.uint16) if dtype in (bf16, f16) else dtype.numpy
        found = raw.view(numpy)
        return [self.wrap(found[:, i], dtype) for i in range(count)]

    def store(
        self, space: SpaceName, address: Register, offset: int, values: list[Register]
    ) -> None:
        """Store neighbouring elements."""
        memory = self.heap if space == "global" else self.shared
        size = values[0].dtype.itemsize
        for number, value in enumerate(values):
            held = self.of(value)
            raw = np.ascontiguousarray(held)[:, None].view(np.uint8)[:, :size]
            places = self._bytes(space, address, offset + number * size, size)
            memory[places[self.mask]] = raw[self.mask]

    def async_copy(
        self, destination: Register, offset: int, source: Register, valid: Register | None
    ) -> None:
        """Copy 16 bytes now."""
        raw = self.heap[self._bytes("global", source, 0, 16)]
        if valid is not None:
            raw = np.where(self.of(valid)[:, None], raw, 0)
        self.shared[self._bytes("shared", destination, offset, 16)[self.mask]] = raw[self.mask]

    def barrier(self) -> None:
        """Do nothing: invocations run in step."""

    def shuffle_xor(self, x: Register, mask: int) -> Register:
        """Exchange among lanes."""
        lanes = np.arange(self.threads) ^ mask
        return self.wrap(self.of(x)[lanes], x.dtype)

    def shuffle(self, x: Register, lane: Register) -> Register:
        """Exchange among lanes of a subgroup."""
        first = np.arange(self.threads) // self.subgroup_size * self.subgroup_size
        return self.wrap(self.of(x)[first + self.of(lane) % self.subgroup_size], x.dtype)

    def atomic(self, kind: str, space: SpaceName, address: Register, value: Register) -> Register:
        """Combine one invocation after the other."""
        memory = self.heap if space == "global" else self.shared
        places, held = self._bytes(space, address, 0, 4), self.of(value)
        old = np.zeros(self.threads, held.dtype)
        for number in np.flatnonzero(self.mask):
            before = memory[places[number]].view(held.dtype)
            old[number] = before[0]
            combined = _FUNCTIONS[kind](before, held[number : number + 1])
            memory[places[number]] = combined.astype(held.dtype).view(np.uint8)
        return self.wrap(old, value.dtype)

    def table(self, words: Sequence[int]) -> str:
        """Keep the words."""
        name = f"t{next(self._names)}"
        self.values[name] = np.array(words, np.uint32)
        return name

    def table_word(self, table: str, index: Register) -> Register:
        """Return each invocation's word."""
        return self.wrap(self.values[table][np.where(self.mask, self.of(index), 0)], u32)

    # ---- control

    def variable(self, initial: Register) -> str:
        """Return a new variable."""
        name = f"v{next(self._names)}"
        self.values[name], self._dtypes[name] = self.of(initial).copy(), initial.dtype
        return name

    def read(self, variable: str) -> Register:
        """Return a variable's value."""
        return self.wrap(self.values[variable], self._dtypes[variable])

    def assign(self, variable: str, value: Register) -> None:
        """Set a variable where invocations are active."""
        self.values[variable] = np.where(self.mask, self.of(value), self.values[variable])

    def loop(self, condition: Callable[[], Register], body: Callable[[], None]) -> None:
        """Run a loop."""
        outer = self.mask
        while True:
            self.mask = self.mask & self.of(condition())
            if not self.mask.any():
                break
            body()
        self.mask = outer

    def branch(
        self,
        condition: Register,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Run a branch."""
        outer, taken = self.mask, self.of(condition)
        for mask, side in ((outer & taken, then), (outer & ~taken, otherwise)):
            self.mask = mask
            if side is not None and mask.any():
                side()
        self.mask = outer

    @contextmanager
    def at_entry(self) -> Generator[None]:
        """Run for every invocation."""
        outer, self.mask = self.mask, np.ones(self.threads, bool)
        yield
        self.mask = outer

    # ---- products

    def multiply(
        self, atom: Atom, a: list[Register], b: list[Register], acc: list[Register]
    ) -> list[Register]:
        """Multiply as the atom's layouts say."""
        first, second = (b, a) if atom.is_exchanged else (a, b)
        found = np.empty((len(acc), self.threads), np.float64)
        for start in range(0, self.threads, self.subgroup_size):
            lanes = slice(start, start + self.subgroup_size)
            left = self._matrix(first, atom.inputs[0], atom.a, (atom.m, atom.k), lanes)
            right = self._matrix(second, atom.inputs[1], atom.b, (atom.k, atom.n), lanes)
            total = left @ right
            for number, (row, column) in enumerate(_places(atom.acc, self.subgroup_size)):
                found[number, lanes] = self.of(acc[number])[lanes] + total[row, column]
        return [self.wrap(x, acc[0].dtype) for x in found]

    def _matrix(
        self, words: list[Register], name: str, side: AtomSide, shape: tuple[int, int], lanes: slice
    ) -> Values:
        kinds = {"i8": np.int8, "u8": np.uint8}
        raw = np.stack([self.of(w)[lanes] for w in words], 1).astype(np.uint32)
        if name in kinds:
            elements = np.ascontiguousarray(raw).view(kinds[name]).astype(np.float64)
        else:
            halves = np.ascontiguousarray(raw).view(np.uint16)
            elements = _halves(halves, bf16 if name == "bf16" else f16).astype(np.float64)
        found = np.full(shape, np.nan)
        for number, (row, column) in enumerate(_places(side, self.subgroup_size)):
            found[row, column] = elements[:, number]
        return found


def _halves(bits: Values, dtype: DType) -> Values:
    return bits.astype(np.uint16).view(dtype.numpy)


def _places(side: AtomSide, num_lanes: int) -> list[tuple[Values, Values]]:
    """Return, for each register, the row and column that every lane holds."""
    rows, columns = np.zeros((2, num_lanes), np.int64)
    lane = np.arange(num_lanes)
    for number, bit in enumerate(side.lanes):
        if bit is not None:
            target = columns if bit.axis else rows
            target += bit.step * (lane >> number & 1)
    one = Fragment((1, 1), side.registers, (), ())
    return [(rows + c[0], columns + c[1]) for c in one.coordinates()]


def run_eagerly(
    kernel: KernelFunction,
    *arguments: Values | float,
    atoms: tuple[Atom, ...],
    subgroup_size: int = 32,
    has_async_copy: bool = True,
    threads: int | None = None,
    multiples: Mapping[str, int] | None = None,
) -> None:
    """Run a kernel's GPU lowering on NumPy arrays, which are written in place.

    Args:
        kernel: A verified kernel.
        arguments: Arrays and numbers in the order of its parameters.
        atoms: A target's matrix instructions.
        subgroup_size: Lanes.
        has_async_copy: Which schedule pipelines take.
        threads: Invocations of a workgroup.
        multiples: What is promised of arguments.

    Raises:
        IndexError: If an active invocation touches memory outside of the arguments.
    """
    heap, regions, held, scalars = _heap(kernel, arguments)
    extents = [size.evaluate(scalars) for size in kernel.grid]
    grid = cast("tuple[int, int, int]", tuple(extents + [1] * (3 - len(extents))))
    count = threads or default_threads(kernel, subgroup_size)
    for z, y, x in itertools.product(*(range(extent) for extent in reversed(grid))):
        machine = EagerMachine(
            heap, regions, count, (x, y, z), grid, atoms=atoms, subgroup_size=subgroup_size,
            has_async_copy=has_async_copy,
        )  # fmt: skip
        registers = [machine.constant(value, dtype) for value, dtype in held]
        # Literal arguments would be folded into the code; on a device they are not known.
        registers = [Register(r.code, r.dtype) for r in registers]
        lower_kernel(
            kernel, machine, FragmentProducts(), registers, threads=count, multiples=multiples or {}
        )
    place = 0
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            first, end = regions[place]
            argument[...] = heap[first:end].view(argument.dtype).reshape(argument.shape)
            place += 1


def _heap(
    kernel: KernelFunction, arguments: Sequence[Values | float]
) -> tuple[Values, list[tuple[int, int]], list[tuple[float, DType]], dict[str, int]]:
    regions: list[tuple[int, int]] = []
    held: list[tuple[float, DType]] = []
    scalars: dict[str, int] = {}
    parts: list[Values] = [np.zeros(_GAP, np.uint8)]
    place = _GAP
    for value, argument in zip(kernel.parameters, arguments, strict=True):
        if isinstance(value.type, ArrayType):
            raw = np.ascontiguousarray(argument).view(np.uint8).reshape(-1)
            regions.append((place, place + raw.nbytes))
            held.append((place, u64))
            gap = _GAP - raw.nbytes % _GAP + _GAP
            parts += [raw, np.zeros(gap, np.uint8)]
            place += raw.nbytes + gap
            continue
        assert isinstance(value.type, ScalarType)
        assert not isinstance(argument, np.ndarray)
        held.append((argument, value.type.dtype))
        if value.type.dtype.is_integer:
            scalars[value.name] = int(argument)
    return np.concatenate(parts), regions, held, scalars
