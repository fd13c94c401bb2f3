"""Vector instructions that do two operations at once, or mix 16 and 32 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poot_amd_sim._floats import fma
from poot_amd_sim._operands import Reader, locate, read_lanes, read_typed
from poot_amd_sim._program import Instruction
from poot_amd_sim._results import Build, Compute, bits_of, location_of, writer_of
from poot_amd_sim._state import Waves
from poot_amd_sim._vector_table import ALIASES, OPERATIONS

__all__ = ["PAIR_BUILDERS"]


def _packed(instruction: Instruction, name: str) -> Compute:
    """Two operations in one: on f32 pairs in two registers, or on the halves of one."""
    operation, _, kind = name.removeprefix("pk_").rpartition("_")
    letter = {"f32": "f", "f16": "h", "u16": "t", "i16": "s", "b32": "u", "b16": "t"}[kind]
    key = {"fma": "fma_f32" if letter == "f" else "fma_f16", "mov": "mov_b32"}.get(operation)
    key = key or ALIASES.get(f"{operation}_{kind}", f"{operation}_{kind}")
    function = OPERATIONS[key][2] if operation != "mov" else None
    sources, modifiers = instruction.operands[1:], instruction.modifiers
    count = len(sources)
    fields = {
        field: bits_of(modifiers[field]) if field in modifiers else [default] * count
        for field, default in (("op_sel", 0), ("op_sel_hi", 1), ("neg_lo", 0), ("neg_hi", 0))
    }
    if function is None and "op_sel_hi" not in modifiers:
        fields["op_sel_hi"] = [1] * count
    sides = [
        [_half(t, letter, fields[s][i], bool(fields[n][i])) for i, t in enumerate(sources)]
        for s, n in (("op_sel", "neg_lo"), ("op_sel_hi", "neg_hi"))
    ]
    place = location_of(instruction.operands[0])

    def compute(waves: Waves) -> Callable[[], None]:
        if function is None:  # v_pk_mov_b32: low from the first source, high from the second
            low, high = sides[0][0](waves), sides[1][1](waves)
        else:
            low, high = (function(*[read(waves) for read in side]) for side in sides)
        register = place.index + (waves.first_agpr if place.file == "a" else 0)

        def put() -> None:
            if letter in "fu":
                waves.put(register, np.asarray(low).view(np.uint32))
                waves.put(register + 1, np.asarray(high).view(np.uint32))
                return
            halves = [np.asarray(x).view(np.uint16).astype(np.uint32) for x in (low, high)]
            waves.put(register, halves[0] | halves[1] << np.uint32(16))

        return put

    return compute


def _half(text: str, letter: str, which: int, negate: bool) -> Reader:
    """Return a reader of one of the two values that an operand of a packed operation holds."""
    place = locate(text)
    if letter in "fu":
        if place is not None and place.count == 2:
            text = f"{place.file}{place.index + which}"
        read = read_lanes(text, letter)
    else:
        suffix = ".h" if which else ".l"
        if place is not None and place.file == "s":
            read = _scalar_half(text, which, letter)
        else:
            read = read_lanes(text + suffix if place is not None else text, letter)
    return (lambda w: -read(w)) if negate else read


def _scalar_half(text: str, which: int, letter: str) -> Reader:
    word = read_lanes(text, "u")
    dtype = {"h": np.float16, "t": np.uint16, "s": np.int16}[letter]
    return lambda w: (word(w) >> np.uint32(16 * which)).astype(np.uint16).view(dtype)


def _mixed_fma(instruction: Instruction, name: str) -> Compute:
    """v_fma_mix: each source f32, or one half of a register as f16."""
    modifiers = instruction.modifiers
    halves = bits_of(modifiers.get("op_sel", "[0,0,0]"))
    narrow = bits_of(modifiers.get("op_sel_hi", "[0,0,0]"))
    readers = [
        _as_float(text, halves[i]) if narrow[i] else read_typed(text, "f")
        for i, text in enumerate(instruction.operands[1:4])
    ]
    place = location_of(instruction.operands[0])
    write = writer_of(instruction, "f", "") if name.endswith("f32") else None
    shift = np.uint32(16 if "mixhi" in name else 0)

    def compute(waves: Waves) -> Callable[[], None]:
        dtype = np.float32 if write is not None else np.float16
        a, b, c = (read(waves) for read in readers)
        value = fma(a, b, c, dtype)

        def put() -> None:
            if write is not None:
                write(waves, value)
                return
            held = waves.vectors[place.index, waves.selected] & ~(np.uint32(0xFFFF) << shift)
            waves.put(place.index, held | value.view(np.uint16).astype(np.uint32) << shift)

        return put

    return compute


def _as_float(text: str, which: int) -> Reader:
    read = read_typed(text, "h", high=bool(which))
    return lambda w: read(w).astype(np.float32)


_PACKED = (
    "pk_fma_f32", "pk_mul_f32", "pk_add_f32", "pk_mov_b32", "pk_fma_f16", "pk_add_f16",
    "pk_mul_f16", "pk_max_f16", "pk_min_f16", "pk_add_u16", "pk_sub_i16", "pk_mul_lo_u16",
    "pk_mad_u16", "pk_lshlrev_b16", "pk_lshrrev_b16", "pk_ashrrev_i16", "pk_sub_u16",
    "pk_add_i16", "pk_max_i16", "pk_min_i16", "pk_max_u16", "pk_min_u16",
)  # fmt: skip
PAIR_BUILDERS: dict[str, Build] = {
    **dict.fromkeys(_PACKED, _packed),
    **dict.fromkeys(("fma_mix_f32", "fma_mixlo_f16", "fma_mixhi_f16"), _mixed_fma),
}
"""By mnemonic without prefix and encoding."""
