"""Scalar instructions: one value a wave."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from poot_amd_sim._errors import UnknownInstruction
from poot_amd_sim._operands import Reader, locate, read_scalar
from poot_amd_sim._program import Instruction
from poot_amd_sim._state import EXEC, Waves
from poot_amd_sim._vector_table import ALIASES, OPERATIONS

__all__ = ["build_scalar"]

Step = Callable[[Waves], None]
_U32 = np.uint64(0xFFFFFFFF)


def _signed(x: Any, bits: int) -> Any:
    return x.view(np.int32).astype(np.int64) if bits == 32 else x.view(np.int64)


_BITWISE: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b),
    "andn2": lambda a, b: a & ~b, "and_not1": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b, "or_not1": lambda a, b: a | ~b,
    "andn1": lambda a, b: ~a & b, "and_not0": lambda a, b: ~a & b,
    "orn1": lambda a, b: ~a | b, "or_not0": lambda a, b: ~a | b,
}  # fmt: skip
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "lg": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less,
    "le": np.less_equal,
}  # fmt: skip
_FLOAT_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    **_RELATIONS, "lg": lambda a, b: (a < b) | (a > b), "neq": np.not_equal,
    "nge": lambda a, b: ~(a >= b), "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b),
    "nlt": lambda a, b: ~(a < b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: (a == a) & (b == b), "u": lambda a, b: (a != a) | (b != b),
}  # fmt: skip
_FLOATS = {
    *(f"{name}_f32" for name in ("add", "sub", "mul", "min", "max", "fmac", "fmaak", "fmamk",
      "min_num", "max_num", "minimum", "maximum", "ceil", "floor", "trunc", "rndne", "fma")),
    "cvt_f32_i32", "cvt_f32_u32", "cvt_i32_f32", "cvt_u32_f32", "cvt_f32_f16", "cvt_f16_f32",
    "cvt_pk_rtz_f16_f32",
    *(f"{name}_f32" for name in ("exp", "log", "rcp", "rsq", "sqrt")),
}  # fmt: skip


def build_scalar(instruction: Instruction) -> Step:
    """Return the step of a scalar instruction.

    Raises:
        UnknownInstruction: If it is not known.
    """
    name = instruction.name.removeprefix("v_s_").removeprefix("s_")
    if name in _FLOATS:
        return _float(instruction, name)
    if match := re.fullmatch(r"cmpk?_(\w+)_([uif])(\d+)", name):
        return _compare(instruction, match[1], match[2], int(match[3]))
    if match := re.fullmatch(r"(\w+)_saveexec_b(32|64)", name):
        return _save_exec(instruction, match[1], int(match[2]))
    operation, _, kind = name.rpartition("_")
    bits = 64 if kind.endswith("64") else 32
    if (function := _BITWISE.get(operation)) and kind.startswith("b"):
        return _binary(instruction, function, bits, is_logic=True)
    found = _MORE.get(name) or _MORE.get(operation)
    if found is None:
        raise UnknownInstruction(str(instruction))
    return found(instruction, kind, bits)


def _target(instruction: Instruction) -> int:
    place = locate(instruction.operands[0])
    if place is None:
        raise UnknownInstruction(str(instruction))
    return place.index


def _read(instruction: Instruction, number: int, bits: int) -> Reader:
    return read_scalar(instruction.operands[number], "u" if bits == 32 else "U")


def _binary(
    instruction: Instruction, function: Callable[[Any, Any], Any], bits: int, *, is_logic: bool
) -> Step:
    target = _target(instruction)
    a, b = (_read(instruction, n, bits) for n in (1, 2))

    def run(w: Waves) -> None:
        value = function(a(w), b(w))
        w.put_scalar(target, value, bits)
        if is_logic:
            w.scc[w.selected] = value != 0

    return run


def _save_exec(instruction: Instruction, name: str, bits: int) -> Step:
    function, target = _BITWISE.get(name), _target(instruction)
    if function is None:
        raise UnknownInstruction(str(instruction))
    source = _read(instruction, 1, bits)

    def run(w: Waves) -> None:
        old, given = w.scalar(EXEC, bits), source(w)
        value = function(given, old)
        w.put_scalar(target, old, bits)
        w.put_scalar(EXEC, value, bits)
        w.scc[w.selected] = value != 0

    return run


def _compare(instruction: Instruction, relation: str, kind: str, bits: int) -> Step:
    letter = {"u": "u" if bits == 32 else "U", "i": "i" if bits == 32 else "I", "f": "f"}[kind]
    if bits == 16:
        raise UnknownInstruction(str(instruction))
    table = _FLOAT_RELATIONS if kind == "f" else _RELATIONS
    function = table.get(relation)
    if function is None:
        raise UnknownInstruction(str(instruction))
    a, b = (read_scalar(text, letter) for text in instruction.operands)

    def run(w: Waves) -> None:
        w.scc[w.selected] = function(a(w), b(w))

    return run


def _float(instruction: Instruction, name: str) -> Step:
    result, kinds, function = OPERATIONS[ALIASES.get(name, name)]
    target, operands = _target(instruction), list(instruction.operands[1:])
    if kinds.endswith("D"):
        operands.append(instruction.operands[0])
        kinds = kinds[:-1] + result
    readers = [read_scalar(text, kind) for text, kind in zip(operands, kinds, strict=True)]

    def run(w: Waves) -> None:
        value = np.asarray(function(*[np.asarray(read(w)) for read in readers]))
        if result == "h":
            value = np.asarray(value, np.float16).view(np.uint16).astype(np.uint32)
        elif result == "f":
            value = np.asarray(value, np.float32).view(np.uint32)
        w.put_scalar(target, value.view(np.uint32) if value.dtype.itemsize == 4 else value)

    return run


Build = Callable[[Instruction, str, int], Step]


def _unary(
    function: Callable[[Any, int], Any], *, sets: bool = False, wide: bool | None = None
) -> Build:
    def build(instruction: Instruction, kind: str, bits: int) -> Step:
        _ = kind
        target, source = _target(instruction), _read(instruction, 1, bits)
        out = bits if wide is None else 64 if wide else 32

        def run(w: Waves) -> None:
            value = function(np.asarray(source(w)), bits)
            w.put_scalar(target, value, out)
            if sets:
                w.scc[w.selected] = value != 0

        return run

    return build


def _add(sign: int, *, carry: bool = False) -> Build:
    def build(instruction: Instruction, kind: str, bits: int) -> Step:
        target = _target(instruction)
        a, b = (_read(instruction, n, bits) for n in (1, 2))
        signed = kind.startswith("i")

        def run(w: Waves) -> None:
            if bits == 64:
                x, y = np.asarray(a(w)), np.asarray(b(w))
                w.put_scalar(target, x + y if sign > 0 else x - y, 64)
                return
            x, y = (np.asarray(read(w)) for read in (a, b))
            wide_x, wide_y = ((_signed(v, 32) if signed else v.astype(np.int64)) for v in (x, y))
            extra = w.scc[w.selected].astype(np.int64) if carry else 0
            total = wide_x + sign * (wide_y + extra)
            low, high = (-(2**31), 2**31 - 1) if signed else (0, 2**32 - 1)
            w.scc[w.selected] = (total < low) | (total > high)
            w.put_scalar(target, total.astype(np.uint32))

        return run

    return build


def _shift(instruction: Instruction, kind: str, bits: int) -> Step:
    name = instruction.name.removeprefix("s_").split("_")[0]
    target, source = _target(instruction), _read(instruction, 1, bits)
    amount = _read(instruction, 2, 32)
    _ = kind

    def run(w: Waves) -> None:
        value = np.asarray(source(w))
        by = (np.asarray(amount(w)) & np.uint32(bits - 1)).astype(value.dtype)
        if name == "lshl":
            value = value << by
        elif name == "lshr":
            value = value >> by
        else:
            signed = np.int32 if bits == 32 else np.int64
            value = (value.view(signed) >> by.astype(signed)).view(value.dtype)
        w.put_scalar(target, value, bits)
        w.scc[w.selected] = value != 0

    return run


def _shift_add(instruction: Instruction, kind: str, bits: int) -> Step:
    by = np.uint64(int(instruction.name[6]))
    target = _target(instruction)
    a, b = (_read(instruction, n, 32) for n in (1, 2))
    _ = kind, bits

    def run(w: Waves) -> None:
        total = (np.asarray(a(w)).astype(np.uint64) << by) + np.asarray(b(w)).astype(np.uint64)
        w.scc[w.selected] = total > _U32
        w.put_scalar(target, total.astype(np.uint32))

    return run


def _pick(function: Callable[[Any, Any], Any]) -> Build:
    def build(instruction: Instruction, kind: str, bits: int) -> Step:
        letter = "i" if kind.startswith("i") else "u"
        target = _target(instruction)
        a, b = (read_scalar(text, letter) for text in instruction.operands[1:3])
        _ = bits

        def run(w: Waves) -> None:
            x, y = np.asarray(a(w)), np.asarray(b(w))
            value = function(x, y)
            w.put_scalar(target, value.view(np.uint32))
            w.scc[w.selected] = value == x

        return run

    return build


def _multiply(instruction: Instruction, kind: str, bits: int) -> Step:
    target, is_high = _target(instruction), "_hi_" in instruction.name
    a, b = (_read(instruction, n, bits) for n in (1, 2))

    def run(w: Waves) -> None:
        x, y = np.asarray(a(w)), np.asarray(b(w))
        if not is_high:
            w.put_scalar(target, x * y, bits)
        elif kind == "u32":
            w.put_scalar(
                target,
                (x.astype(np.uint64) * y.astype(np.uint64) >> np.uint64(32)).astype(np.uint32),
            )
        else:
            w.put_scalar(target, (_signed(x, 32) * _signed(y, 32) >> 32).astype(np.uint32))

    return run


def _select(instruction: Instruction, kind: str, bits: int) -> Step:
    target = _target(instruction)
    a, b = (_read(instruction, n, bits) for n in (1, 2))
    _ = kind
    return lambda w: w.put_scalar(target, np.where(w.scc[w.selected], a(w), b(w)), bits)


def _constant_move(instruction: Instruction, kind: str, bits: int) -> Step:
    """s_movk, s_addk, s_mulk: a 16-bit immediate, sign-extended."""
    name, target = instruction.name, _target(instruction)
    value = int(instruction.operands[1], 0) & 0xFFFF
    value -= (value & 0x8000) << 1
    _ = kind, bits

    def run(w: Waves) -> None:
        old = _signed(w.scalar(target), 32)
        if name.startswith("s_movk"):
            w.put_scalar(target, np.uint32(value % (1 << 32)))
            return
        total = old + value if name.startswith("s_addk") else old * value
        if name.startswith("s_addk"):
            w.scc[w.selected] = (total < -(2**31)) | (total > 2**31 - 1)
        w.put_scalar(target, total.astype(np.uint32))

    return run


def _conditional_move(instruction: Instruction, kind: str, bits: int) -> Step:
    target, source = _target(instruction), _read(instruction, 1, bits)
    _ = kind
    return lambda w: w.put_scalar(
        target, np.where(w.scc[w.selected], source(w), w.scalar(target, bits)), bits
    )


def _field(instruction: Instruction, kind: str, bits: int) -> Step:
    target, source = _target(instruction), _read(instruction, 1, bits)
    spec = _read(instruction, 2, 32)

    def run(w: Waves) -> None:
        value, how = np.asarray(source(w)), np.asarray(spec(w))
        offset = (how & np.uint32(bits - 1)).astype(value.dtype)
        width = np.minimum(how >> np.uint32(16) & np.uint32(127), np.uint32(bits))
        width = np.minimum(width, np.uint32(bits) - offset.astype(np.uint32)).astype(value.dtype)
        ones = value.dtype.type(2**bits - 1)
        mask = np.where(width == 0, 0, ones >> (value.dtype.type(bits) - np.maximum(width, 1)))
        found = value >> offset & mask
        if kind.startswith("i"):
            top = np.where(width == 0, 0, value.dtype.type(1) << (np.maximum(width, 1) - 1))
            found = (found ^ top) - top
        w.put_scalar(target, found.astype(value.dtype), bits)
        w.scc[w.selected] = found != 0

    return run


def _field_mask(instruction: Instruction, kind: str, bits: int) -> Step:
    target = _target(instruction)
    a, b = (_read(instruction, n, 32) for n in (1, 2))
    one, low = (np.uint32(1), 31) if bits == 32 else (np.uint64(1), 63)
    _ = kind

    def run(w: Waves) -> None:
        width, offset = (np.asarray(r(w)).astype(one.dtype) & one.dtype.type(low) for r in (a, b))
        w.put_scalar(target, ((one << width) - one) << offset, bits)

    return run


def _bit_test(instruction: Instruction, kind: str, bits: int) -> Step:
    wanted = int(instruction.name[len("s_bitcmp")])
    source = read_scalar(instruction.operands[0], "u" if bits == 32 else "U")
    number = read_scalar(instruction.operands[1], "u")
    _ = kind

    def run(w: Waves) -> None:
        value = np.asarray(source(w))
        place = np.asarray(number(w)).astype(value.dtype) & value.dtype.type(bits - 1)
        w.scc[w.selected] = (value >> place & value.dtype.type(1)) == wanted

    return run


def _pack(instruction: Instruction, kind: str, bits: int) -> Step:
    halves = instruction.name.removeprefix("s_pack_")[:2]
    target = _target(instruction)
    a, b = (_read(instruction, n, 32) for n in (1, 2))
    shifts = [np.uint32(16 * (half == "h")) for half in halves]
    _ = kind, bits

    def run(w: Waves) -> None:
        low, high = (
            np.asarray(r(w)) >> s & np.uint32(0xFFFF) for r, s in zip((a, b), shifts, strict=True)
        )
        w.put_scalar(target, low | high << np.uint32(16))

    return run


def _reversed(x: Any, bits: int) -> Any:
    return np.array([int(f"{int(v):0{bits}b}"[::-1], 2) for v in x.reshape(-1)], x.dtype)


def _leading(x: Any, bits: int) -> Any:
    found = np.array([bits - int(v).bit_length() if v else 0xFFFFFFFF for v in x.reshape(-1)])
    return found.astype(np.uint32)


def _trailing(x: Any, bits: int) -> Any:
    _ = bits
    lowest = [int(v) & -int(v) for v in x.reshape(-1)]
    return np.array([v.bit_length() - 1 if v else 0xFFFFFFFF for v in lowest]).astype(np.uint32)


def _leading_signed(x: Any, bits: int) -> Any:
    """Return how many bits equal the sign before the first that differs, all ones for none."""
    found: list[int] = []
    for v in x.reshape(-1):
        value = int(v) - (1 << bits) if int(v) >> (bits - 1) else int(v)
        magnitude = ~value if value < 0 else value
        found.append(bits - magnitude.bit_length() if magnitude else 0xFFFFFFFF)
    return np.array(found).astype(np.uint32)


def _extended(bits: int) -> Callable[[Any, int], Any]:
    dtype = np.int8 if bits == 8 else np.int16
    return lambda x, _: x.astype(dtype).astype(np.int32).view(np.uint32)


def _absolute(x: Any, bits: int) -> Any:
    _ = bits
    return np.abs(x.view(np.int32)).view(np.uint32)


def _whole_quads(x: Any, bits: int) -> Any:
    found = x.copy()
    for place in range(0, bits, 4):
        mask = x.dtype.type(15 << place)
        found |= np.where(x & mask, mask, x.dtype.type(0))
    return found


_COUNT = _unary(lambda x, bits: np.bitwise_count(x).astype(np.uint32), sets=True, wide=False)
_MORE: dict[str, Build] = {
    "mov": _unary(lambda x, bits: x), "not": _unary(lambda x, bits: ~x, sets=True),
    "wqm": _unary(_whole_quads, sets=True), "bcnt1_i32": _COUNT,
    "cls_i32": _unary(_leading_signed, wide=False), "flbit_i32": _unary(_leading_signed, wide=False),
    "cls_i32_i64": _unary(_leading_signed, wide=False), "flbit_i32_b32": _unary(_leading, wide=False),
    "flbit_i32_b64": _unary(_leading, wide=False), "flbit_i32_i64": _unary(_leading_signed, wide=False),
    "clz_i32_u32": _unary(_leading, wide=False), "clz_i32_u64": _unary(_leading, wide=False),
    "ctz_i32_b32": _unary(_trailing, wide=False), "ctz_i32_b64": _unary(_trailing, wide=False),
    "ff1_i32_b32": _unary(_trailing, wide=False), "ff1_i32_b64": _unary(_trailing, wide=False),
    "brev": _unary(_reversed), "sext_i32_i8": _unary(_extended(8), wide=False),
    "sext_i32_i16": _unary(_extended(16), wide=False),
    "abs": _unary(_absolute, sets=True),
    "add": _add(1), "sub": _add(-1), "addc": _add(1, carry=True), "subb": _add(-1, carry=True),
    "add_co": _add(1), "sub_co": _add(-1), "add_co_ci": _add(1, carry=True),
    "sub_co_ci": _add(-1, carry=True), "add_nc": _add(1), "sub_nc": _add(-1),
    "lshl": _shift, "lshr": _shift, "ashr": _shift,
    **{f"lshl{n}_add": _shift_add for n in (1, 2, 3, 4)},
    "min": _pick(np.minimum), "max": _pick(np.maximum), "mul": _multiply, "mul_hi": _multiply,
    "cselect": _select, "movk": _constant_move, "addk": _constant_move, "mulk": _constant_move,
    "addk_co": _constant_move, "cmov": _conditional_move, "bfe": _field, "bfm": _field_mask,
    "bitcmp0": _bit_test, "bitcmp1": _bit_test,
    **{f"pack_{h}_b32": _pack for h in ("ll", "lh", "hl", "hh")},
    "pack_ll_b32": _pack, "pack_lh_b32": _pack, "pack_hh_b32": _pack, "pack_hl_b32": _pack,
}  # fmt: skip
