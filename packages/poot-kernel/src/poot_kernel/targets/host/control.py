"""Uniform control flow: loops, branches and pipelines, whose carried values become phis."""

from __future__ import annotations

from typing import cast

from poot_kernel.ir.core import Op, Region, Value
from poot_kernel.ir.types import TileType
from poot_kernel.targets.host.emitter import Val
from poot_kernel.targets.host.lowering import Handler, Lowering

__all__ = ["CONTROL_HANDLERS", "Carried", "lower_for", "lower_if", "lower_while"]


class Carried:
    """The values that a loop carries: one phi for each LLVM value that they are made of."""

    def __init__(self, lowering: Lowering, arguments: list[Value], initial: list[object]) -> None:
        self._lowering = lowering
        self._arguments = arguments
        self._forms = initial
        self.initial = [part for value in initial for part in lowering.flatten(value)]
        self._holes: list[int] = []
        self._phis: list[Val] = []

    def begin(self) -> None:
        """Leave room for the phis at a block's start, and bind the arguments to them."""
        e = self._lowering.emitter
        for part in self.initial:
            self._holes.append(e.hole())
            self._phis.append(Val(f"%{e.fresh('phi')}", part.dtype, part.lanes))
        self.bind(self._arguments, self._phis)

    def end(self, values: list[Val], before: str, latch: str) -> None:
        """Fill in the phis."""
        for hole, phi, first, last in zip(
            self._holes, self._phis, self.initial, values, strict=True
        ):
            self._lowering.emitter.fill(
                hole,
                f"{phi.name} = phi {phi.type} [ {first.name}, %{before} ], "
                f"[ {last.name}, %{latch} ]",
            )

    def yielded(self, values: list[Value]) -> list[Val]:
        """Return the LLVM values of what a body hands on."""
        lowering = self._lowering
        return [part for value in values for part in lowering.flatten(lowering.get(value))]

    def bind(self, values: list[Value], parts: list[Val]) -> None:
        """Set values to the carried form made of these parts."""
        left = list(parts)
        for value, form in zip(values, self._forms, strict=True):
            self._lowering.set(value, self._lowering.rebuild(form, left))

    def merge(self, first: str, last: str, values: list[Val]) -> list[Val]:
        """Emit phis of the initial values and ``values`` at the current block's start."""
        e = self._lowering.emitter
        return [
            e.emit(f"phi {a.type} [ {a.name}, %{first} ], [ {b.name}, %{last} ]", a.dtype, a.lanes)
            for a, b in zip(self.initial, values, strict=True)
        ]


def lower_for(lowering: Lowering, op: Op) -> None:
    """Lower a counted loop; a static one is repeated in place."""
    lower, upper, step = (lowering.val(v) for v in op.operands[:3])
    region = op.regions[0]
    initial = [lowering.get(v) for v in op.operands[3:]]
    if op.attributes.get("static"):
        _unrolled(lowering, op, initial)
        return
    index, arguments = region.arguments[0], region.arguments[1:]
    unroll = cast("int", op.attributes.get("unroll", 1))
    _counted(lowering, op, (lower, upper, step), index, arguments, initial, unroll)


def _unrolled(lowering: Lowering, op: Op, values: list[object]) -> None:
    bounds = [lowering.val(v).constant for v in op.operands[:3]]
    region = op.regions[0]
    for number in range(*(int(cast("int", bound)) for bound in bounds)):
        lowering.set(region.arguments[0], lowering.emitter.index(number))
        for argument, value in zip(region.arguments[1:], values, strict=True):
            lowering.set(argument, value)
        values = [lowering.get(v) for v in lowering.lower_region(region)]
    for result, value in zip(op.results, values, strict=True):
        lowering.set(result, value)


def _counted(
    lowering: Lowering,
    op: Op,
    bounds: tuple[Val, Val, Val],
    index: Value,
    arguments: list[Value],
    initial: list[object],
    unroll: int,
) -> None:
    """A loop over the last region, which is entered at its bottom test if it runs at all.

    For a pipeline the load region comes first in each iteration.
    """
    e = lowering.emitter
    lower, upper, step = bounds
    lowering.announce_loop(op.regions)
    carried = Carried(lowering, arguments, initial)
    body, done, before = e.fresh("loop"), e.fresh("done"), e.block
    some = e.compare("icmp slt", lower, upper)
    known = isinstance(lower.constant, int) and isinstance(upper.constant, int)
    always = known and cast("int", lower.constant) < cast("int", upper.constant)
    if always:
        e.line(f"br label %{body}")
    else:
        e.line(f"br i1 {some.name}, label %{body}, label %{done}")
    e.start(body)
    hole = e.hole()
    counter = Val(f"%{e.fresh('i')}", lower.dtype)
    carried.begin()
    with lowering.entered():
        lowering.set(index, counter)
        if op.opcode == "pipeline":
            _load_part(lowering, op, counter)
        values = carried.yielded(lowering.lower_region(op.regions[-1]))
        following = e.add(counter, step)
        more = e.compare("icmp slt", following, upper)
        latch = e.block
    e.line(f"br i1 {more.name}, label %{body}, label %{done}{e.loop_metadata(unroll)}")
    e.fill(hole, f"{counter.name} = phi i64 [ {lower.name}, %{before} ], "
                 f"[ {following.name}, %{latch} ]")  # fmt: skip
    carried.end(values, before, latch)
    e.start(done)
    carried.bind(op.results, values if always else carried.merge(before, latch, values))


