"""Control flow of lane kernels: uniform loops and branches, vector loops with a masked tail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poot_kernel.ir import Op, Value
from poot_kernel.targets.host.lane_context import LaneContext, Lowering
from poot_kernel.targets.host.lane_elements import repeat_mask
from poot_kernel.targets.host.lane_memory import any_lane
from poot_kernel.targets.host.lane_values import Held, element_count

__all__ = ["CONTROL"]


class _Varies(Exception):
    """A carried value that was taken for uniform turned out to differ between lanes."""

    def __init__(self, index: int) -> None:
        self.index = index


def _attempt(ctx: LaneContext, kinds: list[bool], lower: Callable[[list[bool]], None]) -> None:
    """Lower a loop, taking more carried values as varying until it fits."""
    while True:
        mark, held, mask = ctx.w.mark(), dict(ctx.held), ctx.mask
        try:
            lower(kinds)
            return
        except _Varies as found:
            ctx.w.rewind(mark)
            ctx.held, ctx.mask = held, mask
            kinds[found.index] = True


def _names(
    ctx: LaneContext, values: Sequence[Held], like: Sequence[Value], kinds: list[bool]
) -> list[str]:
    """Return registers of the wanted kinds; raises _Varies where a value does not fit."""
    result: list[str] = []
    for index, (held, value, varying) in enumerate(zip(values, like, kinds, strict=True)):
        if varying:
            result.append(ctx.spread(held, value))
        elif held.kind != "uniform":
            raise _Varies(index)
        else:
            result.append(held.name)
    return result


def _set_all(
    ctx: LaneContext, values: Sequence[Value], names: list[str], kinds: list[bool]
) -> None:
    for value, name, varying in zip(values, names, kinds, strict=True):
        ctx.set(value, name, varying=varying)


class _Phis:
    """The phis at a loop's head, completed when the loop's end is known."""

    def __init__(self, ctx: LaneContext, types: list[str], starts: list[str], entry: str) -> None:
        self._ctx = ctx
        self._parts = [
            (ctx.w.reserve(), "%" + ctx.w.fresh("phi"), kind, start)
            for kind, start in zip(types, starts, strict=True)
        ]
        self._entry = entry
        self.names = [name for _, name, _, _ in self._parts]

    def close(self, ends: list[str], latch: str) -> None:
        """Write the phis, given what the loop's last block passes back."""
        for (line, name, kind, start), end in zip(self._parts, ends, strict=True):
            self._ctx.w.lines[line] = (
                f"  {name} = phi {kind} [ {start}, %{self._entry} ], [ {end}, %{latch} ]"
            )


def _loop_metadata(ctx: LaneContext, unroll: int) -> str:
    hint = (
        f'!{{!"llvm.loop.unroll.count", i32 {unroll}}}'
        if unroll > 1
        else '!{!"llvm.loop.unroll.disable"}'
    )
    parts = [hint, '!{!"llvm.loop.vectorize.enable", i1 false}']
    nodes = ", ".join(ctx.w.metadata(part) for part in parts)
    return f", !llvm.loop {ctx.w.metadata(f'distinct !{{$, {nodes}}}')}"


def _for(ctx: LaneContext, op: Op) -> None:
    bounds = [ctx.held[value] for value in op.operands[:3]]
    if any(held.kind != "uniform" for held in bounds):
        raise ctx.unsupported(op, "needs uniform bounds on the host; use foreach")
    numbers = [held.literal for held in bounds]
    if op.attributes["static"] or _runs_once(numbers):
        _for_static(ctx, op, [int(n) for n in numbers if n is not None])
        return
    kinds = [ctx.is_varying(value) for value in op.operands[3:]]
    _attempt(ctx, kinds, lambda found: _for_dynamic(ctx, op, found))


def _runs_once(numbers: Sequence[float | None]) -> bool:
    lower, upper, step = numbers
    if lower is None or upper is None or step is None:
        return False
    return lower < upper <= lower + step


