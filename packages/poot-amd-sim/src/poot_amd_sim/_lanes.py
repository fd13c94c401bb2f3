"""Operands that come from other lanes (DPP) or from a part of a register (SDWA), and LDS permutes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._errors import UnknownInstruction
from poot_amd_sim._operands import Reader, locate, read_lanes
from poot_amd_sim._program import Instruction
from poot_amd_sim._state import Waves

__all__ = ["build_permute", "byte_selected", "lane_source"]

_DTYPES = {"u": np.uint32, "i": np.int32, "f": np.float32, "t": np.uint16, "s": np.int16,
           "h": np.float16}  # fmt: skip


def _source_lanes(modifiers: dict[str, str], lanes: int) -> tuple[Any, Any] | None:
    """Return each lane's source lane and whether it exists, or None without DPP."""
    lane = np.arange(lanes)
    row, place = lane & ~15, lane & 15
    whole = np.ones(lanes, bool)
    if "quad_perm" in modifiers:
        picks = np.array([int(x) for x in modifiers["quad_perm"].strip("[]").split(",")])
        return (lane & ~3) + picks[lane & 3], whole
    if "dpp8" in modifiers:
        picks = np.array([int(x) for x in modifiers["dpp8"].strip("[]").split(",")])
        return (lane & ~7) + picks[lane & 7], whole
    if "row_mirror" in modifiers:
        return row + 15 - place, whole
    if "row_half_mirror" in modifiers:
        return (lane & ~7) + 7 - (lane & 7), whole
    for name, value in modifiers.items():
        if not re.fullmatch(r"row_(?!mask)\w+|wave_\w+", name):
            continue
        by = int(value)
        match name:
            case "row_shl":
                return row + (place + by) % 16, place + by < 16
            case "row_shr":
                return row + (place - by) % 16, place - by >= 0
            case "row_ror":
                return row + (place - by) % 16, whole
            case "row_xmask":
                return row + (place ^ by), whole
            case "row_share" | "row_newbcast":
                return row + by, whole
            case "row_bcast":
                source = (lane & ~(31 if by == 31 else 15)) - 1
                return np.maximum(source, 0), source >= 0
            case _:
                raise UnknownInstruction(f"lane modifier {name}:{value}")
    return None


