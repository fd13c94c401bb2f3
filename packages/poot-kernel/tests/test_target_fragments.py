"""Layout algebra and matrix instructions: who holds what, against the vendors' own formulas."""

import numpy as np
import pytest

from poot_core import UnsupportedError
from poot_kernel.targets.amdgcn.atoms import architecture
from poot_kernel.targets.common.fragments import Bit, Fragment, bits_along, log2, spread
from poot_kernel.targets.nvptx.atoms import ATOMS


def held(side, num_lanes):
    """Return rows and columns by (lane, register), counted bit by bit."""
    found = []
    for lane in range(num_lanes):
        base = [0, 0]
        for number, bit in enumerate(side.lanes):
            if bit is not None and lane >> number & 1:
                base[bit.axis] += bit.step
        for register in range(1 << len(side.registers)):
            at = list(base)
            for number, bit in enumerate(side.registers):
                at[bit.axis] += bit.step * (register >> number & 1)
            found.append((lane, register, *at))
    return found


def nvidia(name):
    return next(atom for atom in ATOMS if atom.inputs == name)


def test_mma_m16n8k16_operands_lie_as_the_ptx_manual_says():
    atom = nvidia(("bf16", "bf16"))
    for lane, i, row, k in held(atom.a, 32):
        assert row == lane // 4 + (8 if i in {2, 3, 6, 7} else 0)
        assert k == lane % 4 * 2 + i % 2 + (8 if i >= 4 else 0)
    for lane, i, k, column in held(atom.b, 32):
        assert k == lane % 4 * 2 + i % 2 + (8 if i >= 2 else 0)
        assert column == lane // 4
    for lane, i, row, column in held(atom.acc, 32):
        assert row == lane // 4 + (8 if i >= 2 else 0)
        assert column == lane % 4 * 2 + i % 2


def test_mma_m16n8k32_bytes_are_exchanged():
    """The instruction's A (16 x 32) is the product's b, its rows the product's columns."""
    atom = nvidia(("i8", "u8"))
    assert atom.is_exchanged
    assert ".u8.s8." in atom.name
    for lane, i, k, column in held(atom.b, 32):
        assert column == lane // 4 + (8 if i // 4 in {1, 3} else 0)
        assert k == lane % 4 * 4 + i % 4 + (16 if i // 4 >= 2 else 0)
    for lane, i, row, k in held(atom.a, 32):
        assert (row, k) == (lane // 4, lane % 4 * 4 + i % 4 + (16 if i >= 4 else 0))


def test_amd_results_lie_as_the_isa_manuals_say():
    wmma = architecture("gfx1100").atoms[0]
    for lane, i, row, column in held(wmma.acc, 32):
        assert (row, column) == (2 * i + lane // 16, lane % 16)
    mfma = architecture("gfx942").atoms[0]
    for lane, i, row, column in held(mfma.acc, 64):
        assert (row, column) == (4 * (lane // 16) + i, lane % 16)
    for lane, i, row, k in held(mfma.a, 64):
        assert (row, k) == (lane % 16, 4 * (lane // 16) + i)


@pytest.mark.parametrize("shape", [(64, 32), (16, 8), (1, 64), (4, 4), (128,), (2, 8, 16)])
def test_a_spread_tile_has_every_element(shape):
    layout = spread(shape, 32, 4)
    seen = np.zeros(shape, int)
    for thread in range(128):
        base = [0] * len(shape)
        slots = (*layout.lanes, *layout.subgroups)
        for number, bit in enumerate(slots):
            if bit is not None and thread >> number & 1:
                base[bit.axis] += bit.step
        for where in layout.coordinates():
            seen[tuple(b + c for b, c in zip(base, where, strict=True))] += 1
    assert seen.min() == seen.max() >= 1


def test_parts_of_a_layout_keep_lanes():
    layout = Fragment((32, 16), bits_along(0, 8, 4), bits_along(1, 1, 16), bits_along(0, 1, 8))
    part = layout.narrowed((8, 16))
    assert part == Fragment((8, 16), (), bits_along(1, 1, 16), bits_along(0, 1, 8))
    assert part.widened((32, 16)).agrees(layout)
    assert layout.narrowed((32, 8)) is None  # lanes would move
    assert layout.restricted((32, 1)).lanes == (None,) * 4
    assert not layout.agrees(layout.with_registers((Bit(1, 1),)))


def test_extents_must_be_powers_of_two():
    with pytest.raises(UnsupportedError, match="powers of two, got 12"):
        log2(12)
