"""Vector instructions: arithmetic, comparisons, carries, lanes, packed pairs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._errors import UnknownInstruction
from poot_amd_sim._floats import class_mask, div_fmas, div_scale, fma
from poot_amd_sim._functions import dots
from poot_amd_sim._lanes import byte_selected, lane_source
from poot_amd_sim._operands import (
    Location,
    Reader,
    locate,
    read_lanes,
    read_mask,
    read_typed,
)
from poot_amd_sim._program import Instruction
from poot_amd_sim._state import EXEC, VCC, Waves
from poot_amd_sim._vector_table import ALIASES, OPERATIONS

__all__ = ["Compute", "build_vector"]

Compute = Callable[[Waves], Callable[[], None]]
"""Reads operands and computes; what it returns writes the result. Dual instructions compute both
halves before either writes."""

_KINDS = {"f": 32, "u": 32, "i": 32, "U": 64, "I": 64, "d": 64, "h": 16, "t": 16, "s": 16}
_UNSIGNED = {16: np.uint16, 32: np.uint32, 64: np.uint64}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lg": lambda a, b: (a < b) | (a > b), "ne": np.not_equal, "neq": np.not_equal,
    "o": lambda a, b: (a == a) & (b == b), "u": lambda a, b: (a != a) | (b != b),
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "nlt": lambda a, b: ~(a < b),
}  # fmt: skip
_COMPARED = {"f32": "f", "u32": "u", "i32": "i", "u64": "U", "i64": "I", "f64": "d", "f16": "h",
             "u16": "t", "i16": "s"}  # fmt: skip


def _saturated(sign: int, dtype: Any) -> Callable[[Any, Any], Any]:
    limits = np.iinfo(dtype)

    def run(a: Any, b: Any) -> Any:
        total = a.astype(np.int64) + sign * b.astype(np.int64)
        return np.clip(total, limits.min, limits.max).astype(dtype)

    return run


# What ``clamp`` makes of integer operations.
_SATURATING = {
    f"{name}_{kind}": _saturated(sign, dtype)
    for name, sign in (("add_nc", 1), ("sub_nc", -1))
    for kind, dtype in (("u32", np.uint32), ("i32", np.int32), ("u16", np.uint16))
}


def build_vector(instruction: Instruction, arch: str) -> Compute:
    """Return what a vector instruction computes and writes.

    Raises:
        UnknownInstruction: If it is not known.
    """
    name = re.sub(r"_(e32|e64|dpp|e64_dpp|sdwa)$", "", instruction.name.removeprefix("v_"))
    name = re.sub(r"_(e64|e32)$", "", name).removeprefix("dual_")
    name = ALIASES.get(name, name)
    if match := re.fullmatch(r"cmp(x)?_(\w+)_([fui]\d+)", name):
        return _comparison(instruction, match[2], match[3], is_exec=bool(match[1]))
    special = _SPECIAL.get(name)
    if special is not None:
        return special(instruction, name)
    found = OPERATIONS.get(name)
    if found is None:
        raise UnknownInstruction(str(instruction))
    result, kinds, function = found
    saturates = name in _SATURATING or name.startswith("dot4")
    if "clamp" in instruction.modifiers and result not in "fh" and not saturates:
        raise UnknownInstruction(f"{instruction}: clamp of an integer")
    if name == "dot4_i32_iu8":
        signs = _bits(instruction.modifiers.get("neg_lo", "[0,0,0]"))
        function = dots(4, bool(signs[0]), bool(signs[1]))
    if "clamp" in instruction.modifiers and name in _SATURATING:
        function = _SATURATING[name]
    operands = list(instruction.operands[1:])
    if kinds.endswith("D"):  # the destination is an operand too
        operands.append(instruction.operands[0])
        kinds = kinds[:-1] + result
    if len(operands) != len(kinds):
        raise UnknownInstruction(f"{instruction} has {len(operands)} sources, not {len(kinds)}")
    readers = _sources(instruction, operands, kinds)
    write = _writer(instruction, result, arch)

    def compute(waves: Waves) -> Callable[[], None]:
        value = function(*[read(waves) for read in readers])
        return lambda: write(waves, value)

    return compute


def _bits(text: str) -> list[int]:
    return [int(part) for part in text.strip("[]").split(",")]


def _sources(instruction: Instruction, operands: list[str], kinds: str) -> list[Reader]:
    modifiers = instruction.modifiers
    halves = [0] * 4
    if "op_sel" in modifiers:
        halves = [*_bits(modifiers["op_sel"]), 0, 0, 0, 0]
    readers: list[Reader] = []
    for number, (text, kind) in enumerate(zip(operands, kinds, strict=True)):
        if number == 0 and (moved := lane_source(instruction, text, kind)) is not None:
            readers.append(moved)
            continue
        selector = modifiers.get(f"src{number}_sel", "DWORD")
        if number < 2 and selector != "DWORD":
            readers.append(byte_selected(text, selector, kind))
            continue
        high = bool(halves[number]) and _KINDS[kind] == 16
        readers.append(read_typed(text, kind, high=high))
    return readers


def _location(text: str) -> Location:
    place = locate(text)
    if place is None:
        raise UnknownInstruction(f"{text!r} is no destination")
    return place


def _writer(instruction: Instruction, kind: str, arch: str) -> Callable[[Waves, Any], None]:
    """Return a function that writes a result to the first operand."""
    place, modifiers = _location(instruction.operands[0]), instruction.modifiers
    bits, unsigned = _KINDS[kind], _UNSIGNED[_KINDS[kind]]
    finish = _finisher(modifiers, kind)
    base = {"u": np.uint32, "i": np.int32, "f": np.float32, "U": np.uint64, "I": np.int64,
            "d": np.float64, "h": np.float16, "t": np.uint16, "s": np.int16}[kind]  # fmt: skip
    half = place.half
    if bits == 16 and "op_sel" in modifiers and _bits(modifiers["op_sel"])[-1]:
        half = 1
    keeps = bits == 16 and (half is not None or not arch.startswith("gfx9"))
    selector = modifiers.get("dst_sel", "DWORD")
    if selector != "DWORD":
        return _part_writer(place, selector, modifiers.get("dst_unused", "UNUSED_PAD"), base)

    def write(waves: Waves, value: Any) -> None:
        raw = np.asarray(finish(np.asarray(value, base))).view(unsigned)
        register = place.index + (waves.first_agpr if place.file == "a" else 0)
        if bits == 64:
            waves.put(register, raw.astype(np.uint32))
            waves.put(register + 1, (raw >> np.uint64(32)).astype(np.uint32))
            return
        if keeps:
            shift = np.uint32(16 * (half or 0))
            held = waves.vectors[register, waves.selected] & ~(np.uint32(0xFFFF) << shift)
            raw = held | raw.astype(np.uint32) << shift
        waves.put(register, raw)

    return write


def _finisher(modifiers: dict[str, str], kind: str) -> Callable[[Any], Any]:
    if "mul" in modifiers or "div" in modifiers:
        factor = float(modifiers.get("mul", "1")) / float(modifiers.get("div", "1"))
        scale = (np.float16 if kind == "h" else np.float32)(factor)
        return lambda x: x * scale
    if "clamp" in modifiers:
        if kind not in "fh":  # saturating operations have clamped already
            return lambda x: x
        return lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1).astype(x.dtype)
    return lambda x: x


def _part_writer(
    place: Location, selector: str, unused: str, base: Any
) -> Callable[[Waves, Any], None]:
    size = 8 if selector.startswith("BYTE") else 16
    shift = np.uint32(size * int(selector[-1]))
    mask = np.uint32((1 << size) - 1) << shift

    def write(waves: Waves, value: Any) -> None:
        raw = np.asarray(value, base)
        raw = raw.view(_UNSIGNED[8 * raw.dtype.itemsize]).astype(np.uint32) << shift & mask
        if unused == "UNUSED_PRESERVE":
            raw = raw | waves.vectors[place.index, waves.selected] & ~mask
        elif unused == "UNUSED_SEXT":
            raise UnknownInstruction("dst_unused:UNUSED_SEXT")
        waves.put(place.index, raw)

    return write


# ---- comparisons


def _comparison(instruction: Instruction, relation: str, kind: str, *, is_exec: bool) -> Compute:
    operands = list(instruction.operands)
    target = EXEC if is_exec else _location(operands.pop(0)).index
    if relation == "class":
        value, mask = read_typed(operands[0], _COMPARED[kind]), read_lanes(operands[1], "u")

        def test(w: Waves) -> Any:
            return class_mask(value(w), mask(w))

    else:
        function = _COMPARE.get(relation)
        if function is None or kind not in _COMPARED:
            raise UnknownInstruction(str(instruction))
        a, b = _sources(instruction, operands, _COMPARED[kind] * 2)

        def test(w: Waves) -> Any:
            return function(a(w), b(w))

    def compute(waves: Waves) -> Callable[[], None]:
        found = test(waves) & waves.mask
        return lambda: waves.put_lane_bits(target, found)

    return compute


# ---- what reads or writes lane masks


def _select(instruction: Instruction, name: str) -> Compute:
    operands = instruction.operands
    kind = "t" if name.endswith("b16") else "u"
    a, b = _sources(instruction, list(operands[1:3]), kind * 2)
    condition = read_mask(operands[3] if len(operands) > 3 else "vcc")
    write = _writer(instruction, kind, "")

    def compute(waves: Waves) -> Callable[[], None]:
        value = np.where(condition(waves), b(waves), a(waves))
        return lambda: write(waves, value)

    return compute


def _carry(instruction: Instruction, name: str) -> Compute:
    """Add or subtract with a carry out to a mask, and in from one."""
    operands = instruction.operands
    target = _location(operands[1]).index
    a, b = _sources(instruction, list(operands[2:4]), "uu")
    carried = read_mask(operands[4]) if len(operands) > 4 else None
    write = _writer(instruction, "u", "")
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
    write = _writer(instruction, wide, "")
    place = _location(operands[1])
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
    readers = _sources(instruction, list(operands[2:5]), "fff")
    write, target = _writer(instruction, "f", ""), _location(operands[1]).index
    _ = name

    def compute(waves: Waves) -> Callable[[], None]:
        value, flag = div_scale(*[read(waves) for read in readers])

        def put() -> None:
            write(waves, value)
            waves.put_lane_bits(target, flag & waves.mask)

        return put

    return compute


def _division_multiply_add(instruction: Instruction, name: str) -> Compute:
    readers = _sources(instruction, list(instruction.operands[1:4]), "fff")
    write = _writer(instruction, "f", "")
    _ = name

    def compute(waves: Waves) -> Callable[[], None]:
        a, b, c = (read(waves) for read in readers)
        value = div_fmas(a, b, c, waves.lane_bits(VCC))
        return lambda: write(waves, value)

    return compute


# ---- lanes


def _first_lane(instruction: Instruction, name: str) -> Compute:
    place = _location(instruction.operands[0])
    value = read_lanes(instruction.operands[1], "u")
    lane = read_lanes(instruction.operands[2], "u") if name.startswith("readlane") else None

    def compute(waves: Waves) -> Callable[[], None]:
        held = np.broadcast_to(value(waves), (waves.num_selected, waves.lanes))
        if lane is None:
            index = waves.mask.argmax(axis=1)
        else:
            chosen = np.asarray(lane(waves)).reshape(-1) % waves.lanes
            index = np.broadcast_to(chosen, (waves.num_selected,))
        found = held[np.arange(waves.num_selected), index]
        return lambda: waves.put_scalar(place.index, found)

    return compute


def _write_lane(instruction: Instruction, name: str) -> Compute:
    place = _location(instruction.operands[0])
    value, lane = (read_lanes(text, "u") for text in instruction.operands[1:3])
    _ = name

    def compute(waves: Waves) -> Callable[[], None]:
        chosen = np.broadcast_to(np.asarray(lane(waves)).reshape(-1), (waves.num_selected,))
        found = np.broadcast_to(np.asarray(value(waves)).reshape(-1), (waves.num_selected,))

        def put() -> None:
            held = waves.vectors[place.index, waves.selected].copy()
            held[np.arange(waves.num_selected), chosen % waves.lanes] = found
            waves.put_all(place.index, held)

        return put

    return compute


def _mask_count(instruction: Instruction, name: str) -> Compute:
    mask, base = (read_lanes(text, "u") for text in instruction.operands[1:3])
    write = _writer(instruction, "u", "")
    is_high = "hi" in name

    def compute(waves: Waves) -> Callable[[], None]:
        lanes = waves.lane_numbers.astype(np.int64) - (32 if is_high else 0)
        below = ((np.int64(1) << np.clip(lanes, 0, 32)) - 1).astype(np.uint32)
        value = np.bitwise_count(mask(waves) & below).astype(np.uint32) + base(waves)
        return lambda: write(waves, value)

    return compute


def _permute_rows(instruction: Instruction, name: str) -> Compute:
    """v_permlane16 and v_permlanex16: any lane of the own, or of the other, row of 16."""
    value, low, high = (read_lanes(text, "u") for text in instruction.operands[1:4])
    write = _writer(instruction, "u", "")
    other = 16 if "x16" in name else 0

    def compute(waves: Waves) -> Callable[[], None]:
        picks = np.broadcast_to(low(waves), (waves.num_selected, 1)).astype(np.uint64)
        picks = picks | np.broadcast_to(high(waves), picks.shape).astype(np.uint64) << np.uint64(32)
        lanes = waves.lane_numbers.astype(np.uint64)
        chosen = (picks >> ((lanes & np.uint64(15)) * np.uint64(4)) & np.uint64(15)).astype(np.intp)
        source = ((lanes.astype(np.intp) & ~15) ^ other) + chosen
        held = np.broadcast_to(value(waves), (waves.num_selected, waves.lanes))
        found = np.take_along_axis(held, source, axis=1)
        return lambda: write(waves, found)

    return compute


def _swap_halves(instruction: Instruction, name: str) -> Compute:
    value = read_lanes(instruction.operands[1], "u")
    write = _writer(instruction, "u", "")
    _ = name

    def compute(waves: Waves) -> Callable[[], None]:
        found = np.roll(value(waves), 32, axis=1)
        return lambda: write(waves, found)

    return compute


# ---- pairs


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
        field: _bits(modifiers[field]) if field in modifiers else [default] * count
        for field, default in (("op_sel", 0), ("op_sel_hi", 1), ("neg_lo", 0), ("neg_hi", 0))
    }
    if function is None and "op_sel_hi" not in modifiers:
        fields["op_sel_hi"] = [1] * count
    sides = [
        [_half(t, letter, fields[s][i], bool(fields[n][i])) for i, t in enumerate(sources)]
        for s, n in (("op_sel", "neg_lo"), ("op_sel_hi", "neg_hi"))
    ]
    place = _location(instruction.operands[0])

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
    halves = _bits(modifiers.get("op_sel", "[0,0,0]"))
    narrow = _bits(modifiers.get("op_sel_hi", "[0,0,0]"))
    readers = [
        _as_float(text, halves[i]) if narrow[i] else read_typed(text, "f")
        for i, text in enumerate(instruction.operands[1:4])
    ]
    place = _location(instruction.operands[0])
    write = _writer(instruction, "f", "") if name.endswith("f32") else None
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


_SPECIAL: dict[str, Callable[[Instruction, str], Compute]] = {
    "cndmask_b32": _select, "cndmask_b16": _select,
    **dict.fromkeys(
        ("add_co_u32", "sub_co_u32", "subrev_co_u32", "add_co_ci_u32", "sub_co_ci_u32",
         "subrev_co_ci_u32", "addc_co_u32", "subb_co_u32", "subbrev_co_u32"), _carry),
    **dict.fromkeys(
        ("mad_u64_u32", "mad_i64_i32", "mad_co_u64_u32", "mad_co_i64_i32"), _wide_multiply_add),
    "div_scale_f32": _division_scale, "div_fmas_f32": _division_multiply_add,
    "readfirstlane_b32": _first_lane, "readlane_b32": _first_lane, "writelane_b32": _write_lane,
    "mbcnt_lo_u32_b32": _mask_count, "mbcnt_hi_u32_b32": _mask_count,
    "permlane16_b32": _permute_rows, "permlanex16_b32": _permute_rows,
    "permlane64_b32": _swap_halves,
    **dict.fromkeys(
        ("pk_fma_f32", "pk_mul_f32", "pk_add_f32", "pk_mov_b32", "pk_fma_f16", "pk_add_f16",
         "pk_mul_f16", "pk_max_f16", "pk_min_f16", "pk_add_u16", "pk_sub_i16", "pk_mul_lo_u16",
         "pk_mad_u16", "pk_lshlrev_b16", "pk_lshrrev_b16", "pk_ashrrev_i16", "pk_sub_u16",
         "pk_add_i16", "pk_max_i16", "pk_min_i16", "pk_max_u16", "pk_min_u16"), _packed),
    "fma_mix_f32": _mixed_fma, "fma_mixlo_f16": _mixed_fma, "fma_mixhi_f16": _mixed_fma,
}  # fmt: skip