def _for_static(ctx: LaneContext, op: Op, bounds: list[int]) -> None:
    carried = [ctx.held[value] for value in op.operands[3:]]
    body = op.regions[0]
    for number in range(*bounds):
        ctx.held[body.arguments[0]] = Held(str(number), literal=number)
        for argument, held in zip(body.arguments[1:], carried, strict=True):
            ctx.held[argument] = held
        carried = ctx.run(body)
    for result, held in zip(op.results, carried, strict=True):
        ctx.held[result] = held


def _for_dynamic(ctx: LaneContext, op: Op, kinds: list[bool]) -> None:
    w, body = ctx.w, op.regions[0]
    lower, upper, step = (ctx.uniform(value) for value in op.operands[:3])
    starts = _names(ctx, [ctx.held[v] for v in op.operands[3:]], op.operands[3:], kinds)
    types = [ctx.type_of(v, varying=k) for v, k in zip(op.operands[3:], kinds, strict=True)]
    head, inside, done = w.fresh("loop"), w.fresh("body"), w.fresh("done")
    entry = w.block
    w.branch(head)
    w.label(head)
    phis = _Phis(ctx, ["i64", *types], [lower, *starts], entry)
    w.branch_if(w.emit(f"icmp slt i64 {phis.names[0]}, {upper}"), inside, done)
    w.label(inside)
    ctx.held[body.arguments[0]] = Held(phis.names[0])
    _set_all(ctx, body.arguments[1:], phis.names[1:], kinds)
    ends = _names(ctx, ctx.run(body), body.arguments[1:], kinds)
    following = w.emit(f"add nsw i64 {phis.names[0]}, {step}")
    unroll = op.attributes["unroll"]
    assert isinstance(unroll, int)
    latch = w.block
    w.do(f"br label %{head}{_loop_metadata(ctx, unroll)}")
    phis.close([following, *ends], latch)
    w.label(done)
    _set_all(ctx, op.results, phis.names[1:], kinds)


def _foreach(ctx: LaneContext, op: Op) -> None:
    """Whole vectors of indices without a mask, then the rest under one."""
    lower, upper = (ctx.held[value] for value in op.operands[:2])
    if lower.kind != "uniform" or upper.kind != "uniform" or ctx.mask is not None:
        raise ctx.unsupported(op, "needs uniform bounds and control flow on the host")
    carried = [ctx.held[value] for value in op.operands[2:]]
    if lower.literal is not None and upper.literal is not None:
        start, end = int(lower.literal), max(int(upper.literal), int(lower.literal))
        middle = start + (end - start) // ctx.lanes * ctx.lanes
        if middle - start == ctx.lanes:
            carried = _vector_body(ctx, op, Held(str(start), literal=start), carried, None)
        elif middle > start:
            carried = _vector_loop(ctx, op, str(start), str(middle), carried)[0]
        if end > middle:
            carried = _masked_body(
                ctx, op, Held(str(middle), literal=middle), end - middle, carried
            )
    else:
        carried = _foreach_dynamic(ctx, op, lower, upper, carried)
    for result, held in zip(op.results, carried, strict=True):
        ctx.held[result] = held


def _foreach_dynamic(
    ctx: LaneContext, op: Op, lower: Held, upper: Held, carried: list[Held]
) -> list[Held]:
    w = ctx.w
    span = w.emit(f"sub i64 {upper.name}, {lower.name}")
    whole = w.emit(f"and i64 {span}, {-ctx.lanes}")
    middle = w.emit(f"add i64 {lower.name}, {whole}")
    carried, reached = _vector_loop(ctx, op, lower.name, middle, carried)
    rest = w.emit(f"sub i64 {upper.name}, {reached}")
    tail, done = w.fresh("tail"), w.fresh("done")
    before = w.block
    w.branch_if(w.emit(f"icmp sgt i64 {rest}, 0"), tail, done)
    w.label(tail)
    after = _masked_body(ctx, op, Held(reached), rest, carried)
    end = w.block
    w.branch(done)
    w.label(done)
    result: list[Held] = []
    for value, old, new in zip(op.results, carried, after, strict=True):
        kind = ctx.type_of(value, varying=True)
        name = w.emit(f"phi {kind} [ {old.name}, %{before} ], [ {new.name}, %{end} ]")
        result.append(Held(name, "varying"))
    return result


