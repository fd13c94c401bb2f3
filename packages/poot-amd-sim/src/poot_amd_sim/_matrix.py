"""Matrix instructions: WMMA of gfx11 and gfx12, MFMA of gfx9, as their operand layouts say.

Sums of floats are taken in f64 and rounded once: the hardware's order inside of one instruction is
not documented. Integers are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._errors import UnknownInstruction
from poot_amd_sim._floats import bf16_values
from poot_amd_sim._operands import locate
from poot_amd_sim._program import Instruction
from poot_amd_sim._state import Waves

__all__ = ["build_matrix"]

Step = Callable[[Waves], None]


def _registers(waves: Waves, text: str, count: int) -> Any:
    """Return (count, selected, lanes) u32 of an operand, which may be a literal."""
    place = locate(text)
    if place is None:
        value = np.float32(float(text)).view(np.uint32) if "." in text else np.uint32(int(text, 0))
        return np.full((count, waves.num_selected, waves.lanes), value, np.uint32)
    start = place.index + (waves.first_agpr if place.file == "a" else 0)
    return waves.vectors[start : start + count, waves.selected]


def _elements(words: Any, kind: str) -> Any:
    """Return (selected, lanes, elements) f64 or i64 of what registers hold."""
    packed = np.ascontiguousarray(np.moveaxis(words, 0, -1))
    if kind == "f16":
        return packed.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return bf16_values(packed.view(np.uint16)).astype(np.float64)
    if kind == "f32":
        return packed.view(np.float32).astype(np.float64)
    return packed.view(np.int8 if kind == "i8" else np.uint8).astype(np.int64)


def build_matrix(instruction: Instruction, arch: str) -> Step:
    """Return the step of a matrix instruction.

    Raises:
        UnknownInstruction: If its shape is not known.
    """
    name = instruction.name
    if match := re.fullmatch(r"v_wmma_(f32|i32)_16x16x16_(bf16|f16|iu8)(_w32)?", name):
        return _wmma(instruction, match[2], is_doubled=arch.startswith("gfx11"))
    match = re.fullmatch(
        r"v_mfma_(f32|i32)_(16x16|32x32)x(\d+)_?(bf16|f16|i8|f32)(_1k)?(_e64)?", name
    )
    if match is not None:
        side = int(match[2][:2])
        return _mfma(instruction, match[4], side, int(match[3]))
    raise UnknownInstruction(str(instruction))


def _wmma(instruction: Instruction, kind: str, *, is_doubled: bool) -> Step:
    """16x16x16 on 32 lanes; gfx11 repeats operands in lanes 16 to 31, gfx12 splits k there."""
    target = locate(instruction.operands[0])
    assert target is not None
    words = (4 if kind == "iu8" else 8) // (1 if is_doubled else 2)
    signs = [int(x) for x in instruction.modifiers.get("neg_lo", "[0,0,0]").strip("[]").split(",")]
    kinds = [("i8" if signs[i] else "u8") if kind == "iu8" else kind for i in (0, 1)]
    if kind != "iu8" and any(signs):
        raise UnknownInstruction(str(instruction))
    number = np.arange(8)[:, None]
    lane = np.arange(32)[None]
    rows = 2 * number + lane // 16 if is_doubled else number + 8 * (lane // 16)
    columns = np.broadcast_to(lane % 16, rows.shape)
    is_float = kind != "iu8"

    def run(waves: Waves) -> None:
        sides: list[Any] = []
        for text, form in zip(instruction.operands[1:3], kinds, strict=True):
            held = _elements(_registers(waves, text, words), form)
            if is_doubled:
                sides.append(held[:, :16])  # (selected, 16, k)
            else:
                sides.append(np.concatenate([held[:, :16], held[:, 16:]], axis=2))
        product = sides[0] @ np.swapaxes(sides[1], 1, 2)  # (selected, 16, 16)
        added = _registers(waves, instruction.operands[3], 8)
        _accumulate(waves, target.index, product[:, rows, columns], added, is_float)

    return run


def _accumulate(waves: Waves, register: int, product: Any, added: Any, is_float: bool) -> None:
    """Write product (selected, registers, lanes) plus addends (registers, selected, lanes)."""
    moved = np.moveaxis(product, 1, 0)
    if is_float:
        total = (moved + added.view(np.float32).astype(np.float64)).astype(np.float32)
    else:
        total = (moved + added.view(np.int32)).astype(np.int32)
    raw = total.view(np.uint32)
    for number in range(raw.shape[0]):
        waves.put_all(register + number, raw[number])  # EXEC is ignored


def _mfma(instruction: Instruction, kind: str, side: int, depth: int) -> Step:
    """16x16 and 32x32 on 64 lanes: lane % side is the row, lane / side the group of k."""
    target = locate(instruction.operands[0])
    assert target is not None
    groups = 64 // side
    if kind == "f32":
        raise UnknownInstruction(str(instruction))
    bytes_each = 1 if kind == "i8" else 2
    words = depth // groups * bytes_each // 4
    count = side * side // 64
    number, lane = np.arange(count)[:, None], np.arange(64)[None]
    # Four neighbouring rows a lane; of 32x32 further quads lie 8 rows apart.
    rows = 4 * (lane // side) + number % 4 + 4 * groups * (number // 4)
    columns = np.broadcast_to(lane % side, rows.shape)
    if any(m in instruction.modifiers for m in ("cbsz", "abid", "blgp")):
        raise UnknownInstruction(str(instruction))

    def run(waves: Waves) -> None:
        sides: list[Any] = []
        for text in instruction.operands[1:3]:
            held = _elements(_registers(waves, text, words), kind)  # (selected, 64, k / groups)
            split = held.reshape(waves.num_selected, groups, side, -1)
            joined = np.moveaxis(split, 1, 2).reshape(waves.num_selected, side, -1)
            sides.append(joined)
        product = sides[0] @ np.swapaxes(sides[1], 1, 2)
        added = _registers(waves, instruction.operands[3], count)
        register = target.index + (waves.first_agpr if target.file == "a" else 0)
        _accumulate(waves, register, product[:, rows, columns], added, kind != "i8")

    return run
