"""Products from matrix instructions whose operands are fragments in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from poot_core import UnsupportedError
from poot_kernel.ir.core import Op
from poot_kernel.ir.types import TileType
from poot_kernel.targets.common.fragments import Bit, Fragment, bits_along, log2
from poot_kernel.targets.common.lowering import Lowering, Products
from poot_kernel.targets.common.machine import Machine, Register
from poot_kernel.targets.common.solve import reduces_columns
from poot_kernel.targets.common.tiles import FragmentTile, MemoryTile, Tile

__all__ = ["Atom", "AtomMachine", "AtomSide", "FragmentProducts", "dot_atoms"]

Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AtomSide:
    """Who holds what of one operand of a matrix instruction."""

    registers: tuple[Bit, ...]
    lanes: tuple[Bit | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Atom:
    """A matrix instruction of a subgroup: acc (m, n) += a (m, k) @ b (k, n).

    Tiles with fewer rows than m are allowed: the rows are then repeated.

    Attributes:
        is_exchanged: The instruction takes b before a.
        is_dot: No instruction: byte dot products, summed over the lanes that share k.
    """

    name: str
    m: int
    n: int
    k: int
    inputs: tuple[str, str]
    output: str
    a: AtomSide
    b: AtomSide
    acc: AtomSide
    is_exchanged: bool = False
    is_dot: bool = False


def dot_atoms(num_lanes: int) -> tuple[Atom, ...]:
    """Return byte products without matrix instructions: a column for each of 16 lanes."""
    shares = log2(num_lanes // 16)
    each = 32 >> shares
    columns, apart = bits_along(1, 1, 16), bits_along(0, each, 1 << shares)
    along = tuple(Bit(1, b.step) for b in apart)
    return tuple(
        Atom(
            name="dot4", m=1, n=16, k=32, inputs=(a, b), output="i32", is_dot=True,
            a=AtomSide(bits_along(1, 1, each), (None, None, None, None, *along)),
            b=AtomSide(bits_along(0, 1, each), (*columns, *apart)),
            acc=AtomSide((), (*columns, *(None for _ in apart))),
        )
        for a in ("i8", "u8") for b in ("i8", "u8")
    )  # fmt: skip


class AtomMachine(Machine):
    """A machine with matrix instructions."""

    atoms: tuple[Atom, ...] = ()

    def multiply(
        self, atom: Atom, a: list[Register], b: list[Register], acc: list[Register]
    ) -> list[Register]:
        """Return the accumulator's registers; a and b are packed words."""
        raise NotImplementedError

    def load_matrices(
        self, low: Lowering, tile: MemoryTile, layout: Fragment, along: int
    ) -> FragmentTile | None:
        """Return an operand's fragment by a dedicated load, or None for ordinary loads."""
        return None