def _vector_body(
    ctx: LaneContext, op: Op, base: Held, carried: list[Held], mask: str | None
) -> list[Held]:
    body = op.regions[0]
    ctx.held[body.arguments[0]] = Held(base.name, "affine", 1, base.literal)
    starts = [ctx.spread(h, v) for h, v in zip(carried, op.operands[2:], strict=True)]
    for argument, name in zip(body.arguments[1:], starts, strict=True):
        ctx.set(argument, name, varying=True)
    ctx.mask = mask
    ended = ctx.run(body)
    result: list[Held] = []
    for old, new, value in zip(starts, ended, op.operands[2:], strict=True):
        name = ctx.spread(new, value)
        if mask is not None:
            name = _blend(ctx, mask, value, name, old)
        result.append(Held(name, "varying"))
    ctx.mask = None
    return result


def _blend(ctx: LaneContext, mask: str, value: Value, new: str, old: str) -> str:
    count = element_count(value.type)
    kind = ctx.type_of(value, varying=True)
    flags = repeat_mask(ctx, mask, count)
    return ctx.w.emit(f"select <{ctx.lanes * count} x i1> {flags}, {kind} {new}, {kind} {old}")


def _vector_loop(
    ctx: LaneContext, op: Op, lower: str, middle: str, carried: list[Held]
) -> tuple[list[Held], str]:
    w = ctx.w
    starts = [ctx.spread(h, v) for h, v in zip(carried, op.operands[2:], strict=True)]
    types = [ctx.type_of(value, varying=True) for value in op.operands[2:]]
    head, inside, done = w.fresh("each"), w.fresh("body"), w.fresh("done")
    entry = w.block
    w.branch(head)
    w.label(head)
    phis = _Phis(ctx, ["i64", *types], [lower, *starts], entry)
    w.branch_if(w.emit(f"icmp slt i64 {phis.names[0]}, {middle}"), inside, done)
    w.label(inside)
    held = [Held(name, "varying") for name in phis.names[1:]]
    ends = _vector_body(ctx, op, Held(phis.names[0]), held, None)
    following = w.emit(f"add nsw i64 {phis.names[0]}, {ctx.lanes}")
    unroll = op.attributes["unroll"]
    assert isinstance(unroll, int)
    latch = w.block
    w.do(f"br label %{head}{_loop_metadata(ctx, unroll)}")
    phis.close([following, *(end.name for end in ends)], latch)
    w.label(done)
    return held, phis.names[0]


def _masked_body(
    ctx: LaneContext, op: Op, base: Held, rest: int | str, carried: list[Held]
) -> list[Held]:
    if isinstance(rest, int):
        flags = ", ".join(f"i1 {'true' if lane < rest else 'false'}" for lane in range(ctx.lanes))
        mask = f"<{flags}>"
    else:
        kind = f"<{ctx.lanes} x i32>"
        left = ctx.splat("i32", Held(ctx.w.emit(f"trunc i64 {rest} to i32")), ctx.lanes)
        steps = ", ".join(f"i32 {lane}" for lane in range(ctx.lanes))
        mask = ctx.w.emit(f"icmp slt {kind} <{steps}>, {left}")
    return _vector_body(ctx, op, base, carried, mask)


def _if(ctx: LaneContext, op: Op) -> None:
    condition = op.operands[0]
    if ctx.is_varying(condition):
        _if_varying(ctx, op)
        return
    kinds = [False] * len(op.results)
    _attempt(ctx, kinds, lambda found: _if_uniform(ctx, op, found))


