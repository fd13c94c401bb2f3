"""Operands in and results out of vector instructions, with their modifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._errors import UnknownInstruction
from poot_amd_sim._lanes import byte_selected, lane_source
from poot_amd_sim._operands import Location, Reader, locate, read_typed
from poot_amd_sim._program import Instruction
from poot_amd_sim._state import Waves

__all__ = ["Build", "Compute", "bits_of", "location_of", "sources_of", "writer_of"]

Compute = Callable[[Waves], Callable[[], None]]
"""Reads operands and computes; what it returns writes the result. Dual instructions compute both
halves before either writes."""

Build = Callable[[Instruction, str], Compute]
"""Takes an instruction and its plain name."""

_KINDS = {"f": 32, "u": 32, "i": 32, "U": 64, "I": 64, "d": 64, "h": 16, "t": 16, "s": 16}
_UNSIGNED = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def bits_of(text: str) -> list[int]:
    """Return the numbers of a modifier such as ``[0,1,0]``."""
    return [int(part) for part in text.strip("[]").split(",")]


def sources_of(instruction: Instruction, operands: list[str], kinds: str) -> list[Reader]:
    """Return readers of source operands by the letters of their types."""
    modifiers = instruction.modifiers
    halves = [0] * 4
    if "op_sel" in modifiers:
        halves = [*bits_of(modifiers["op_sel"]), 0, 0, 0, 0]
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


def location_of(text: str) -> Location:
    """Return the registers of a destination."""
    place = locate(text)
    if place is None:
        raise UnknownInstruction(f"{text!r} is no destination")
    return place


def writer_of(instruction: Instruction, kind: str, arch: str) -> Callable[[Waves, Any], None]:
    """Return a function that writes a result to the first operand."""
    place, modifiers = location_of(instruction.operands[0]), instruction.modifiers
    bits, unsigned = _KINDS[kind], _UNSIGNED[_KINDS[kind]]
    finish = _finisher(modifiers, kind)
    base = {"u": np.uint32, "i": np.int32, "f": np.float32, "U": np.uint64, "I": np.int64,
            "d": np.float64, "h": np.float16, "t": np.uint16, "s": np.int16}[kind]  # fmt: skip
    half = place.half
    if bits == 16 and "op_sel" in modifiers and bits_of(modifiers["op_sel"])[-1]:
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
