"""Subgroups and workgroups of lane kernels: both are the lanes of one vector."""

from __future__ import annotations

from poot_core import DType
from poot_kernel.ir import Op, ScalarType, Value, VectorType
from poot_kernel.targets.host.lane_context import LaneContext, Lowering
from poot_kernel.targets.host.lane_elements import combine, repeat_mask
from poot_kernel.targets.host.lane_memory import any_lane
from poot_kernel.targets.host.lane_values import (
    Held,
    element_count,
    element_type,
    vector_type,
)

__all__ = ["GROUPS"]


def _identity(kind: str, dtype: DType) -> float | int | bool:
    """Return what leaves the other operand unchanged."""
    if kind in {"min", "max"}:
        low, high = _range(dtype)
        return high if kind == "min" else low
    if kind == "and":
        return True if dtype.kind == "bool" else -1 if dtype.kind == "int" else _range(dtype)[1]
    return 1 if kind == "mul" else False if dtype.kind == "bool" else 0


def _range(dtype: DType) -> tuple[float | int | bool, float | int | bool]:
    if dtype.is_float:
        return float("-inf"), float("inf")
    if dtype.kind == "bool":
        return False, True
    if dtype.kind == "int":
        return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    return 0, (1 << dtype.bits) - 1


def _reduce(ctx: LaneContext, op: Op) -> None:
    """Halve: lane i with lane i + size / 2, so that masked lanes and all rows share one order."""
    (x,) = op.operands
    assert isinstance(x.type, ScalarType | VectorType)
    dtype, count = x.type.dtype, element_count(x.type)
    element = element_type(dtype)
    total = ctx.lanes * count
    name = ctx.register(x, varying=True)
    if ctx.mask is not None:
        neutral = ctx.literal(_identity(str(op.attributes["kind"]), dtype), dtype)
        kind = vector_type(element, total)
        mask = repeat_mask(ctx, ctx.mask, count)
        name = ctx.w.emit(
            f"select <{total} x i1> {mask}, {kind} {name}, {kind} "
            f"{ctx.splat(element, neutral, total)}"
        )
    while total > count:
        half = total // 2
        low, high = (_part(ctx, element, name, total, at, half) for at in (0, half))
        name = combine(ctx, op, dtype, half, low, high)
        total = half
    ctx.set(op.result, name, varying=False)


def _part(ctx: LaneContext, element: str, name: str, total: int, start: int, size: int) -> str:
    kind = vector_type(element, total)
    if size == 1:
        return ctx.w.emit(f"extractelement {kind} {name}, i64 {start}")
    order = ", ".join(f"i32 {at}" for at in range(start, start + size))
    return ctx.w.emit(f"shufflevector {kind} {name}, {kind} poison, <{size} x i32> <{order}>")


def _permute(ctx: LaneContext, x: Value, lanes: list[int]) -> str:
    count = element_count(x.type)
    kind = ctx.type_of(x, varying=True)
    name = ctx.register(x, varying=True)
    order = ", ".join(f"i32 {lane * count + j}" for lane in lanes for j in range(count))
    return ctx.w.emit(
        f"shufflevector {kind} {name}, {kind} poison, <{len(lanes) * count} x i32> <{order}>"
    )


def _shuffle_xor(ctx: LaneContext, op: Op) -> None:
    mask = op.attributes["lane_mask"]
    assert isinstance(mask, int)
    lanes = [(lane ^ mask) % ctx.lanes for lane in range(ctx.lanes)]
    ctx.set(op.result, _permute(ctx, op.operands[0], lanes), varying=True)


def _broadcast(ctx: LaneContext, op: Op) -> None:
    x, lane = op.operands
    if ctx.is_varying(lane) or element_count(x.type) > 1:
        raise ctx.unsupported(op, "takes a scalar and a uniform lane on the host")
    kind = ctx.type_of(x, varying=True)
    name = ctx.register(x, varying=True)
    found = ctx.w.emit(f"extractelement {kind} {name}, i64 {ctx.uniform(lane)}")
    ctx.set(op.result, found, varying=False)


