"""Products on KHR cooperative matrices: opaque pieces of 16 x 16 that a subgroup holds together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from poot_core import UnsupportedError, f32, u32
from poot_kernel.ir.core import Op
from poot_kernel.ir.types import TileType
from poot_kernel.targets.common.fragments import Fragment, log2
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.common.tiles import (
    FragmentTile,
    MemoryTile,
    OpaqueTile,
    Tile,
    UniformTile,
    shared_bytes,
    shared_tile,
)  # fmt: skip
from poot_kernel.targets.spirv.machine import SpirvMachine

__all__ = ["CooperativeProducts"]

SIDE = 16
_USES = {"a": 0, "b": 1, "acc": 2}
_SUBGROUP, _ROW_MAJOR, _COLUMN_MAJOR = 3, 0, 1


@dataclass(frozen=True, slots=True)
class MatrixTile(OpaqueTile):
    """An accumulator: this subgroup's matrices, row by row."""

    products: CooperativeProducts

    def fragment(self, low: Lowering, layout: Fragment) -> FragmentTile:
        """Return the elements as a fragment, through shared memory."""
        size = shared_bytes(self.shape, self.dtype)
        tile = shared_tile(self.shape, self.dtype, low.allocate(("scratch", size), size))
        low.barrier()
        for part, row, column in self.products.pieces(low, self):
            pointer, order, stride = self.products.shared_place(low, tile, row, column)
            machine(low).module.emit(
                "CooperativeMatrixStoreKHR", pointer, int(part.code), order, stride
            )
        low.barrier()
        return tile.fragment(low, layout)

    def store_global(self, low: Lowering, target: MemoryTile) -> bool:
        """Store to an array without masks; False if it has some."""
        if target.bounds or target.dtype is not f32:
            return False
        m, stride = machine(low), target.strides[0][0]
        elements = low.arithmetic.word(stride.constant // 4)
        if stride.dynamic is not None:
            wide = low.arithmetic.convert(stride.dynamic, u32)
            elements = low.arithmetic.mul(wide, stride.constant // 4)
        for part, row, column in self.products.pieces(low, self):
            at, constant = _at(low, target, row, column)
            pointer = m.array_pointer(low.arithmetic.add(at, constant))
            m.module.emit(
                "CooperativeMatrixStoreKHR", pointer, int(part.code), m.word(_ROW_MAJOR),
                int(elements.code), 2, 4,
            )  # fmt: skip
        return True


def machine(low: Lowering) -> CooperativeMachine:
    """Return the lowering's machine."""
    return cast(CooperativeMachine, low.machine)


class CooperativeMachine(SpirvMachine):
    """A machine with cooperative matrices."""

    def matrix_type(self, dtype: str, use: str) -> int:
        """Return a matrix type."""
        m = self.module
        for capability in {"bf16": (6022, 5116, 5118), "f16": (6022, 9)}.get(dtype, (6022,)):
            m.once("Capability", "capabilities", capability)
        m.once("Extension", "extensions", "SPV_KHR_cooperative_matrix")
        element = self.f32
        if dtype == "bf16":
            m.once("Extension", "extensions", "SPV_KHR_bfloat16")
            element = m.type("TypeFloat", 16, 0)
        elif dtype == "f16":
            element = m.type("TypeFloat", 16)
        sizes = [self.word(x) for x in (_SUBGROUP, SIDE, SIDE, _USES[use])]
        return m.type("TypeCooperativeMatrixKHR", element, *sizes)

    def array_pointer(self, address: Register) -> int:
        """Return a pointer to the first f32 of an unbounded array at an address."""
        m = self.module
        array = m.type("TypeRuntimeArray", self.f32)
        block = m.type("TypeStruct", array)
        m.once("Decorate", "decorations", array, 6, 4)
        m.once("Decorate", "decorations", block, 2)
        m.once("MemberDecorate", "decorations", block, 0, 35, 0)
        base = m.value("ConvertUToPtr", m.pointer("Physical", block), int(address.code))
        kind = m.pointer("Physical", self.f32)
        return m.value("AccessChain", kind, base, self.word(0), self.word(0))


class CooperativeProducts(FragmentProducts):
    """16-bit floats on cooperative matrices, bytes on dot products."""

    def _is_opaque(self, op: Op) -> bool:
        return cast(TileType, op.operands[0].type).dtype.is_float

    def accumulator(self, low: Lowering, op: Op) -> Fragment | None:
        """Return the layout of an accumulator; None for an opaque one."""
        return None if self._is_opaque(op) else super().accumulator(low, op)

    def operand(self, low: Lowering, op: Op, index: int) -> Fragment | None:
        """Return the layout of an operand; None for an opaque one."""
        return None if self._is_opaque(op) else super().operand(low, op, index)

    def share(self, low: Lowering, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Return subgroups along rows and columns, and a subgroup's rows and columns."""
        rows, columns = self.grid(low, shape[0], shape[1], (SIDE, SIDE))
        if shape[0] % (SIDE * rows) or shape[1] % (SIDE * columns):
            raise UnsupportedError(f"tile {shape} does not share into {rows} x {columns} of {SIDE}")
        return rows, columns, shape[0] // rows, shape[1] // columns

    def origin(self, low: Lowering, shape: tuple[int, ...]) -> tuple[Register, Register]:
        """Return the row and column (u32) at which a subgroup's share begins."""
        rows, columns, height, width = self.share(low, shape)
        ops, group = low.arithmetic, low.subgroup

        def row() -> Register:
            return ops.mul(ops.integer("and", group(), rows - 1), height)

        def column() -> Register:
            across = ops.integer("and", ops.integer("shr", group(), log2(rows)), columns - 1)
            return ops.mul(across, width)

        return low.at_entry(("row", shape), row), low.at_entry(("column", shape), column)

    def pieces(self, low: Lowering, tile: MatrixTile) -> list[tuple[Register, Register, Register]]:
        """Return each matrix with its row and column in the tile."""
        _, _, height, width = self.share(low, tile.shape)
        row, column = self.origin(low, tile.shape)
        places = [(i, j) for i in range(0, height, SIDE) for j in range(0, width, SIDE)]
        return [
            (part, low.arithmetic.add(row, i), low.arithmetic.add(column, j))
            for part, (i, j) in zip(tile.parts, places, strict=True)
        ]

    def shared_place(
        self, low: Lowering, tile: MemoryTile, row: Register, column: Register
    ) -> tuple[int, int, int]:
        """Return pointer, order and stride (in 16 bytes) of a matrix in shared memory."""
        m = machine(low)
        near = 1 if tile.strides[1][0].constant == tile.dtype.itemsize else 0
        pitch = tile.strides[1 - near][0].constant
        at, constant = _at(low, tile, row, column)
        pointer = m.quad_pointer(low.arithmetic.add(at, constant))
        return pointer, m.word(_ROW_MAJOR if near else _COLUMN_MAJOR), m.word(pitch // 16)

    def promoted(self, low: Lowering, runtime: object) -> object | None:
        """Return an accumulator that a loop carries as matrices."""
        if isinstance(runtime, UniformTile) and len(runtime.shape) == 2:
            return self._matrices(low, runtime)
        return runtime if isinstance(runtime, MatrixTile) else None

    def _matrices(self, low: Lowering, tile: Tile) -> MatrixTile:
        if isinstance(tile, MatrixTile):
            return tile
        m = machine(low)
        kind = m.matrix_type("f32", "acc")
        _, _, height, width = self.share(low, tile.shape)
        count = height // SIDE * (width // SIDE)
        if isinstance(tile, UniformTile):
            value = m.module.value("CompositeConstruct", kind, int(tile.value.code))
            return MatrixTile(tile.shape, [m.wrap(value, f32, kind)] * count, f32, self)
        memory = cast(FragmentTile, tile).in_shared(low)
        empty = MatrixTile(tile.shape, [low.arithmetic.word(0)] * count, f32, self)
        parts = [
            self._load(low, memory, row, column, kind) for _, row, column in self.pieces(low, empty)
        ]
        return MatrixTile(tile.shape, parts, f32, self)

    def _load(
        self, low: Lowering, tile: MemoryTile, row: Register, column: Register, kind: int
    ) -> Register:
        pointer, order, stride = self.shared_place(low, tile, row, column)
        m = machine(low)
        found = m.module.value("CooperativeMatrixLoadKHR", kind, pointer, order, stride)
        return m.wrap(found, f32, kind)

    def multiply(self, low: Lowering, op: Op) -> Tile:
        """Return acc + a @ b, in ascending groups of 16 k."""
        if not self._is_opaque(op):
            return super().multiply(low, op)
        m = machine(low)
        acc = self._matrices(low, cast(Tile, low.get(op.operands[2])))
        parts = list(acc.parts)
        a, b = (self._in_shared(low, op, index) for index in range(2))
        kinds = m.matrix_type(a.dtype.name, "a"), m.matrix_type(b.dtype.name, "b")
        result = m.matrix_type("f32", "acc")
        _, _, height, width = self.share(low, acc.shape)
        row, column = self.origin(low, acc.shape)
        ops = low.arithmetic
        for k in range(0, a.shape[1], SIDE):
            step = ops.word(k)
            left = [
                self._load(low, a, ops.add(row, i), step, kinds[0]) for i in range(0, height, SIDE)
            ]
            for j in range(width // SIDE):
                right = self._load(low, b, step, ops.add(column, j * SIDE), kinds[1])
                for i, matrix in enumerate(left):
                    number = i * (width // SIDE) + j
                    found = m.module.value(
                        "CooperativeMatrixMulAddKHR", result,
                        int(matrix.code), int(right.code), int(parts[number].code),
                    )  # fmt: skip
                    parts[number] = m.wrap(found, f32, result)
        return MatrixTile(acc.shape, parts, f32, self)

    def _in_shared(self, low: Lowering, op: Op, index: int) -> MemoryTile:
        tile = cast(Tile, low.get(op.operands[index]))
        if isinstance(tile, MemoryTile) and tile.space == "shared":
            return tile
        held = tile.fragment(low, low.layout_of(op.operands[index], tile.shape))
        return held.in_shared(low)


def _at(low: Lowering, tile: MemoryTile, row: Register, column: Register) -> tuple[Register, int]:
    """Return the address of an element at run-time coordinates."""
    ops, address = low.arithmetic, tile.base
    for where, axis in ((row, 0), (column, 1)):
        stride = tile.strides[axis][0]
        moved = ops.convert(ops.mul(where, stride.constant), address.dtype)
        if stride.dynamic is not None:
            moved = ops.mul(moved, ops.convert(stride.dynamic, address.dtype))
        address = ops.add(address, moved)
    return address, 0
