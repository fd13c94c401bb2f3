"""Memory that several invocations write: atomics, and the step's status flags."""

from __future__ import annotations

from typing import cast

from poot_core import UnsupportedError, i32
from poot_kernel.ir.core import Op, Value
from poot_kernel.targets.common.copies import Pointer
from poot_kernel.targets.common.lanes import place_of
from poot_kernel.targets.common.lowering import Handler, Lowering

__all__ = ["FAULT_HANDLERS"]


def _atomic(low: Lowering, op: Op) -> None:
    space, address, dtype, used = place_of(low, op)
    if dtype.bits != 32:
        raise UnsupportedError(f"atomics of {dtype} have no lowering for GPUs; use 32 bits")
    kind, value = cast(str, op.attributes["kind"]), low.scalar(op.operands[used])
    if len(op.operands) <= used + 1:
        low.set(op.result, low.machine.atomic(kind, space, address, value))
        return
    held = low.machine.variable(low.machine.constant(0, dtype))
    low.machine.branch(
        low.scalar(op.operands[used + 1]),
        lambda: low.machine.assign(held, low.machine.atomic(kind, space, address, value)),
    )
    low.set(op.result, low.machine.read(held))


def _mark(low: Lowering, op: Op, row: Value) -> None:
    """OR the bit into the row's flag: a row's invocations alone do, and all write the same."""
    memory = low.get(op.operands[0])
    assert isinstance(memory, Pointer)
    ops, base = low.arithmetic, memory.address
    address = ops.add(base, ops.mul(ops.convert(low.index(row), base.dtype), 4))
    flag = low.machine.load("global", address, 0, i32, 1)[0]
    bit = low.machine.constant(1 << cast(int, op.attributes["bit"]), i32)
    low.machine.store("global", address, 0, [low.machine.binary("or", flag, bit)])


def _status_set(low: Lowering, op: Op) -> None:
    def mark() -> None:
        _mark(low, op, op.operands[1])

    if len(op.operands) > 2:
        low.machine.branch(low.scalar(op.operands[2]), mark)
    else:
        mark()


def _clamp_index(low: Lowering, op: Op) -> None:
    index, extent = low.index(op.operands[1]), low.index(op.operands[2])
    machine = low.machine
    zero = machine.constant(0, index.dtype)
    below, beyond = machine.compare("lt", index, zero), machine.compare("ge", index, extent)
    machine.branch(machine.binary("or", below, beyond), lambda: _mark(low, op, op.operands[3]))
    last = low.arithmetic.add(extent, -1)
    low.set(op.result, machine.select(below, zero, machine.select(beyond, last, index)))


FAULT_HANDLERS: dict[str, Handler] = {
    "atomic": _atomic, "clamp_index": _clamp_index, "status_set": _status_set,
}  # fmt: skip