class FragmentProducts(Products):
    """Shares a product's tile among subgroups and steps through it with one atom."""

    def atom(self, low: Lowering, op: Op) -> Atom:
        """Return the atom for a product's operands.

        A single row goes to dot products where there are some: a matrix instruction would repeat
        it, and spread columns over fewer lanes.
        """
        a, b = (cast(TileType, value.type).dtype.name for value in op.operands[:2])
        is_row = cast(TileType, op.operands[0].type).shape[0] == 1
        atoms = cast(AtomMachine, low.machine).atoms
        fitting = [atom for atom in atoms if atom.inputs == (a, b)]
        for atom in sorted(fitting, key=lambda atom: atom.is_dot != is_row):
            return atom
        known = sorted({atom.inputs for atom in atoms})
        raise UnsupportedError(f"no matrix instruction for {a} x {b}; there are {known}")

    def grid(self, low: Lowering, m: int, n: int, least: tuple[int, int]) -> tuple[int, int]:
        """Return subgroups along rows and columns; near squares read the least shared memory."""
        groups = low.num_subgroups
        most = max(1, m // least[0]), max(1, n // least[1])
        if reduces_columns(low.kernel):
            rows = min(groups, most[0])
            return rows, min(groups // rows, most[1])
        rows, columns = 1, 1
        while rows * columns < groups:
            if rows < most[0] and (m // rows >= n // columns or columns >= most[1]):
                rows *= 2
            elif columns < most[1]:
                columns *= 2
            else:
                break
        return rows, columns

    def accumulator(self, low: Lowering, op: Op) -> Fragment | None:
        """Return the layout of an accumulator."""
        atom, shape = self.atom(low, op), cast(TileType, op.result.type).shape
        return self._layout(low, atom, shape, atom.acc, (0, 1), shape)

    def operand(self, low: Lowering, op: Op, index: int) -> Fragment | None:
        """Return the layout of an operand in registers."""
        atom, shape = self.atom(low, op), cast(TileType, op.operands[index].type).shape
        side, axes = ((atom.a, (0, None)), (atom.b, (None, 1)))[index]
        return self._layout(low, atom, shape, side, axes, cast(TileType, op.result.type).shape)

    def _layout(
        self,
        low: Lowering,
        atom: Atom,
        shape: Place,
        side: AtomSide,
        axes: tuple[int | None, int | None],
        product: Place,
    ) -> Fragment:
        """Return an operand's layout; ``axes`` says which of its axes are m and n."""
        rows, columns = self.grid(low, product[0], product[1], (atom.m, atom.n))
        sizes, shares = {axes[0]: atom.m, axes[1]: atom.n}, {axes[0]: rows, axes[1]: columns}
        registers = [bit for bit in side.registers if bit.step < shape[bit.axis]]
        for axis in (1, 0):
            size, share = sizes.get(axis, atom.k), shares.get(axis, 1)
            registers += bits_along(axis, size, max(1, shape[axis] // share // size))
        subgroups: list[Bit | None] = []
        for axis, share in zip(axes, (rows, columns), strict=True):
            if axis is None:
                subgroups += [None] * log2(share)
            else:
                subgroups += bits_along(axis, shape[axis] // share, share)
        subgroups += [None] * (log2(low.num_subgroups) - len(subgroups))
        lanes = tuple(b if b and b.step < shape[b.axis] else None for b in side.lanes)
        return Fragment(shape, tuple(registers), lanes, tuple(subgroups))

    def multiply(self, low: Lowering, op: Op) -> Tile:
        """Return acc + a @ b, in ascending groups of the atom's k."""
        atom, layout = self.atom(low, op), low.layouts[op.result]
        held = cast(Tile, low.get(op.operands[2])).fragment(low, layout).fragment(low, layout)
        acc = held.by_coordinates(low)
        places = sorted({(c[0] - c[0] % atom.m, c[1] - c[1] % atom.n) for c in acc})
        depth = cast(TileType, op.operands[0].type).shape[1]
        for start in range(0, depth, atom.k):
            left = self._words(low, op, 0, start, atom)
            right = self._words(low, op, 1, start, atom)
            for row, column in places:
                a, b = left.of((row, 0), atom.a), right.of((0, column), atom.b)
                where = _inside((row, column), atom.acc, layout.shape)
                found = _multiply(low, atom, a, b, [acc[c] for c in where])
                acc.update(zip(where, found, strict=True))
        return FragmentTile(layout, held.dtype, [acc[c] for c in layout.coordinates()])

    def _words(self, low: Lowering, op: Op, index: int, start: int, atom: Atom) -> _Words:
        """Return an operand's packed words for one step of k."""
        tile, along = cast(Tile, low.get(op.operands[index])), 1 - index
        layout = self.operand(low, op, index)
        assert layout is not None
        shape = tuple(atom.k if axis == along else e for axis, e in enumerate(layout.shape))
        step = layout.narrowed(shape)
        assert step is not None, "the atom's lanes stay inside of one step"
        starts = tuple(start if axis == along else 0 for axis in range(2))
        if isinstance(tile, MemoryTile):
            part = tile.sliced(low, starts, shape)
            machine = cast(AtomMachine, low.machine)
            found = machine.load_matrices(low, part, step, along) or part.fragment(low, step)
        else:
            whole = tile.fragment(low, layout)
            found = _part(low, whole, step, starts)
        per_word = 32 // found.dtype.bits
        same = found.layout.registers[: log2(per_word)] == step.registers[: log2(per_word)]
        if not (found.words and same):
            found = found.fragment(low, step)
            words = low.arithmetic.pack(found.elements(low))
        else:
            words = found.words
        places = found.layout.coordinates()[::per_word]
        return _Words(dict(zip(places, words, strict=True)), step.shape, per_word)


@dataclass(frozen=True, slots=True)
class _Words:
    """Packed words by the coordinates of their first element."""

    words: dict[Place, Register]
    shape: Place
    per_word: int

    def of(self, place: Place, side: AtomSide) -> list[Register]:
        """Return the words of the atom that begins at a place."""
        return [self.words[c] for c in _inside(place, side, self.shape)[:: self.per_word]]

    def all(self) -> list[Register]:
        """Return all words, in the order of the fragment's registers."""
        return list(self.words.values())


def _inside(place: Place, side: AtomSide, shape: Place) -> list[Place]:
    """Return an atom's coordinates; rows that the tile lacks repeat those that it has."""
    one = Fragment(shape, side.registers, (), ())
    return [
        tuple((p + c) % extent for p, c, extent in zip(place, at, shape, strict=True))
        for at in one.coordinates()
    ]


def _part(low: Lowering, whole: FragmentTile, step: Fragment, starts: Place) -> FragmentTile:
    if whole.words:
        per_word = 32 // whole.dtype.bits
        kept = step.with_registers(tuple(b for b in whole.layout.registers if b in step.registers))
        held = dict(zip(whole.layout.coordinates()[::per_word], whole.words, strict=True))
        first = kept.coordinates()[::per_word]
        if kept.registers[: log2(per_word)] == whole.layout.registers[: log2(per_word)]:
            words = [held[_moved(c, starts)] for c in first]
            return FragmentTile(kept, whole.dtype, [], words)
    found = whole.by_coordinates(low)
    return FragmentTile(step, whole.dtype, [found[_moved(c, starts)] for c in step.coordinates()])


def _moved(place: Place, starts: Place) -> Place:
    return tuple(c + s for c, s in zip(place, starts, strict=True))


def _multiply(
    low: Lowering, atom: Atom, a: list[Register], b: list[Register], acc: list[Register]
) -> list[Register]:
    machine = cast(AtomMachine, low.machine)
    if not atom.is_dot:
        return machine.multiply(atom, *((b, a) if atom.is_exchanged else (a, b)), acc)
    signs = atom.inputs[0] == "i8", atom.inputs[1] == "i8"
    total = machine.constant(0, acc[0].dtype)
    for x, y in zip(a, b, strict=True):
        total = machine.dot4(x, y, total, signs)
    for number, bit in enumerate(atom.b.lanes):
        if bit is not None and bit.axis == 0:
            moved = machine.shuffle_xor(total, 1 << number)
            total = machine.binary("add", total, moved)
    return [machine.binary("add", acc[0], total)]
