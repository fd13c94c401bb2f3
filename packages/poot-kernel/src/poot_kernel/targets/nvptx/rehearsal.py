"""Running a kernel twice: once before earlier kernels end, with nothing stored, and once for good.

Code that runs once is fetched from far away, and a small kernel is little else. A kernel of a sequence
may start while the last one drains; until it may read what that one writes it would only wait. It runs
its body instead, with stores off: instructions, weights, and keys and values of earlier tokens are near
when the wait ends. What the first run reads of memory that is being written is thrown away.

Only the first workgroups of a grid do that: later ones start when the wait is over.
"""

from __future__ import annotations

from collections.abc import Callable

from poot_core import boolean
from poot_kernel.ir.core import KernelFunction, Op, Value
from poot_kernel.targets.nvptx.machine import PtxMachine

__all__ = ["WORKGROUPS", "rehearsed", "suits_rehearsal"]

WORKGROUPS = 132
"""Workgroups of a grid that run twice: about one for each multiprocessor."""

_REFUSED = frozenset({"while", "atomic"})


def suits_rehearsal(kernel: KernelFunction) -> bool:
    """Whether a kernel's first run ends and stays inside of its arrays, whatever it reads.

    No loop may ask memory when to end, and no address may follow from memory that earlier kernels
    write. Integers that steps are given (``r`` arrays of integers) do not change while they run.
    """
    return not any(op.opcode in _REFUSED or _is_open(op) for op in kernel.body.walk())


def _is_open(op: Op) -> bool:
    if op.opcode in ("load", "copy"):
        asked = op.operands[1:]
    elif op.opcode in ("for", "foreach", "pipeline"):
        asked = op.operands[:2]
    else:
        return False
    return any(_follows_from_floats(value, set()) for value in asked)


def _follows_from_floats(value: Value, seen: set[Value]) -> bool:
    if value in seen or value.definition is None:
        return False
    seen.add(value)
    op = value.definition
    if op.opcode == "convert" and _is_float(op.operands[0]):
        return True
    return any(_follows_from_floats(operand, seen) for operand in op.operands)


def _is_float(value: Value) -> bool:
    dtype = getattr(value.type, "dtype", None)
    return dtype is not None and dtype.is_float


def rehearsed(machine: PtxMachine, body: Callable[[], None]) -> None:
    """Emit a body that the first workgroups run before the wait and all run after it."""
    number = machine.result(
        "mad.lo.u32", machine.workgroup(0).dtype, machine.workgroup(1),
        machine.num_workgroups(0), machine.workgroup(0),
    )  # fmt: skip
    live = machine.result("setp.ge.u32", boolean, number, WORKGROUPS)
    machine.live = live
    top, begin, end = machine.label(), machine.label(), machine.label()
    machine.place(top)
    machine.line(f"@!{live.code} bra {begin}")
    machine.line("griddepcontrol.wait")
    machine.place(begin)
    body()
    machine.line(f"@{live.code} bra {end}")
    machine.line("bar.sync 0")  # workgroup memory is still read
    machine.line(f"setp.eq.u32 {live.code}, 0, 0")
    machine.line(f"bra {top}")
    machine.place(end)
    machine.live = None