def _vote(ctx: LaneContext, op: Op) -> None:
    name = ctx.register(op.operands[0], varying=True)
    kind = f"<{ctx.lanes} x i1>"
    wants_all = op.attributes["kind"] == "all"
    if wants_all:
        name = ctx.w.emit(f"xor {kind} {name}, splat (i1 true)")
    if ctx.mask is not None:
        name = ctx.w.emit(f"and {kind} {name}, {ctx.mask}")
    found = any_lane(ctx, name)
    if wants_all:
        found = ctx.w.emit(f"xor i1 {found}, true")
    ctx.set(op.result, found, varying=False)


def _scan(ctx: LaneContext, op: Op) -> None:
    """Log-step prefix combination; positions before the first lane are neutral."""
    (x,) = op.operands
    assert isinstance(x.type, ScalarType | VectorType)
    dtype, count = x.type.dtype, element_count(x.type)
    if count > 1 or ctx.mask is not None:
        raise ctx.unsupported(op, "takes a scalar under uniform control flow on the host")
    element, kind = element_type(dtype), ctx.type_of(x, varying=True)
    neutral = ctx.splat(
        element, ctx.literal(_identity(str(op.attributes["kind"]), dtype), dtype), ctx.lanes
    )

    def shifted(name: str, distance: int) -> str:
        order = ", ".join(
            f"i32 {lane - distance if lane >= distance else ctx.lanes}" for lane in range(ctx.lanes)
        )
        return ctx.w.emit(
            f"shufflevector {kind} {name}, {kind} {neutral}, <{ctx.lanes} x i32> <{order}>"
        )

    name, distance = ctx.register(x, varying=True), 1
    while distance < ctx.lanes:
        name = combine(ctx, op, dtype, ctx.lanes, shifted(name, distance), name)
        distance *= 2
    ctx.set(op.result, shifted(name, 1) if op.attributes["exclusive"] else name, varying=True)


def _lane(ctx: LaneContext, op: Op) -> None:
    ctx.held[op.result] = Held("0", "affine", 1, 0)


def _number(number: int) -> Lowering:
    def lowering(ctx: LaneContext, op: Op) -> None:
        value = number or ctx.lanes
        ctx.held[op.result] = Held(str(value), literal=value)

    return lowering


def _zero(ctx: LaneContext, op: Op) -> None:
    ctx.held[op.result] = Held("0", literal=0)


def _workgroup_id(ctx: LaneContext, op: Op) -> None:
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    is_known = axis < len(ctx.coordinates)
    ctx.held[op.result] = ctx.coordinates[axis] if is_known else Held("0", literal=0)


def _grid_size(ctx: LaneContext, op: Op) -> None:
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    is_known = axis < len(ctx.kernel.grid)
    ctx.held[op.result] = ctx.size(ctx.kernel.grid[axis]) if is_known else Held("1", literal=1)


def _nothing(ctx: LaneContext, op: Op) -> None:
    """A barrier: one thread is the whole workgroup and runs in order."""


GROUPS: dict[str, Lowering] = {
    "workgroup_reduce": _reduce,
    "subgroup_reduce": _reduce,
    "subgroup_scan": _scan,
    "subgroup_shuffle_xor": _shuffle_xor,
    "subgroup_broadcast": _broadcast,
    "subgroup_vote": _vote,
    "local_id": _lane,
    "subgroup_lane": _lane,
    "local_size": _number(0),
    "subgroup_size": _number(0),
    "num_subgroups": _number(1),
    "subgroup_id": _zero,
    "workgroup_id": _workgroup_id,
    "grid_size": _grid_size,
    "barrier": _nothing,
}
"""Lowering of subgroup and workgroup operations."""
