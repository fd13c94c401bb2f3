"""Rules of control flow: loops and branches under a mask."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from poot_kernel.interpreter._machine import Array, Machine, Rule
from poot_kernel.ir import Op

__all__ = ["CONTROL_RULES"]


def _counted(
    machine: Machine, op: Op, lower: Array, upper: Array, step: Array, carried: list[Any]
) -> list[Any]:
    index = lower
    while True:
        active = machine.mask & (index < upper)
        if not active.any():
            return carried
        with machine.masked(active):
            after = machine.run(op.regions[0], [index, *carried])
        carried = [machine.merge(active, a, b) for a, b in zip(after, carried, strict=True)]
        index = index + step


def _for(machine: Machine, op: Op) -> Sequence[Any]:
    lower, upper, step, *carried = (machine.get(operand) for operand in op.operands)
    return _counted(machine, op, lower, upper, step, carried)


def _foreach(machine: Machine, op: Op) -> Sequence[Any]:
    lower, upper, *carried = (machine.get(operand) for operand in op.operands)
    size = cast("int", machine.workgroup.num_lanes)
    lane = machine.lane
    if op.attributes["scope"] == "subgroup":
        width = machine.workgroup.subgroup_size
        lane = lane % width
        size = np.minimum(width, size - machine.subgroup * width)
    return _counted(machine, op, lower + lane, upper, np.asarray(size, np.int64), carried)


def _while(machine: Machine, op: Op) -> Sequence[Any]:
    carried = [machine.get(operand) for operand in op.operands]
    active = machine.mask
    while True:
        with machine.masked(active):
            test, *passed = machine.run(op.regions[0], carried)
        carried = [machine.merge(active, a, b) for a, b in zip(passed, carried, strict=True)]
        active = active & test
        if not active.any():
            return carried
        with machine.masked(active):
            after = machine.run(op.regions[1], carried)
        carried = [machine.merge(active, a, b) for a, b in zip(after, carried, strict=True)]


def _if(machine: Machine, op: Op) -> Sequence[Any]:
    test = machine.array(op.operands[0])
    results: list[Any] | None = None
    for region, mask in zip(op.regions, (machine.mask & test, machine.mask & ~test), strict=True):
        if not mask.any():
            continue
        with machine.masked(mask):
            found = machine.run(region)
        if results is None:
            results = found
        else:
            results = [machine.merge(mask, a, b) for a, b in zip(found, results, strict=True)]
    assert results is not None
    return results


def _pipeline(machine: Machine, op: Op) -> Sequence[Any]:
    """Run the load part as far ahead as it may, so that a dependence on compute shows."""
    lower, upper, step = (machine.uniform(operand) for operand in op.operands[:3])
    carried = [machine.get(operand) for operand in op.operands[3:]]
    ahead = cast("int", op.attributes["stages"]) - 1
    load, compute = op.regions
    waiting: deque[tuple[Array, list[Any]]] = deque()

    def consume(carried: list[Any]) -> list[Any]:
        index, tiles = waiting.popleft()
        return machine.run(compute, [index, *carried, *tiles])

    for index in range(lower, upper, step):
        at = np.asarray(index, np.int64)
        waiting.append((at, machine.run(load, [at])))
        if len(waiting) > ahead:
            carried = consume(carried)
    while waiting:
        carried = consume(carried)
    return carried


CONTROL_RULES: dict[str, Rule] = {
    "for": _for,
    "foreach": _foreach,
    "while": _while,
    "if": _if,
    "pipeline": _pipeline,
}
"""Opcode -> rule; regions end without one, see ``Machine.run_body``."""
