"""Structured control flow: loops, branches and the schedules of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from poot_core import UnsupportedError
from poot_kernel.ir.core import Op, Value
from poot_kernel.ir.types import ScalarType, TileType
from poot_kernel.targets.common.lowering import Handler, Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.staging import Stage
from poot_kernel.targets.common.tiles import FragmentTile, OpaqueTile, Tile

__all__ = ["CONTROL_HANDLERS", "Carried", "pipeline_schedule"]


class Carried:
    """Values that a loop or a branch hands on, in variables of the machine."""

    def __init__(self, low: Lowering, values: Sequence[Value], initial: Sequence[object]) -> None:
        self.low, self.values = low, list(values)
        self.forms = [self._form(v, x) for v, x in zip(values, initial, strict=True)]
        self.variables = [[low.machine.variable(x) for x in self._parts(f)] for f in self.forms]

    def _form(self, value: Value, runtime: object) -> object:
        if isinstance(value.type, TileType):
            if value not in self.low.layouts and value.type.space == "accumulator":
                promoted = self.low.products.promoted(self.low, runtime)
                if promoted is not None:
                    return promoted
            layout = self.low.layout_of(value, value.type.shape)
            return cast(Tile, runtime).fragment(self.low, layout).fragment(self.low, layout)
        if isinstance(value.type, ScalarType):
            return self.low.arithmetic.convert(cast(Register, runtime), self.low.dtype(value))
        return runtime

    def _parts(self, form: object) -> list[Register]:
        if isinstance(form, Register):
            return [form]
        if isinstance(form, list):
            return cast("list[Register]", form)
        if isinstance(form, OpaqueTile):
            return form.parts
        return cast(FragmentTile, form).elements(self.low)

    def read(self) -> list[object]:
        """Return the present values."""
        found: list[object] = []
        for form, variables in zip(self.forms, self.variables, strict=True):
            parts = [self.low.machine.read(v) for v in variables]
            if isinstance(form, Register):
                found.append(parts[0])
            elif isinstance(form, list):
                found.append(parts)
            elif isinstance(form, FragmentTile):
                found.append(FragmentTile(form.layout, form.dtype, parts))
            else:
                found.append(cast(OpaqueTile, form).rebuilt(parts))
        return found

    def assign(self, runtimes: Sequence[object]) -> None:
        """Set the values for the next turn."""
        forms = [self._form(v, x) for v, x in zip(self.values, runtimes, strict=True)]
        for form, variables in zip(forms, self.variables, strict=True):
            for variable, part in zip(variables, self._parts(form), strict=True):
                self.low.machine.assign(variable, part)


def _counter(low: Lowering, start: Register) -> str:
    return low.machine.variable(low.arithmetic.convert(start, low.index_dtype))


def _for(low: Lowering, op: Op) -> None:
    lower, upper, step = (low.index(v) for v in op.operands[:3])
    (body,) = op.regions
    if op.attributes.get("static") or _is_short(lower, upper, step, op):
        _unrolled(low, op, lower, upper, step)
        return
    carried = Carried(low, body.arguments[1:], [low.get(v) for v in op.operands[3:]])
    counter = _counter(low, lower)

    def turn() -> None:
        index = low.machine.read(counter)
        carried.assign(low.region(body, [index, *carried.read()]))
        low.machine.assign(counter, low.arithmetic.add(index, step))

    low.machine.loop(lambda: low.machine.compare("lt", low.machine.read(counter), upper), turn)
    if op.attributes.get("dealt"):
        low.barrier()  # what turns left in workgroup memory
    for value, runtime in zip(op.results, carried.read(), strict=True):
        low.set(value, runtime)


def _is_short(lower: Register, upper: Register, step: Register, op: Op) -> bool:
    literals = [x.literal for x in (lower, upper, step)]
    if not all(isinstance(x, int) for x in literals):
        return False
    start, end, by = cast("list[int]", literals)
    unroll = op.attributes.get("unroll", 1)
    return len(range(start, end, by)) <= (unroll if isinstance(unroll, int) else 1)


def _unrolled(low: Lowering, op: Op, lower: Register, upper: Register, step: Register) -> None:
    start, end, by = lower.literal, upper.literal, step.literal
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(by, int)):
        raise UnsupportedError("a static loop needs literal bounds")
    carried = [low.get(v) for v in op.operands[3:]]
    for index in range(start, end, by):
        number = low.machine.constant(index, low.index_dtype)
        carried = low.region(op.regions[0], [number, *carried])
    for value, runtime in zip(op.results, carried, strict=True):
        low.set(value, runtime)


def _while(low: Lowering, op: Op) -> None:
    test, body = op.regions
    carried = Carried(low, test.arguments, [low.get(v) for v in op.operands])
    passed: list[object] = []

    def condition() -> Register:
        found = low.region(test, carried.read())
        passed[:] = found[1:]
        return cast(Register, found[0])

    low.machine.loop(condition, lambda: carried.assign(low.region(body, list(passed))))
    for value, runtime in zip(op.results, carried.read(), strict=True):
        low.set(value, runtime)


def _if(low: Lowering, op: Op) -> None:
    then, otherwise = op.regions
    if any(isinstance(value.type, TileType) for value in op.results):
        raise UnsupportedError("a branch that yields tiles has no lowering for GPUs yet")
    zeros = [low.machine.constant(0, low.dtype(value)) for value in op.results]
    carried = Carried(low, op.results, zeros)

    def side(number: int) -> None:
        carried.assign(low.region(op.regions[number], []))

    has_else = len(otherwise.operations) > 1 or bool(op.results)
    condition = low.scalar(op.operands[0])
    low.machine.branch(condition, lambda: side(0), (lambda: side(1)) if has_else else None)
    for value, runtime in zip(op.results, carried.read(), strict=True):
        low.set(value, runtime)
    _ = then


def _pipeline(low: Lowering, op: Op) -> None:
    if not low.products.pipeline(low, op):
        pipeline_schedule(low, op)


def pipeline_schedule(low: Lowering, op: Op) -> None:
    """Lower a pipeline by the schedule that the machine can have."""
    if low.machine.has_async_copy:
        _ring(low, op)
    else:
        _through_registers(low, op)


def _load(low: Lowering, op: Op, stage: Stage, index: Register) -> list[object]:
    outer, low.stage = low.stage, stage
    found = low.region(op.regions[0], [index])
    low.stage = outer
    return found


def _compute(low: Lowering, op: Op, carried: Carried, stage: Stage, index: Register) -> None:
    tiles = _load(low, op, stage, index)
    carried.assign(low.region(op.regions[1], [index, *carried.read(), *tiles]))


def _begin(low: Lowering, op: Op) -> tuple[Carried, Register, Register, Register]:
    lower, upper, step = (low.index(v) for v in op.operands[:3])
    initial = op.operands[3:]
    arguments = op.regions[1].arguments[1 : 1 + len(initial)]
    return Carried(low, arguments, [low.get(v) for v in initial]), lower, upper, step


def _end(low: Lowering, op: Op, carried: Carried) -> None:
    low.barrier()  # the slots may be filled again
    for value, runtime in zip(op.results, carried.read(), strict=True):
        low.set(value, runtime)


def _ring(low: Lowering, op: Op) -> None:
    """Keep ``stages - 1`` loads in flight into a ring of slots."""
    machine, ops = low.machine, low.arithmetic
    carried, lower, upper, step = _begin(low, op)
    stages = cast(int, op.attributes["stages"])
    if stages == 1:
        _in_turn(low, op, carried, (lower, upper, step))
        return

    def issue(index: Register, slot: Register) -> None:
        inside = machine.compare("lt", index, upper)
        machine.branch(
            inside, lambda: _discard(_load(low, op, Stage("issue", slot, stages), index))
        )
        machine.async_commit()

    def after(slot: Register) -> Register:
        moved = ops.add(slot, 1)
        return machine.select(machine.compare("eq", moved, ops.word(stages)), ops.word(0), moved)

    for ahead in range(stages - 1):
        issue(ops.add(lower, ops.mul(step, ahead)), ops.word(ahead))
    counter = _counter(low, lower)
    reading, writing = machine.variable(ops.word(0)), machine.variable(ops.word(stages - 1))

    def turn() -> None:
        index = machine.read(counter)
        machine.async_wait(stages - 2)
        low.barrier()
        free = machine.read(writing)
        issue(ops.add(index, ops.mul(step, stages - 1)), free)
        slot = machine.read(reading)
        _compute(low, op, carried, Stage("use", slot, stages), index)
        machine.assign(reading, after(slot))
        machine.assign(writing, after(free))
        machine.assign(counter, ops.add(index, step))

    machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), turn)
    _end(low, op, carried)


def _in_turn(
    low: Lowering, op: Op, carried: Carried, bounds: tuple[Register, Register, Register]
) -> None:
    """Load, wait and compute, one turn after the other: the least memory."""
    machine, ops = low.machine, low.arithmetic
    lower, upper, step = bounds
    zero = ops.word(0)
    counter = _counter(low, lower)

    def turn() -> None:
        index = machine.read(counter)
        _discard(_load(low, op, Stage("issue", zero, 1), index))
        machine.async_commit()
        machine.async_wait(0)
        low.barrier()
        _compute(low, op, carried, Stage("use", zero, 1), index)
        low.barrier()
        machine.assign(counter, ops.add(index, step))

    machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), turn)
    _end(low, op, carried)


def _through_registers(low: Lowering, op: Op) -> None:
    """Hold the next tiles in registers while the present ones are multiplied."""
    machine, ops = low.machine, low.arithmetic
    carried, lower, upper, step = _begin(low, op)
    zero = ops.word(0)

    def body() -> None:
        first = Stage("fetch", zero, 1)
        _load(low, op, first, lower)
        held = {copy: [machine.variable(x) for x in words] for copy, words in first.words.items()}
        counter = _counter(low, lower)

        def turn() -> None:
            index = machine.read(counter)
            low.barrier()
            words = {copy: [machine.read(v) for v in vs] for copy, vs in held.items()}
            _load(low, op, Stage("deposit", zero, 1, words), index)
            low.barrier()
            following = ops.add(index, step)
            more = machine.compare("lt", following, upper)
            ahead = Stage("fetch", zero, 1)
            _load(low, op, ahead, machine.select(more, following, index))
            _compute(low, op, carried, Stage("use", zero, 1), index)
            for copy, variables in held.items():
                for variable, word in zip(variables, ahead.words[copy], strict=True):
                    machine.assign(variable, word)
            machine.assign(counter, following)

        machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), turn)

    machine.branch(machine.compare("lt", lower, upper), body)
    _end(low, op, carried)


def _discard(_: object) -> None:
    return None


CONTROL_HANDLERS: dict[str, Handler] = {
    "for": _for, "while": _while, "if": _if, "pipeline": _pipeline,
}  # fmt: skip
