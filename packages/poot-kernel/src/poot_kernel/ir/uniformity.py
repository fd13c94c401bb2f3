"""Which values are the same for all invocations: a fixed point over the structured control flow."""

from __future__ import annotations

from collections.abc import Iterable

from poot_kernel.ir.core import KernelFunction, Op, Region, Value
from poot_kernel.ir.opcodes import OPCODES
from poot_kernel.ir.specs import Uniformity

__all__ = ["UniformityMap", "analyse_uniformity"]


class UniformityMap:
    """Uniformity of every value, and of the control flow around every operation."""

    def __init__(self) -> None:
        self._values: dict[Value, Uniformity] = {}
        self._control: dict[Op, Uniformity] = {}

    def of(self, value: Value) -> Uniformity:
        """Return over which invocations a value is the same."""
        return self._values.get(value, Uniformity.WORKGROUP)

    def control(self, op: Op) -> Uniformity:
        """Return over which invocations the decision to reach an operation is the same."""
        return self._control.get(op, Uniformity.WORKGROUP)

    def raise_to(self, value: Value, level: Uniformity) -> bool:
        """Make a value at least that varying; return whether it changed."""
        if level <= self.of(value):
            return False
        self._values[value] = level
        return True

    def reach(self, op: Op, level: Uniformity) -> None:
        """Record the control flow around an operation."""
        self._control[op] = max(level, self.control(op))

    def join(self, values: Iterable[Value]) -> Uniformity:
        """Return the uniformity of a function of the values."""
        return max((self.of(value) for value in values), default=Uniformity.WORKGROUP)


def analyse_uniformity(kernel: KernelFunction) -> UniformityMap:
    """Return the uniformity of all of a kernel's values; parameters are uniform."""
    found = UniformityMap()
    while _visit(kernel.body, Uniformity.WORKGROUP, found):
        pass
    return found


def _visit(region: Region, control: Uniformity, found: UniformityMap) -> bool:
    changed = False
    for op in region.operations:
        found.reach(op, control)
        changed |= _visit_op(op, control, found)
    return changed


def _visit_op(op: Op, control: Uniformity, found: UniformityMap) -> bool:
    match op.opcode:
        case "for" | "foreach" | "pipeline":
            return _visit_loop(op, control, found)
        case "while":
            return _visit_while(op, control, found)
        case "if":
            inner = max(control, found.of(op.operands[0]))
            changed = any([_visit(region, inner, found) for region in op.regions])
            for index, result in enumerate(op.results):
                sources = [region.terminator.operands[index] for region in op.regions]
                level = max(found.join(sources), found.of(op.operands[0]))
                changed |= found.raise_to(result, level)
            return changed
        case "map":
            for argument, operand in zip(op.regions[0].arguments, op.operands, strict=True):
                found.raise_to(argument, found.of(operand))
            return _visit(op.regions[0], control, found)
        case _:
            fixed = OPCODES[op.opcode].uniformity
            level = found.join(op.operands) if fixed is None else fixed
            return any([found.raise_to(result, level) for result in op.results])


def _visit_loop(op: Op, control: Uniformity, found: UniformityMap) -> bool:
    num_bounds = 2 if op.opcode == "foreach" else 3
    bounds = found.join(op.operands[:num_bounds])
    if op.opcode == "foreach":
        bounds = Uniformity.VARYING
    inner = max(control, bounds)
    body = op.regions[-1]
    changed = False
    for region in op.regions:
        changed |= found.raise_to(region.arguments[0], bounds)
    carried = body.arguments[1 : 1 + len(op.results)]
    changed |= _carry(op, carried, op.operands[num_bounds:], bounds, found)
    return changed | any([_visit(region, inner, found) for region in op.regions])


def _visit_while(op: Op, control: Uniformity, found: UniformityMap) -> bool:
    test, body = op.regions
    decision = found.of(test.terminator.operands[0])
    changed = _carry(op, test.arguments, op.operands, decision, found)
    for argument, value in zip(body.arguments, test.terminator.operands[1:], strict=True):
        changed |= found.raise_to(argument, max(found.of(value), decision))
    inner = max(control, decision)
    return changed | any([_visit(region, inner, found) for region in op.regions])


def _carry(
    op: Op,
    arguments: list[Value],
    initial: list[Value],
    decision: Uniformity,
    found: UniformityMap,
) -> bool:
    changed = False
    yielded = op.regions[-1].terminator.operands
    for argument, start, end, result in zip(arguments, initial, yielded, op.results, strict=True):
        level = found.join([start, end, argument])
        changed |= found.raise_to(argument, level)
        changed |= found.raise_to(result, max(level, decision))
    return changed
