"""NVIDIA's matrix instructions of a warp, and the loads that feed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poot_core import u32
from poot_kernel.targets.common.fragments import Bit, Fragment, bits_along
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import Atom, AtomSide
from poot_kernel.targets.common.tiles import FragmentTile, MemoryTile, Stride

if TYPE_CHECKING:
    from poot_kernel.targets.nvptx.machine import PtxMachine

__all__ = ["ATOMS", "matrix_load"]


def _float_atom(name: str) -> Atom:
    """m16n8k16: A rows and B columns by lane / 4, pairs of k by lane % 4."""
    pairs = bits_along(1, 2, 4)
    return Atom(
        name=f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32",
        m=16, n=8, k=16, inputs=(name, name), output="f32",
        a=AtomSide((Bit(1, 1), Bit(0, 8), Bit(1, 8)), (*pairs, *bits_along(0, 1, 8))),
        b=AtomSide((Bit(0, 1), Bit(0, 8)), (*bits_along(0, 2, 4), *bits_along(1, 1, 8))),
        acc=AtomSide((Bit(1, 1), Bit(0, 8)), (*pairs, *bits_along(0, 1, 8))),
    )  # fmt: skip


def _byte_atom(a: str, b: str) -> Atom:
    """m16n8k32 of bytes with the sides exchanged: its 16 rows are columns of the product.

    Few activation rows then waste the narrow side; four bytes of k of one column are one word.
    """
    signs = {"i8": "s8", "u8": "u8"}
    return Atom(
        name=f"mma.sync.aligned.m16n8k32.row.col.s32.{signs[b]}.{signs[a]}.s32",
        m=8, n=16, k=32, inputs=(a, b), output="i32", is_exchanged=True,
        a=AtomSide((*bits_along(1, 1, 4), Bit(1, 16)), (*bits_along(1, 4, 4), *bits_along(0, 1, 8))),
        b=AtomSide(
            (*bits_along(0, 1, 4), Bit(1, 8), Bit(0, 16)),
            (*bits_along(0, 4, 4), *bits_along(1, 1, 8)),
        ),
        acc=AtomSide((Bit(0, 1), Bit(1, 8)), (*bits_along(0, 2, 4), *bits_along(1, 1, 8))),
    )  # fmt: skip


ATOMS = (
    _float_atom("bf16"),
    _float_atom("f16"),
    *(_byte_atom(a, b) for a in ("i8", "u8") for b in ("i8", "u8")),
)


def matrix_load(
    machine: PtxMachine, low: Lowering, tile: MemoryTile, layout: Fragment, along: int
) -> FragmentTile | None:
    """Load a 16-bit operand by ldmatrix: each lane gives the address of one row of 8 elements.

    A fragment's register bits are, from the lowest: a pair along k (inside of a row or, transposed,
    across rows), then the 8x8 matrices, four of which one instruction loads.
    """
    if tile.space != "shared" or tile.dtype.bits != 16 or len(layout.registers) < 3:
        return None
    near = Stride(tile.dtype.itemsize)
    if tile.stride(Bit(along, 1)) == near:
        inside, transposed = along, ""
    elif tile.stride(Bit(1 - along, 1)) == near:
        inside, transposed = 1 - along, ".trans"
    else:
        return None
    across = 1 - inside
    low_bits, rest = layout.registers[:1], layout.registers[1:]
    # Lanes 0-7 address the rows of matrix 0, lanes 8-15 those of matrix 1, and so on.
    rows = Fragment(
        layout.shape, rest[2:], (*bits_along(across, 1, 8), *rest[:2]), layout.subgroups
    )
    address = tile.address(low, rows)
    words: list[Register] = []
    for where in rows.coordinates():
        at, constant = tile.moved(low, address, where)
        found = [machine.fresh(u32) for _ in range(4)]
        names = ", ".join(x.code for x in found)
        opcode = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16"
        machine.line(f"{opcode} {{{names}}}, [{at.code}+{constant}]")
        words += found
    ordered = layout.with_registers((*low_bits, *rest))
    return FragmentTile(ordered, tile.dtype, [], words)