def _load_part(lowering: Lowering, op: Op, counter: Val) -> None:
    load, compute = op.regions
    lowering.set(load.arguments[0], counter)
    moved = [lowering.get(v) for v in lowering.lower_region(load)]
    for argument, tile in zip(compute.arguments[1 + len(op.results) :], moved, strict=True):
        lowering.set(argument, tile)


def lower_pipeline(lowering: Lowering, op: Op) -> None:
    """Lower a pipeline as a plain loop: the processor's own look-ahead overlaps its parts."""
    lower, upper, step = (lowering.val(v) for v in op.operands[:3])
    initial = [lowering.get(v) for v in op.operands[3:]]
    compute = op.regions[1]
    arguments = compute.arguments[1 : 1 + len(op.results)]
    _counted(lowering, op, (lower, upper, step), compute.arguments[0], arguments, initial, 1)


def _used(region: Region) -> dict[Value, None]:
    """Return the outer values that a region uses, in order."""
    inside = {result for op in region.walk() for result in op.results}
    used = (value for op in region.walk() for value in op.operands)
    return dict.fromkeys(v for v in used if v not in inside and isinstance(v.type, TileType))


def lower_if(lowering: Lowering, op: Op) -> None:
    """Lower a branch on a uniform condition."""
    e = lowering.emitter
    condition = lowering.val(op.operands[0])
    other = _used(op.regions[1])
    for value in (v for v in _used(op.regions[0]) if v in other):
        # What both sides use is computed once, in front: else a tile's operands stay in registers
        # throughout the longer side, beside its own.
        if isinstance(value.type, TileType) and value.type.dtype.is_float:
            lowering.flatten(lowering.get(value))
    names = e.fresh("then"), e.fresh("else")
    done = e.fresh("done")
    e.line(f"br i1 {condition.name}, label %{names[0]}, label %{names[1]}")
    sides: list[list[Val]] = []
    ends: list[str] = []
    forms: list[object] = []
    for name, region in zip(names, op.regions, strict=True):
        e.start(name)
        with lowering.entered():
            values = [lowering.get(v) for v in lowering.lower_region(region)]
            parts = [part for value in values for part in lowering.flatten(value)]
            forms = forms or values
        sides.append(parts)
        ends.append(e.block)
        e.line(f"br label %{done}")
    e.start(done)
    merged = [
        e.emit(f"phi {a.type} [ {a.name}, %{ends[0]} ], [ {b.name}, %{ends[1]} ]", a.dtype, a.lanes)
        for a, b in zip(*sides, strict=True)
    ]
    for result, form in zip(op.results, forms, strict=True):
        lowering.set(result, lowering.rebuild(form, merged))


def lower_while(lowering: Lowering, op: Op) -> None:
    """Lower a loop that tests at its top."""
    e = lowering.emitter
    test, body = op.regions
    lowering.announce_loop(op.regions)
    carried = Carried(lowering, test.arguments, [lowering.get(v) for v in op.operands])
    head, inside, done, before = e.fresh("head"), e.fresh("body"), e.fresh("done"), e.block
    e.line(f"br label %{head}")
    e.start(head)
    carried.begin()
    with lowering.entered():
        handed = lowering.lower_region(test)
        condition, passed = lowering.val(handed[0]), carried.yielded(handed[1:])
        e.line(f"br i1 {condition.name}, label %{inside}, label %{done}")
        e.start(inside)
        with lowering.entered():
            carried.bind(body.arguments, passed)
            values = carried.yielded(lowering.lower_region(body))
            latch = e.block
        e.line(f"br label %{head}{e.loop_metadata(1)}")
    carried.end(values, before, latch)
    e.start(done)
    carried.bind(op.results, passed)


CONTROL_HANDLERS: dict[str, Handler] = {
    "for": lower_for,
    "if": lower_if,
    "while": lower_while,
    "pipeline": lower_pipeline,
}
"""Opcode -> lowering of structured control flow."""
