"""Memory instructions: global, workgroup (LDS), scalar and scratch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._errors import SimulationFault, UnknownInstruction
from poot_amd_sim._memory import read_items, write_items
from poot_amd_sim._operands import Location, locate, read_lanes, read_scalar
from poot_amd_sim._program import Instruction
from poot_amd_sim._state import SGPR_BASE, Waves

__all__ = ["build_global", "build_local", "build_private", "build_scalar_load"]

Step = Callable[[Waves], None]

# What moves: (bytes of an item, items, signed, half of the register that a 16-bit load fills).
_FORMS: dict[str, tuple[int, int, bool, int | None]] = {
    "u8": (1, 1, False, None), "i8": (1, 1, True, None), "u16": (2, 1, False, None),
    "i16": (2, 1, True, None), "b8": (1, 1, False, None), "b16": (2, 1, False, None),
    "b32": (4, 1, False, None), "b64": (4, 2, False, None), "b96": (4, 3, False, None),
    "b128": (4, 4, False, None), "d16_u8": (1, 1, False, 0), "d16_hi_u8": (1, 1, False, 1),
    "d16_i8": (1, 1, True, 0), "d16_hi_i8": (1, 1, True, 1), "d16_b16": (2, 1, False, 0),
    "d16_hi_b16": (2, 1, False, 1), "d16_hi_b8": (1, 1, False, 1),
}  # fmt: skip
# Older names of the same.
_OLDER = {
    "ubyte": "u8", "sbyte": "i8", "ushort": "u16", "sshort": "i16", "byte": "b8", "short": "b16",
    "dword": "b32", "dwordx2": "b64", "dwordx3": "b96", "dwordx4": "b128",
    "ubyte_d16": "d16_u8", "ubyte_d16_hi": "d16_hi_u8", "sbyte_d16": "d16_i8",
    "sbyte_d16_hi": "d16_hi_i8", "short_d16": "d16_b16", "short_d16_hi": "d16_hi_b16",
    "byte_d16_hi": "d16_hi_b8", "u8_d16": "d16_u8", "u8_d16_hi": "d16_hi_u8",
    "i8_d16": "d16_i8", "i8_d16_hi": "d16_hi_i8", "u16_d16": "d16_b16",
    "u16_d16_hi": "d16_hi_b16", "b8_d16_hi": "d16_hi_b8", "b16_d16_hi": "d16_hi_b16",
}  # fmt: skip


def _form(name: str) -> tuple[int, int, bool, int | None]:
    found = _FORMS.get(_OLDER.get(name, name))
    if found is None:
        raise UnknownInstruction(f"memory form {name!r}")
    return found


def _vector(text: str) -> Location:
    place = locate(text)
    if place is None or place.file not in "va":
        raise UnknownInstruction(f"a memory instruction moves vector registers, got {text!r}")
    return place


def _at(place: Location, waves: Waves) -> int:
    return place.index + (waves.first_agpr if place.file == "a" else 0)


def _numbers(place: Location, count: int) -> range:
    start = place.index + (1024 if place.file == "a" else 0)
    return range(start, start + count)


def _full(waves: Waves, value: Any) -> Any:
    return np.broadcast_to(value, (waves.num_selected, waves.lanes))


def _fill(
    waves: Waves, place: Location, data: Any, offsets: Any, form: tuple[int, int, bool, int | None]
) -> None:
    """Load items at flat offsets of active lanes into registers."""
    size, items, signed, half = form
    register = _at(place, waves)
    half = place.half if half is None else half
    for number in range(items):
        found = read_items(data, offsets + 4 * number, size)
        if signed:
            found = found.view({1: np.int8, 2: np.int16}[size]).astype(np.int32).view(np.uint32)
        found = found.astype(np.uint32)
        held = waves.vectors[register + number, waves.selected]
        if half is not None:
            kept = held[waves.mask] & np.uint32(0xFFFF if half else 0xFFFF0000)
            found = kept | (found & np.uint32(0xFFFF)) << np.uint32(16 * half)
        if waves.is_full:
            waves.vectors[register + number, waves.selected] = found.reshape(held.shape)
            continue
        held[waves.mask] = found
        waves.vectors[register + number, waves.selected] = held


def _spill(
    waves: Waves, place: Location, data: Any, offsets: Any, form: tuple[int, int, bool, int | None]
) -> None:
    """Store registers of active lanes to flat offsets."""
    size, items, _, half = form
    register = _at(place, waves)
    half = place.half if half is None else half
    for number in range(items):
        value = waves.vectors[register + number, waves.selected][waves.mask]
        if half:
            value = value >> np.uint32(16)
        write_items(data, offsets + 4 * number, value & np.uint32(2 ** (8 * size) - 1), size)


# ---- global memory

_ATOMICS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "add": (np.add, np.uint32), "add_u32": (np.add, np.uint32), "or": (np.bitwise_or, np.uint32),
    "or_b32": (np.bitwise_or, np.uint32), "and": (np.bitwise_and, np.uint32),
    "and_b32": (np.bitwise_and, np.uint32), "xor": (np.bitwise_xor, np.uint32),
    "xor_b32": (np.bitwise_xor, np.uint32), "smax": (np.maximum, np.int32),
    "max_i32": (np.maximum, np.int32), "smin": (np.minimum, np.int32),
    "min_i32": (np.minimum, np.int32), "umax": (np.maximum, np.uint32),
    "max_u32": (np.maximum, np.uint32), "umin": (np.minimum, np.uint32),
    "min_u32": (np.minimum, np.uint32), "add_f32": (np.add, np.float32),
    "swap": (lambda a, b: b, np.uint32), "swap_b32": (lambda a, b: b, np.uint32),
}  # fmt: skip


def build_global(instruction: Instruction) -> Step:
    """Return the step of a global, flat or scratch-free memory instruction.

    Raises:
        UnknownInstruction: If it is none of those known.
    """
    text = str(instruction)
    _, _, rest = instruction.name.partition("_")
    kind, _, form_name = rest.partition("_")
    offset = int(instruction.modifiers.get("offset", "0"), 0)
    operands = instruction.operands
    if kind == "atomic":
        return _global_atomic(instruction, form_name, offset)
    form = _form(form_name)
    size = form[0] * form[1]
    value = _vector(operands[0] if kind == "load" else operands[1])
    address = _address(operands[1] if kind == "load" else operands[0], operands[2], offset)
    if kind == "load":

        def load(waves: Waves) -> None:
            places = waves.memory.offsets(_full(waves, address(waves))[waves.mask], size, text)
            _fill(waves, value, waves.memory.bytes, places, form)
            waves.issue("vm", _numbers(value, form[1]))

        return load
    if kind != "store":
        raise UnknownInstruction(text)

    def store(waves: Waves) -> None:
        places = waves.memory.offsets(_full(waves, address(waves))[waves.mask], size, text)
        _spill(waves, value, waves.memory.bytes, places, form)
        waves.issue("vm" if waves.stores_in_vm else "vs")

    return store


def _address(vector: str, scalar: str, offset: int) -> Callable[[Waves], Any]:
    shift = np.uint64(offset % (1 << 64))
    if scalar == "off":
        read = read_lanes(vector, "U")
        return lambda w: read(w) + shift
    low, base = read_lanes(vector, "u"), read_lanes(scalar, "U")
    return lambda w: base(w) + low(w).astype(np.uint64) + shift


def _global_atomic(instruction: Instruction, name: str, offset: int) -> Step:
    text, operands = str(instruction), instruction.operands
    modifiers = instruction.modifiers
    returns = len(operands) == 4
    _ = modifiers
    if name in ("cmpswap", "cmpswap_b32"):
        return _compare_swap(instruction, offset)
    found = _ATOMICS.get(name)
    if found is None:
        raise UnknownInstruction(text)
    combine, dtype = found
    at = 1 if returns else 0
    address = _address(operands[at], operands[at + 2], offset)
    value = read_lanes(operands[at + 1], "u")
    result = _vector(operands[0]) if returns else None

    def run(waves: Waves) -> None:
        places = waves.memory.offsets(_full(waves, address(waves))[waves.mask], 4, text)
        values = _full(waves, value(waves))[waves.mask]
        old = _combined(waves.memory.bytes, places, values, combine, dtype)
        _returned(waves, result, old, "vm")

    return run


def _combined(data: Any, places: Any, values: Any, combine: Any, dtype: Any) -> Any:
    """Combine one lane after the other and return the old values."""
    if places.size and (places & 3).any():
        raise SimulationFault("an atomic at an address that is no multiple of 4", kind="bounds")
    words = data.view(dtype)
    old = np.empty(len(places), dtype)
    for number, (place, value) in enumerate(zip(places >> 2, values.view(dtype), strict=True)):
        old[number] = words[place]
        words[place] = combine(words[place], value)
    return old.view(np.uint32)


def _compare_swap(instruction: Instruction, offset: int) -> Step:
    text, operands = str(instruction), instruction.operands
    returns = len(operands) == 4
    at = 1 if returns else 0
    address = _address(operands[at], operands[at + 2], offset)
    pair = read_lanes(operands[at + 1], "U")  # new value, then what is compared
    result = _vector(operands[0]) if returns else None

    def run(waves: Waves) -> None:
        places = waves.memory.offsets(_full(waves, address(waves))[waves.mask], 4, text)
        pairs = _full(waves, pair(waves))[waves.mask]
        words = waves.memory.bytes.view(np.uint32)
        old = np.empty(len(places), np.uint32)
        for number, (place, both) in enumerate(zip(places >> 2, pairs, strict=True)):
            old[number] = words[place]
            if int(words[place]) == int(both) >> 32:
                words[place] = int(both) & 0xFFFFFFFF
        _returned(waves, result, old, "vm")

    return run


def _returned(waves: Waves, result: Location | None, old: Any, counter: str) -> None:
    if result is None:
        waves.issue("vm" if counter != "vm" or waves.stores_in_vm else "vs")
        return
    register = _at(result, waves)
    held = waves.vectors[register, waves.selected]
    held = held.copy() if waves.is_all else held
    held[waves.mask] = old
    waves.vectors[register, waves.selected] = held
    waves.issue(counter, _numbers(result, 1))


# ---- workgroup memory


def build_local(instruction: Instruction) -> Step:
    """Return the step of an LDS load, store or atomic.

    Raises:
        UnknownInstruction: If it is none of those known.
    """
    name, text, operands = instruction.name, str(instruction), instruction.operands
    match = re.fullmatch(r"ds_(load|store|read|write)(_2addr|2)?(_stride64|st64)?_(\w+)", name)
    if match is None:
        return _local_atomic(instruction)
    loads = match[1] in ("load", "read")
    form = _form(match[4])
    size = form[0] * form[1]
    modifiers = instruction.modifiers
    if match[2]:
        unit = size * (64 if match[3] else 1)
        offsets = [int(modifiers.get(f"offset{i}", "0"), 0) * unit for i in (0, 1)]
    else:
        offsets = [int(modifiers.get("offset", "0"), 0)]
    address = read_lanes(operands[1] if loads else operands[0], "u")
    if loads:
        first = _vector(operands[0])
        values = [
            Location(first.file, first.index + number * form[1], form[1], first.half)
            for number in range(len(offsets))
        ]
    else:
        values = [_vector(value) for value in operands[1 : 1 + len(offsets)]]

    def run(waves: Waves) -> None:
        data = waves.local.reshape(-1)
        starts = _local_places(waves, address(waves), offsets, size, text)
        for value, places in zip(values, starts, strict=True):
            if loads:
                _fill(waves, value, data, places, form)
            else:
                _spill(waves, value, data, places, form)
        numbers = [n for v in values for n in _numbers(v, form[1])] if loads else ()
        waves.issue_local(numbers)

    return run


def _local_places(
    waves: Waves, address: Any, offsets: list[int], size: int, text: str
) -> list[Any]:
    """Return for each offset the flat places of active lanes."""
    room = waves.local.shape[1]
    flat = _full(waves, address)[waves.mask].astype(np.intp)
    groups = np.broadcast_to(waves.group[waves.selected][:, None], waves.mask.shape)[waves.mask]
    found: list[Any] = []
    for offset in offsets:
        at = flat + offset
        if at.size and (at.max() + size > room or at.min() < 0):
            raise SimulationFault(
                f"{text}: {size} bytes at {int(at.max())} of {room} bytes of workgroup memory",
                kind="bounds",
            )
        found.append(groups * room + at)
    return found


def _local_atomic(instruction: Instruction) -> Step:
    text, operands = str(instruction), instruction.operands
    name = instruction.name.removeprefix("ds_")
    returns = "_rtn" in name
    found = _ATOMICS.get(name.replace("_rtn", ""))
    if found is None:
        raise UnknownInstruction(text)
    combine, dtype = found
    offset = int(instruction.modifiers.get("offset", "0"), 0)
    at = 1 if returns else 0
    address, value = read_lanes(operands[at], "u"), read_lanes(operands[at + 1], "u")
    result = _vector(operands[0]) if returns else None

    def run(waves: Waves) -> None:
        (places,) = _local_places(waves, address(waves), [offset], 4, text)
        values = _full(waves, value(waves))[waves.mask]
        old = _combined(waves.local.reshape(-1), places, values, combine, dtype)
        if result is None:
            waves.issue_local(())
        else:
            _returned(waves, result, old, "lds")
            waves.last_local[waves.selected] = waves.issued["lds"][waves.selected]

    return run


# ---- scratch


def build_private(instruction: Instruction) -> Step:
    """Return the step of an access to an invocation's own scratch (scratch and buffer forms).

    Raises:
        UnknownInstruction: If its form is not known.
    """
    family, kind, form_name = instruction.name.split("_", 2)
    text, operands, modifiers = str(instruction), instruction.operands, instruction.modifiers
    if kind not in ("load", "store"):
        raise UnknownInstruction(text)
    form, offset = _form(form_name), int(modifiers.get("offset", "0"), 0)
    size = form[0] * form[1]
    if family == "scratch":
        value, vector, scalar = (
            (operands[0], operands[1], operands[2])
            if kind == "load"
            else (operands[1], operands[0], operands[2])
        )
    else:  # buffer: value, address or off, descriptor, scalar offset
        value, vector, scalar = operands[0], operands[1], operands[3].removesuffix(" offen")
        if (
            "s" in scalar
        ):  # the wave's own share, which lanes' private arrays have here by themselves
            scalar = "off"
    moved = None if vector == "off" else read_lanes(vector, "u")
    base = None if scalar == "off" else read_lanes(scalar, "u")
    place = _vector(value)

    def run(waves: Waves) -> None:
        room = waves.private.shape[2]
        at = np.full((waves.num_selected, waves.lanes), offset, np.int64)
        for part in (moved, base):
            if part is not None:
                at = at + np.asarray(part(waves)).astype(np.int64)
        lanes = np.arange(waves.count * waves.lanes).reshape(waves.count, waves.lanes)
        rows, inside = lanes[waves.selected][waves.mask], at[waves.mask]
        if inside.size and (inside.min() < 0 or inside.max() + size > room):
            raise SimulationFault(
                f"{text}: {size} bytes at {int(inside.max())} of {room} bytes of scratch",
                kind="bounds",
            )
        data, places = waves.private.reshape(-1), rows * room + inside
        if kind == "load":
            _fill(waves, place, data, places, form)
            waves.issue("vm", _numbers(place, form[1]))
        else:
            _spill(waves, place, data, places, form)
            waves.issue("vm" if waves.stores_in_vm else "vs")

    return run


# ---- scalar loads

_SCALAR_LOADS = {
    "b32": (4, 1, False), "b64": (4, 2, False), "b96": (4, 3, False), "b128": (4, 4, False),
    "b256": (4, 8, False), "b512": (4, 16, False), "dword": (4, 1, False),
    "dwordx2": (4, 2, False), "dwordx4": (4, 4, False), "dwordx8": (4, 8, False),
    "dwordx16": (4, 16, False), "u8": (1, 1, False), "i8": (1, 1, True), "u16": (2, 1, False),
    "i16": (2, 1, True),
}  # fmt: skip


def build_scalar_load(instruction: Instruction) -> Step:
    """Return the step of a scalar load.

    Raises:
        UnknownInstruction: If its width is unknown.
    """
    text, operands = str(instruction), instruction.operands
    form = _SCALAR_LOADS.get(instruction.name.removeprefix("s_load_"))
    target = locate(operands[0])
    if form is None or target is None:
        raise UnknownInstruction(text)
    size, items, signed = form
    base = read_scalar(operands[1], "U")
    index = read_scalar(operands[2], "u") if len(operands) > 2 else None
    offset = np.uint64(int(instruction.modifiers.get("offset", "0"), 0) % (1 << 64))
    is_signed_index = len(operands) > 2 and locate(operands[2]) is None

    def run(waves: Waves) -> None:
        address = base(waves) + offset
        if index is not None:
            moved = np.asarray(index(waves), np.uint32)
            moved = (
                moved.view(np.int32).astype(np.int64).view(np.uint64) if is_signed_index else moved
            )
            address = address + moved.astype(np.uint64)
        places = waves.memory.offsets(np.atleast_1d(address), size * items, text)
        for number in range(items):
            value = read_items(waves.memory.bytes, places + 4 * number, size)
            if signed:
                value = value.view({1: np.int8, 2: np.int16}[size]).astype(np.int32).view(np.uint32)
            waves.put_scalar(target.index + number, value.astype(np.uint32))
        start = SGPR_BASE + target.index
        waves.issue("smem", range(start, start + items))

    return run
