"""Operands: which registers a text names, and functions that read them with a type."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from poot_amd_sim._errors import UnknownInstruction
from poot_amd_sim._program import Instruction
from poot_amd_sim._state import EXEC, M0, NULL, SGPR_BASE, TTMP, VCC, Waves

__all__ = [
    "Location",
    "Reader",
    "literal",
    "locate",
    "read_lanes",
    "read_mask",
    "read_scalar",
    "read_typed",
    "registers_of",
    "width_of",
]

Reader = Callable[[Waves], Any]

_NAMED = {
    "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1), "vcc": (VCC, 2), "m0": (M0, 1), "null": (NULL, 1),
    "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1), "exec": (EXEC, 2),
}  # fmt: skip
_AGPR = 1024
# Types: how many bits, and how u32 or u64 become it.
_TYPES: dict[str, tuple[int, Any]] = {
    "u": (32, np.uint32), "i": (32, np.int32), "f": (32, np.float32), "U": (64, np.uint64),
    "I": (64, np.int64), "d": (64, np.float64), "t": (16, np.uint16), "s": (16, np.int16),
    "h": (16, np.float16),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Location:
    """Registers that an operand names.

    Attributes:
        file: ``v``, ``a`` or ``s``.
        index: First register.
        count: How many.
        half: 0 or 1 for the low or high half of a register (``v1.h``), or None.
    """

    file: str
    index: int
    count: int
    half: int | None = None


def locate(text: str) -> Location | None:
    """Return the registers that an operand names, or None for what is no register.

    >>> locate("v[2:3]"), locate("s5").index, locate("1.0")
    (Location(file='v', index=2, count=2, half=None), 5, None)
    """
    if match := re.fullmatch(r"([vsa]|ttmp)(\d+)(\.[lh])?", text):
        half = None if match[3] is None else int(match[3] == ".h")
        if match[1] == "ttmp":
            return Location("s", TTMP + int(match[2]), 1)
        return Location(match[1], int(match[2]), 1, half)
    if match := re.fullmatch(r"([vsa])\[(\d+):(\d+)\]", text):
        return Location(match[1], int(match[2]), int(match[3]) - int(match[2]) + 1)
    if match := re.fullmatch(r"([vsa])\[(\d+)\]", text):
        return Location(match[1], int(match[2]), 1)
    if text in _NAMED:
        return Location("s", *_NAMED[text])
    return None


def registers_of(step: tuple[Instruction, ...]) -> frozenset[int]:
    """Return the numbers that wait checks use of all registers that a step names."""
    found: set[int] = set()
    for instruction in step:
        for text in instruction.operands:
            place = locate(re.sub(r"^-?\|?|\|$", "", text))
            if place is not None:
                base = {"v": 0, "a": _AGPR, "s": SGPR_BASE}[place.file] + place.index
                found.update(range(base, base + place.count))
    return frozenset(found)


def literal(text: str, kind: str, symbols: dict[str, int] | None = None) -> Any:
    """Return a literal of a type, as the hardware extends it.

    Raises:
        UnknownInstruction: If it is no literal.
    """
    bits, dtype = _TYPES[kind]
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
        value = int(text, 0)
        if kind == "d" and text.startswith("0x"):
            value <<= 32  # literals of f64 are its upper half
        unsigned = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]
        return unsigned(value % (1 << bits)).view(dtype)
    if match := re.fullmatch(r"([\w.$]+)@(rel|abs)32@(lo|hi)([+-]\d+)?", text):
        # After s_getpc, which gives 0 here, base plus offset are the symbol's own address.
        address = (symbols or {}).get(match[1], 0)
        return np.uint32(address & 0xFFFFFFFF if match[3] == "lo" else address >> 32)
    try:
        number = float(text)
    except ValueError:
        raise UnknownInstruction(f"operand {text!r} is neither a register nor a number") from None
    if kind in "hts":
        return np.float16(number).view(dtype)
    if kind in "dUI":
        return np.float64(number).view(dtype)
    return np.uint32(struct.unpack("<I", struct.pack("<f", number))[0]).view(dtype)


def _vector_index(place: Location, waves: Waves) -> int:
    return place.index + (waves.first_agpr if place.file == "a" else 0)


def read_lanes(text: str, kind: str) -> Reader:
    """Return a reader of an operand without modifiers, as (selected, lanes) or broadcastable."""
    bits, dtype = _TYPES[kind]
    place = locate(text)
    if place is None:
        if "@" in text:
            return lambda w: literal(text, kind, w.symbols)
        if text == "src_scc":
            return lambda w: w.scc[w.selected][:, None].astype(dtype)
        constant = literal(text, kind)
        return lambda w: constant
    if place.file == "s":
        if bits == 64:
            return lambda w: w.scalar(place.index, 64)[:, None].view(dtype)
        if bits == 16:
            return lambda w: w.scalar(place.index)[:, None].astype(np.uint16).view(dtype)
        return lambda w: w.scalar(place.index)[:, None].view(dtype)
    if bits == 64:

        def wide(w: Waves) -> Any:
            at = _vector_index(place, w)
            high = w.vectors[at + 1, w.selected].astype(np.uint64) << np.uint64(32)
            return (w.vectors[at, w.selected] | high).view(dtype)

        return wide
    if bits == 16:
        shift = np.uint32(16 * (place.half or 0))

        def narrow(w: Waves) -> Any:
            word = w.vectors[_vector_index(place, w), w.selected]
            return (word >> shift).astype(np.uint16).view(dtype)

        return narrow
    if place.file == "a":
        return lambda w: w.vectors[w.first_agpr + place.index, w.selected].view(dtype)
    index = place.index
    return lambda w: w.vectors[index, w.selected].view(dtype)


def read_typed(text: str, kind: str, *, high: bool = False) -> Reader:
    """Return a reader of an operand with sign and magnitude modifiers.

    Args:
        text: Such as ``-|v1|``.
        kind: Letter of the type.
        high: Whether a 16-bit operand is the upper half of its register (``op_sel``).
    """
    inner, negate, magnitude = text, False, False
    is_number = re.fullmatch(r"-[\d.].*", inner) is not None
    if inner.startswith("neg("):
        inner, negate = inner[4:-1], True
    elif inner.startswith("-") and not is_number:
        inner, negate = inner[1:], True
    if inner.startswith("|") or inner.startswith("abs("):
        inner, magnitude = inner.strip("|").removeprefix("abs(").removesuffix(")"), True
    if inner.startswith("sext("):
        raise UnknownInstruction(f"operand {text!r}")
    if high:
        inner = inner + ".h" if locate(inner) and not inner.endswith((".h", ".l")) else inner
    plain = read_lanes(inner, kind)
    if not (negate or magnitude):
        return plain
    if kind not in "fdh":
        if kind == "u":  # moves and selects of floats
            sign = np.uint32(0x80000000)
            if magnitude and negate:
                return lambda w: plain(w) | sign
            return (lambda w: plain(w) & ~sign) if magnitude else (lambda w: plain(w) ^ sign)
        raise UnknownInstruction(f"a sign modifier on an integer: {text!r}")
    if magnitude and negate:
        return lambda w: -np.abs(plain(w))
    return (lambda w: np.abs(plain(w))) if magnitude else (lambda w: -plain(w))


def read_scalar(text: str, kind: str) -> Reader:
    """Return a reader of an operand as (selected,) or a literal, in scalar instructions."""
    bits, dtype = _TYPES[kind]
    place = locate(text)
    if place is None:
        if "@" in text:
            return lambda w: literal(text, kind, w.symbols)
        if text == "src_scc":
            return lambda w: w.scc[w.selected].astype(dtype)
        constant = literal(text, kind)
        return lambda w: constant
    if place.file != "s":
        raise UnknownInstruction(f"vector register {text!r} in a scalar instruction")
    if bits == 16:
        return lambda w: w.scalar(place.index).astype(np.uint16).view(dtype)
    return lambda w: w.scalar(place.index, bits).view(dtype)


def read_mask(text: str) -> Reader:
    """Return a reader of a lane mask as (selected, lanes) bool."""
    place = locate(text)
    if place is None:
        value = int(text, 0)
        return lambda w: (
            (np.uint64(value % (1 << 64)) >> w.lane_numbers.astype(np.uint64)) & np.uint64(1)
        ).astype(bool)[None]
    return lambda w: w.lane_bits(place.index)


def width_of(text: str) -> int:
    """Return how many registers an operand names."""
    place = locate(text)
    return 1 if place is None else place.count
