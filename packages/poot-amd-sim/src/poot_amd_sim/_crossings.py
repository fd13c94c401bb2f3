"""Vector instructions that move values among lanes, or between lanes and scalars."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poot_amd_sim._operands import read_lanes
from poot_amd_sim._program import Instruction
from poot_amd_sim._results import Build, Compute, location_of, writer_of
from poot_amd_sim._state import Waves

__all__ = ["CROSSING_BUILDERS"]


def _first_lane(instruction: Instruction, name: str) -> Compute:
    place = location_of(instruction.operands[0])
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
    place = location_of(instruction.operands[0])
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
    write = writer_of(instruction, "u", "")
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
    write = writer_of(instruction, "u", "")
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
    write = writer_of(instruction, "u", "")
    _ = name

    def compute(waves: Waves) -> Callable[[], None]:
        found = np.roll(value(waves), 32, axis=1)
        return lambda: write(waves, found)

    return compute


CROSSING_BUILDERS: dict[str, Build] = {
    "readfirstlane_b32": _first_lane, "readlane_b32": _first_lane, "writelane_b32": _write_lane,
    "mbcnt_lo_u32_b32": _mask_count, "mbcnt_hi_u32_b32": _mask_count,
    "permlane16_b32": _permute_rows, "permlanex16_b32": _permute_rows,
    "permlane64_b32": _swap_halves,
}  # fmt: skip
"""By mnemonic without prefix and encoding."""
