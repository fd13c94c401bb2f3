"""Vector instructions: plain operations and comparisons; which builder takes the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._crossings import CROSSING_BUILDERS
from poot_amd_sim._errors import UnknownInstruction
from poot_amd_sim._floats import class_mask
from poot_amd_sim._functions import dots, truth_table
from poot_amd_sim._masks import MASK_BUILDERS
from poot_amd_sim._operands import read_lanes, read_typed
from poot_amd_sim._pairs import PAIR_BUILDERS
from poot_amd_sim._program import Instruction
from poot_amd_sim._results import Build, Compute, bits_of, location_of, sources_of, writer_of
from poot_amd_sim._state import EXEC, Waves
from poot_amd_sim._vector_table import ALIASES, OPERATIONS

__all__ = ["build_vector"]

_SPECIAL: dict[str, Build] = {**MASK_BUILDERS, **CROSSING_BUILDERS, **PAIR_BUILDERS}
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
    if name == "bitop3_b32":
        function = truth_table(int(instruction.modifiers.get("bitop3", "0"), 0))
    if name == "dot4_i32_iu8":
        signs = bits_of(instruction.modifiers.get("neg_lo", "[0,0,0]"))
        function = dots(4, bool(signs[0]), bool(signs[1]))
    if "clamp" in instruction.modifiers and name in _SATURATING:
        function = _SATURATING[name]
    operands = list(instruction.operands[1:])
    if kinds.endswith("D"):  # the destination is an operand too
        operands.append(instruction.operands[0])
        kinds = kinds[:-1] + result
    if len(operands) != len(kinds):
        raise UnknownInstruction(f"{instruction} has {len(operands)} sources, not {len(kinds)}")
    readers = sources_of(instruction, operands, kinds)
    write = writer_of(instruction, result, arch)

    def compute(waves: Waves) -> Callable[[], None]:
        value = function(*[read(waves) for read in readers])
        return lambda: write(waves, value)

    return compute


def _comparison(instruction: Instruction, relation: str, kind: str, *, is_exec: bool) -> Compute:
    operands = list(instruction.operands)
    target = EXEC if is_exec else location_of(operands.pop(0)).index
    if relation == "class":
        value, mask = read_typed(operands[0], _COMPARED[kind]), read_lanes(operands[1], "u")

        def test(w: Waves) -> Any:
            return class_mask(value(w), mask(w))

    else:
        function = _COMPARE.get(relation)
        if function is None or kind not in _COMPARED:
            raise UnknownInstruction(str(instruction))
        a, b = sources_of(instruction, operands, _COMPARED[kind] * 2)

        def test(w: Waves) -> Any:
            return function(a(w), b(w))

    def compute(waves: Waves) -> Callable[[], None]:
        found = test(waves) & waves.mask
        return lambda: waves.put_lane_bits(target, found)

    return compute