def _if_uniform(ctx: LaneContext, op: Op, kinds: list[bool]) -> None:
    w = ctx.w
    labels = [w.fresh("then"), w.fresh("else")]
    join = w.fresh("join")
    w.branch_if(ctx.uniform(op.operands[0]), *labels)
    arms: list[tuple[list[str], str]] = []
    for label, region in zip(labels, op.regions, strict=True):
        w.label(label)
        names = _names(ctx, ctx.run(region), op.results, kinds)
        arms.append((names, w.block))
        w.branch(join)
    w.label(join)
    for index, (value, varying) in enumerate(zip(op.results, kinds, strict=True)):
        kind = ctx.type_of(value, varying=varying)
        choices = ", ".join(f"[ {names[index]}, %{block} ]" for names, block in arms)
        ctx.set(value, w.emit(f"phi {kind} {choices}"), varying=varying)


def _if_varying(ctx: LaneContext, op: Op) -> None:
    """Run each side that any lane takes, under its mask, and blend."""
    w, outer = ctx.w, ctx.mask
    flags = f"<{ctx.lanes} x i1>"
    taken = ctx.register(op.operands[0], varying=True)
    arms: list[list[str]] = []
    for region, negate in zip(op.regions, (False, True), strict=True):
        mask = w.emit(f"xor {flags} {taken}, splat (i1 true)") if negate else taken
        if outer is not None:
            mask = w.emit(f"and {flags} {mask}, {outer}")
        if len(region.operations) == 1 and not op.results:
            continue
        run, after, before = w.fresh("some"), w.fresh("after"), w.block
        w.branch_if(any_lane(ctx, mask), run, after)
        w.label(run)
        ctx.mask = mask
        held = ctx.run(region)
        names = [ctx.spread(h, v) for h, v in zip(held, op.results, strict=True)]
        ctx.mask = outer
        end = w.block
        w.branch(after)
        w.label(after)
        arms.append([
            w.emit(f"phi {ctx.type_of(v, varying=True)} [ {name}, %{end} ], "
                   f"[ zeroinitializer, %{before} ]")
            for v, name in zip(op.results, names, strict=True)
        ])  # fmt: skip
    for index, value in enumerate(op.results):
        name = _blend(ctx, taken, value, arms[0][index], arms[1][index])
        ctx.set(value, name, varying=True)


def _while(ctx: LaneContext, op: Op) -> None:
    kinds = [ctx.is_varying(value) for value in op.operands]
    _attempt(ctx, kinds, lambda found: _while_loop(ctx, op, found))


def _while_loop(ctx: LaneContext, op: Op, kinds: list[bool]) -> None:
    w = ctx.w
    test, body = op.regions
    starts = _names(ctx, [ctx.held[v] for v in op.operands], op.operands, kinds)
    types = [ctx.type_of(v, varying=k) for v, k in zip(op.operands, kinds, strict=True)]
    head, inside, done = w.fresh("while"), w.fresh("body"), w.fresh("done")
    entry = w.block
    w.branch(head)
    w.label(head)
    phis = _Phis(ctx, types, starts, entry)
    _set_all(ctx, test.arguments, phis.names, kinds)
    decision, *passed = ctx.run(test)
    if decision.kind != "uniform":
        raise ctx.unsupported(op, "needs a uniform condition on the host; vote over the lanes")
    names = _names(ctx, passed, test.arguments, kinds)
    w.branch_if(decision.name, inside, done)
    w.label(inside)
    _set_all(ctx, body.arguments, names, kinds)
    ends = _names(ctx, ctx.run(body), body.arguments, kinds)
    latch = w.block
    w.do(f"br label %{head}{_loop_metadata(ctx, 1)}")
    phis.close(ends, latch)
    w.label(done)
    _set_all(ctx, op.results, names, kinds)


CONTROL: dict[str, Lowering] = {"for": _for, "foreach": _foreach, "if": _if, "while": _while}
"""Lowering of structured control flow."""
