"""What invocations exchange: shuffles, votes, scans and reductions, made of two machine methods.

All of it stands in workgroup-uniform control flow, so that every lane takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from poot_core import DType, boolean, u32
from poot_kernel.ir.core import Op
from poot_kernel.ir.types import VectorType
from poot_kernel.targets.common.fragments import log2
from poot_kernel.targets.common.lowering import Handler, Lowering
from poot_kernel.targets.common.machine import Register

__all__ = ["EXCHANGE_HANDLERS"]

Move = Callable[[Register], Register]


def _moved(low: Lowering, x: Register, move: Move) -> Register:
    """Return x after a shuffle of words or floats: other types travel as words."""
    if x.dtype is boolean:
        word = move(low.machine.convert(x, u32))
        return low.machine.compare("ne", word, low.machine.constant(0, u32))
    if x.dtype.bits == 64:
        return _moved_long(low, x, move)
    if x.dtype.bits < 32:
        return low.machine.reinterpret(move(low.machine.reinterpret(x, u32)), x.dtype)
    return move(x)


def _moved_long(low: Lowering, x: Register, move: Move) -> Register:
    ops = low.arithmetic
    bottom = move(ops.convert(x, u32))
    top = move(ops.convert(ops.integer("shr", x, 32), u32))
    high = ops.integer("shl", low.machine.convert(top, x.dtype), 32)
    return low.machine.binary("or", high, low.machine.convert(bottom, x.dtype))


def _halving(low: Lowering, x: Register, kind: str) -> Register:
    """Combine lane i with lane i + size / 2, then size / 4, down to neighbours."""
    for number in reversed(range(log2(low.machine.subgroup_size))):
        other = _moved(low, x, lambda y, m=1 << number: low.machine.shuffle_xor(y, m))
        x = low.arithmetic.combine(kind, x, other)
    return x


def _columns(low: Lowering, op: Op) -> list[Register]:
    found = low.get(op.operands[0])
    return cast("list[Register]", found) if isinstance(found, list) else [cast(Register, found)]


def _set(low: Lowering, op: Op, found: list[Register]) -> None:
    low.set(op.result, found if isinstance(op.result.type, VectorType) else found[0])


def _subgroup_reduce(low: Lowering, op: Op) -> None:
    kind = cast(str, op.attributes["kind"])
    _set(low, op, [_halving(low, x, kind) for x in _columns(low, op)])


def _workgroup_reduce(low: Lowering, op: Op) -> None:
    """Reduce every subgroup, then combine the subgroups' results in ascending order."""
    kind = cast(str, op.attributes["kind"])
    found = [_halving(low, x, kind) for x in _columns(low, op)]
    if low.num_subgroups > 1:
        found = _across_subgroups(low, found, kind)
    _set(low, op, found)


def _across_subgroups(low: Lowering, found: list[Register], kind: str) -> list[Register]:
    ops, dtype = low.arithmetic, found[0].dtype
    size = max(4, dtype.itemsize)
    row = size * len(found)
    base = low.allocate(("partials", size, len(found)), row * low.num_subgroups)
    mine = ops.add(base, ops.mul(low.subgroup(), row))
    held = [_stored(low, x) for x in found]

    def deposit() -> None:
        for number, x in enumerate(held):
            low.machine.store("shared", mine, number * size, [x])

    low.barrier()  # an earlier reduction may still be read
    low.machine.branch(low.machine.compare("eq", low.lane(), ops.word(0)), deposit)
    low.barrier()
    totals: list[Register] = []
    for column in range(len(found)):
        parts = [
            _loaded(low, base, number * row + column * size, held[0].dtype, dtype)
            for number in range(low.num_subgroups)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = ops.combine(kind, total, part)
        totals.append(total)
    return totals


def _stored(low: Lowering, x: Register) -> Register:
    if x.dtype is boolean:
        return low.machine.convert(x, u32)
    return low.machine.reinterpret(x, u32) if x.dtype.bits < 32 else x


def _loaded(low: Lowering, base: Register, offset: int, held: DType, dtype: DType) -> Register:
    word = low.machine.load("shared", base, offset, held, 1)[0]
    if dtype is boolean:
        return low.machine.compare("ne", word, low.machine.constant(0, u32))
    return word if dtype is held else low.machine.reinterpret(word, dtype)


def _shuffle_xor(low: Lowering, op: Op) -> None:
    mask = cast(int, op.attributes["lane_mask"])
    found = [_moved(low, x, lambda y: low.machine.shuffle_xor(y, mask)) for x in _columns(low, op)]
    _set(low, op, found)


def _shuffle(low: Lowering, op: Op) -> None:
    lane = low.arithmetic.convert(low.scalar(op.operands[1]), u32)
    _set(
        low, op, [_moved(low, x, lambda y: low.machine.shuffle(y, lane)) for x in _columns(low, op)]
    )


def _scan(low: Lowering, op: Op) -> None:
    """Combine with the lane 1, 2, 4... below, in the order that ascending lanes give."""
    ops, kind = low.arithmetic, cast(str, op.attributes["kind"])
    x, lane = low.scalar(op.operands[0]), low.lane()

    def below(value: Register, distance: int) -> tuple[Register, Register]:
        has = low.machine.compare("ge", lane, ops.word(distance))
        source = low.machine.select(has, ops.add(lane, -distance & 0xFFFFFFFF), lane)
        return has, _moved(low, value, lambda y: low.machine.shuffle(y, source))

    for number in range(log2(low.machine.subgroup_size)):
        has, other = below(x, 1 << number)
        x = low.machine.select(has, ops.combine(kind, other, x), x)
    if op.attributes["exclusive"]:
        has, other = below(x, 1)
        x = low.machine.select(has, other, low.machine.constant(_neutral(kind, x.dtype), x.dtype))
    low.set(op.result, x)


def _neutral(kind: str, dtype: DType) -> float:
    if kind in ("min", "max"):
        if dtype.is_float:
            return float("inf") if kind == "min" else float("-inf")
        signed = dtype.kind == "int"
        high, low = (1 << dtype.bits - signed) - 1, -(1 << dtype.bits - 1) if signed else 0
        return high if kind == "min" else low
    if kind == "and":
        return (1 << dtype.bits) - 1
    return 1 if kind == "mul" else 0


def _vote(low: Lowering, op: Op) -> None:
    kind = "or" if op.attributes["kind"] == "any" else "and"
    low.set(op.result, _halving(low, low.scalar(op.operands[0]), kind))


EXCHANGE_HANDLERS: dict[str, Handler] = {
    "subgroup_reduce": _subgroup_reduce, "workgroup_reduce": _workgroup_reduce,
    "subgroup_shuffle_xor": _shuffle_xor, "subgroup_shuffle": _shuffle,
    "subgroup_broadcast": _shuffle, "subgroup_scan": _scan, "subgroup_vote": _vote,
}  # fmt: skip