def lane_source(instruction: Instruction, text: str, kind: str) -> Reader | None:
    """Return a reader of a source that DPP moves among lanes, or None without DPP.

    A lane without a source, or of a masked row or bank, keeps its destination's value, which this
    reader returns only for moves; LLVM folds no others with such masks.
    """
    modifiers = instruction.modifiers
    if _source_lanes(modifiers, 64) is None:
        return None
    rows = int(modifiers.get("row_mask", "0xf"), 0)
    banks = int(modifiers.get("bank_mask", "0xf"), 0)
    zeroes = "bound_ctrl" in modifiers
    read = read_lanes(text.removeprefix("-").strip("|"), kind)
    if text != text.removeprefix("-").strip("|"):
        raise UnknownInstruction(f"{instruction}: signs with DPP")
    old = read_lanes(instruction.operands[0], kind)
    is_move = instruction.name.startswith("v_mov_b32")
    if not is_move and (rows != 15 or banks != 15):
        raise UnknownInstruction(f"{instruction}: masked DPP of another operation than a move")

    def moved(waves: Waves) -> Any:
        found = _source_lanes(modifiers, waves.lanes)
        assert found is not None
        source, exists = found
        held = np.broadcast_to(read(waves), (waves.num_selected, waves.lanes))
        value = held[:, source]
        # A source lane that is switched off counts as absent, too.
        exists = exists[None] & waves.mask[:, source]
        lane = np.arange(waves.lanes)
        enabled = (rows >> (lane // 16 % 4) & 1 & (banks >> (lane // 4 % 4) & 1)).astype(bool)
        if zeroes:
            value = np.where(exists, value, np.zeros((), value.dtype))
        elif not is_move and (waves.mask & ~exists).any():
            raise UnknownInstruction(f"{instruction}: DPP without bound_ctrl from absent lanes")
        else:
            value = np.where(exists, value, old(waves))
        return value if enabled.all() else np.where(enabled[None], value, old(waves))

    return moved


def byte_selected(text: str, selector: str, kind: str) -> Reader:
    """Return a reader of a byte or half of a register (SDWA)."""
    signed = text.startswith("sext(")
    inner = text[5:-1] if signed else text
    negate, inner = inner.startswith("-"), inner.removeprefix("-")
    magnitude, inner = inner.startswith("|"), inner.strip("|")
    word = read_lanes(inner, "u")
    size = 8 if selector.startswith("BYTE") else 16
    shift = np.uint32(size * int(selector[-1]))
    dtype = _DTYPES[kind]

    def read(waves: Waves) -> Any:
        part = word(waves) >> shift & np.uint32((1 << size) - 1)
        if signed:
            up = np.int32(32 - size)
            part = ((part.view(np.int32) << up) >> up).view(np.uint32)
        narrow = np.dtype(dtype).itemsize == 2
        found = (part.astype(np.uint16) if narrow else part).view(dtype)
        found = np.abs(found) if magnitude else found
        return -found if negate else found

    return read


def build_permute(instruction: Instruction) -> Callable[[Waves], None]:
    """Return the step of ds_bpermute, ds_permute or ds_swizzle.

    Raises:
        UnknownInstruction: For another swizzle than by masks or quads.
    """
    name, operands = instruction.name, instruction.operands
    target = locate(operands[0])
    assert target is not None
    offset = instruction.modifiers.get("offset", "0")
    if name == "ds_swizzle_b32":
        value = read_lanes(operands[1], "u")
        pick = _swizzle(offset)

        def swizzle(waves: Waves) -> None:
            source = pick(np.arange(waves.lanes))
            held = np.broadcast_to(value(waves), (waves.num_selected, waves.lanes))
            found = np.where(waves.mask[:, source], held[:, source], np.uint32(0))
            waves.put(target.index, found)
            waves.issue("lds", (target.index,))

        return swizzle
    place, value = read_lanes(operands[1], "u"), read_lanes(operands[2], "u")
    shift = np.uint32(int(offset, 0))

    def permute(waves: Waves) -> None:
        shape = (waves.num_selected, waves.lanes)
        chosen = np.broadcast_to(place(waves) + shift, shape) >> np.uint32(2)
        chosen = (chosen & np.uint32(waves.lanes - 1)).astype(np.intp)
        held = np.broadcast_to(value(waves), shape)
        if name == "ds_bpermute_b32":
            # Lanes that are switched off give zero.
            found = np.take_along_axis(np.where(waves.mask, held, np.uint32(0)), chosen, axis=1)
        else:
            found = np.zeros(shape, np.uint32)
            rows, lanes = np.nonzero(waves.mask)
            found[rows, chosen[rows, lanes]] = held[rows, lanes]
        waves.put(target.index, found)
        waves.issue("lds", (target.index,))

    if name not in ("ds_bpermute_b32", "ds_permute_b32"):
        raise UnknownInstruction(str(instruction))
    return permute


def _swizzle(offset: str) -> Callable[[Any], Any]:
    if match := re.match(r"swizzle\((\w+),\s*([^)]*)\)", offset):
        mode, rest = match[1], match[2]
        if mode == "SWAP":
            by = int(rest)
            return lambda lane: lane ^ by
        if mode == "QUAD_PERM":
            picks = np.array([int(x) for x in rest.split(",")])
            return lambda lane: (lane & ~3) + picks[lane & 3]
        if mode == "BROADCAST":
            size, index = (int(x) for x in rest.split(","))
            return lambda lane: (lane & ~(size - 1)) + index
        if mode == "REVERSE":
            size = int(rest)
            return lambda lane: (lane & ~(size - 1)) + size - 1 - (lane & (size - 1))
        if mode == "BITMASK_PERM":
            pattern = rest.strip().strip('"')
            keep = int("".join("1" if c in "pi" else "0" for c in pattern), 2)
            flip = int("".join("1" if c == "i" else "0" for c in pattern), 2)
            ones = int("".join("1" if c == "1" else "0" for c in pattern), 2)
            return lambda lane: (lane & ~31) + (((lane & 31) & keep | ones) ^ flip)
    try:
        value = int(offset, 0)
    except ValueError:
        raise UnknownInstruction(f"swizzle {offset!r}") from None
    if value & 0x8000:
        picks = np.array([value >> 2 * i & 3 for i in range(4)])
        return lambda lane: (lane & ~3) + picks[lane & 3]
    keep, ones, flip = value & 31, value >> 5 & 31, value >> 10 & 31
    return lambda lane: (lane & ~31) + (((lane & 31) & keep | ones) ^ flip)
