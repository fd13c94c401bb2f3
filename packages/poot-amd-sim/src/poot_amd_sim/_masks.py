"""Vector instructions that read or write lane masks: selects, carries, division."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poot_amd_sim._floats import div_fmas, div_scale
from poot_amd_sim._operands import read_lanes, read_mask
from poot_amd_sim._program import Instruction
from poot_amd_sim._results import Build, Compute, location_of, sources_of, writer_of
from poot_amd_sim._state import VCC, Waves

__all__ = ["MASK_BUILDERS"]


def _select(instruction: Instruction, name: str) -> Compute:
    operands = instruction.operands
    kind = "t" if name.endswith("b16") else "u"
    a, b = sources_of(instruction, list(operands[1:3]), kind * 2)
    condition = read_mask(operands[3] if len(operands) > 3 else "vcc")
    write = writer_of(instruction, kind, "")

    def compute(waves: Waves) -> Callable[[], None]:
        value = np.where(condition(waves), b(waves), a(waves))
        return lambda: write(waves, value)

    return compute


def _carry(instruction: Instruction, name: str) -> Compute:
    """Add or subtract with a carry out to a mask, and in from one."""
    operands = instruction.operands
    target = location_of(operands[1]).index
    a, b = sources_of(instruction, list(operands[2:4]), "uu")
    carried = read_mask(operands[4]) if len(operands) > 4 else None
    write = writer_of(instruction, "u", "")
    is_sub, is_reversed = "sub" in name, "rev" in name

    def compute(waves: Waves) -> Callable[[], None]:
        x, y = a(waves).astype(np.int64), b(waves).astype(np.int64)
        x, y = (y, x) if is_reversed else (x, y)
        extra = carried(waves).astype(np.int64) if carried is not None else 0
        total = x - y - extra if is_sub else x + y + extra
        out = ((total < 0) | (total > 0xFFFFFFFF)) & waves.mask

        def put() -> None:
            write(waves, total.astype(np.uint32))
            waves.put_lane_bits(target, out)

        return put

    return compute


def _wide_multiply_add(instruction: Instruction, name: str) -> Compute:
    operands = instruction.operands
    signed = name.endswith("i32")
    narrow, wide = ("i", "I") if signed else ("u", "U")
    a, b = read_lanes(operands[2], narrow), read_lanes(operands[3], narrow)
    c = read_lanes(operands[4], wide)
    write = writer_of(instruction, wide, "")
    place = location_of(operands[1])
    dtype = np.int64 if signed else np.uint64

    def compute(waves: Waves) -> Callable[[], None]:
        product = a(waves).astype(dtype) * b(waves).astype(dtype)
        addend = c(waves)
        total = product + addend
        out = (total < addend) & waves.mask  # of unsigned ones; nobody reads the other

        def put() -> None:
            write(waves, total)
            waves.put_lane_bits(place.index, out)

        return put

    return compute


def _division_scale(instruction: Instruction, name: str) -> Compute:
    operands = instruction.operands
    readers = sources_of(instruction, list(operands[2:5]), "fff")
    write, target = writer_of(instruction, "f", ""), location_of(operands[1]).index
    _ = name

    def compute(waves: Waves) -> Callable[[], None]:
        value, flag = div_scale(*[read(waves) for read in readers])

        def put() -> None:
            write(waves, value)
            waves.put_lane_bits(target, flag & waves.mask)

        return put

    return compute


def _division_multiply_add(instruction: Instruction, name: str) -> Compute:
    readers = sources_of(instruction, list(instruction.operands[1:4]), "fff")
    write = writer_of(instruction, "f", "")
    _ = name

    def compute(waves: Waves) -> Callable[[], None]:
        a, b, c = (read(waves) for read in readers)
        value = div_fmas(a, b, c, waves.lane_bits(VCC))
        return lambda: write(waves, value)

    return compute


MASK_BUILDERS: dict[str, Build] = {
    "cndmask_b32": _select, "cndmask_b16": _select,
    **dict.fromkeys(
        ("add_co_u32", "sub_co_u32", "subrev_co_u32", "add_co_ci_u32", "sub_co_ci_u32",
         "subrev_co_ci_u32", "addc_co_u32", "subb_co_u32", "subbrev_co_u32"), _carry),
    **dict.fromkeys(
        ("mad_u64_u32", "mad_i64_i32", "mad_co_u64_u32", "mad_co_i64_i32"), _wide_multiply_add),
    "div_scale_f32": _division_scale, "div_fmas_f32": _division_multiply_add,
}  # fmt: skip
"""By mnemonic without prefix and encoding."""
