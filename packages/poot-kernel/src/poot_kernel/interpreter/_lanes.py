"""Rules of memory accesses, identifiers, subgroups and barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from poot_core import DType
from poot_kernel.interpreter._elements import combine, element_dtype
from poot_kernel.interpreter._machine import Array, Machine, Rule
from poot_kernel.interpreter._memory import Memory
from poot_kernel.interpreter.errors import KernelFault
from poot_kernel.ir import Op, Size, Value, VectorType

__all__ = ["LANE_RULES", "raw_dtype", "spread_out"]


def raw_dtype(memory: Memory, dtype: DType) -> bool:
    """Whether an access of a dtype goes to raw bytes."""
    return dtype is not memory.dtype


# ---- accesses


def _indices(machine: Machine, operands: Sequence[Value]) -> list[Array]:
    return [machine.array(operand).astype(np.int64) for operand in operands]


def spread_out(at: Array, active: Array, count: int) -> tuple[Array, Array]:
    """Return addresses and mask of count contiguous elements, on a new last axis."""
    spread = at[..., None] + np.where(active[..., None], np.arange(count), 0)
    return spread, np.broadcast_to(active[..., None], spread.shape)


def _check_alignment(machine: Machine, op: Op, offsets: Array, active: Array, size: int) -> None:
    alignment = cast("int", op.attributes["alignment"])
    if machine.check and alignment and (offsets * size % alignment)[active].any():
        raise KernelFault(f"promises addresses aligned to {alignment} bytes, which they are not")


def _load(machine: Machine, op: Op) -> Sequence[Any]:
    memory = machine.memory(op.operands[0])
    rank = len(memory.shape)
    indices = _indices(machine, op.operands[1 : 1 + rank])
    extra = [machine.array(operand) for operand in op.operands[1 + rank :]]
    active = machine.mask & extra[0] if extra else machine.mask
    count, dtype = cast("int", op.attributes["count"]), element_dtype(op.result)
    if raw_dtype(memory, dtype):
        size = count * dtype.itemsize
        at = memory.byte_address(indices[0], active, size)
        _check_alignment(machine, op, at, active, 1)
        spread, wide = spread_out(at, active, size)
        found = memory.read(spread, wide, machine.accessors(spread.shape)).view(dtype.numpy)
    else:
        at = memory.address(indices, active, count)
        _check_alignment(machine, op, at, active, dtype.itemsize)
        spread, wide = spread_out(at, active, count)
        found = memory.read(spread, wide, machine.accessors(spread.shape))
    other = extra[1] if len(extra) > 1 else np.zeros((), dtype.numpy)
    if count == 1:
        return (np.where(active, found[..., 0], other),)
    if len(extra) > 1 and not isinstance(op.operands[2 + rank].type, VectorType):
        other = other[..., None]
    return (np.where(active[..., None], found, other),)


def _store(machine: Machine, op: Op) -> Sequence[Any]:
    memory = machine.memory(op.operands[0])
    rank = len(memory.shape)
    indices = _indices(machine, op.operands[1 : 1 + rank])
    value = op.operands[1 + rank]
    item, dtype = machine.array(value), element_dtype(value)
    extra = [machine.array(operand) for operand in op.operands[2 + rank :]]
    active = machine.mask & extra[0] if extra else machine.mask
    wide = item if isinstance(value.type, VectorType) else item[..., None]
    wide = np.broadcast_to(wide, (*machine.mask.shape, wide.shape[-1]))
    if raw_dtype(memory, dtype):
        found = np.ascontiguousarray(wide).view(np.uint8)
        at = memory.byte_address(indices[0], active, found.shape[-1])
        _check_alignment(machine, op, at, active, 1)
        wide = found
    else:
        at = memory.address(indices, active, wide.shape[-1])
        _check_alignment(machine, op, at, active, dtype.itemsize)
    spread, mask = spread_out(at, active, wide.shape[-1])
    memory.write(spread, wide, mask, machine.accessors(spread.shape), _order(machine))
    return ()


def _order(machine: Machine) -> Array:
    return machine.workgroup.order if machine.mask.ndim else np.zeros(1, np.int64)


def _prefetch(machine: Machine, op: Op) -> Sequence[Any]:
    return ()


def _atomic(machine: Machine, op: Op) -> Sequence[Any]:
    memory = machine.memory(op.operands[0])
    rank = len(memory.shape)
    active = machine.mask
    if len(op.operands) > 2 + rank:
        active = active & machine.array(op.operands[2 + rank])
    at = memory.address(_indices(machine, op.operands[1 : 1 + rank]), active)
    memory.combine(at, active, machine.accessors(at.shape))
    values = machine.array(op.operands[1 + rank])
    kind = str(op.attributes["kind"])
    old = np.zeros(at.shape, memory.flat.dtype)
    for lane in machine.workgroup.order[active[machine.workgroup.order]]:
        old[lane] = memory.flat[at[lane]]
        new = values[lane]
        memory.flat[at[lane]] = new if kind == "exchange" else combine(kind, old[lane], new)
    return (old,)


def _shared_alloc(machine: Machine, op: Op) -> Sequence[Any]:
    machine.require_all()
    shape = [machine.size(size) for size in cast("tuple[Size, ...]", op.attributes["shape"])]
    dtype = cast("DType", op.attributes["dtype"])
    name = op.result.name or "shared memory"
    memory = Memory.shared(name, dtype, shape, check=machine.check)
    machine.memories.append(memory)
    return (memory,)


def _constant_table(machine: Machine, op: Op) -> Sequence[Any]:
    dtype = cast("DType", op.attributes["dtype"])
    shape = cast("tuple[int, ...]", op.attributes["shape"])
    values = np.array(op.attributes["values"], dtype.numpy)
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    name = op.result.name or "table"
    return (Memory(name, dtype, shape, strides, values, check=machine.check, is_constant=True),)


def _extent(machine: Machine, op: Op) -> Sequence[Any]:
    extent = machine.memory(op.operands[0]).shape[cast("int", op.attributes["axis"])]
    return (_everywhere(machine, cast("int", extent)),)


def _mark(machine: Machine, op: Op, row: Value, active: Array) -> None:
    """Set a bit of a row of the status array; like an atomic or."""
    memory = machine.memory(op.operands[0])
    at = memory.address([machine.array(row).astype(np.int64)], active)
    memory.combine(at, active, machine.accessors(at.shape))
    bit = np.asarray(1 << cast("int", op.attributes["bit"])).astype(memory.flat.dtype)
    np.bitwise_or.at(memory.flat, at[active], bit)


def _clamp_index(machine: Machine, op: Op) -> Sequence[Any]:
    index, extent = (machine.array(operand).astype(np.int64) for operand in op.operands[1:3])
    clamped = np.maximum(np.minimum(index, extent - 1), 0)
    _mark(machine, op, op.operands[3], machine.mask & (clamped != index))
    return (clamped,)


def _status_set(machine: Machine, op: Op) -> Sequence[Any]:
    active = machine.mask
    if len(op.operands) > 2:
        active = active & machine.array(op.operands[2])
    _mark(machine, op, op.operands[1], active)
    return ()


# ---- identifiers


def _everywhere(machine: Machine, number: int) -> Array:
    return np.broadcast_to(np.asarray(number, np.int64), machine.mask.shape)


def _workgroup_id(machine: Machine, op: Op) -> Sequence[Any]:
    return (_everywhere(machine, machine.workgroup.ids[cast("int", op.attributes["axis"])]),)


def _grid_size(machine: Machine, op: Op) -> Sequence[Any]:
    return (_everywhere(machine, machine.workgroup.grid[cast("int", op.attributes["axis"])]),)


def _local_id(machine: Machine, op: Op) -> Sequence[Any]:
    return (machine.lane,)


def _local_size(machine: Machine, op: Op) -> Sequence[Any]:
    return (_everywhere(machine, _num_lanes(machine)),)


def _num_lanes(machine: Machine) -> int:
    return cast("int", machine.workgroup.num_lanes)


def _subgroup_id(machine: Machine, op: Op) -> Sequence[Any]:
    return (machine.subgroup,)


def _num_subgroups(machine: Machine, op: Op) -> Sequence[Any]:
    return (_everywhere(machine, -(-_num_lanes(machine) // machine.workgroup.subgroup_size)),)


def _subgroup_lane(machine: Machine, op: Op) -> Sequence[Any]:
    return (machine.lane % machine.workgroup.subgroup_size,)


def _subgroup_size(machine: Machine, op: Op) -> Sequence[Any]:
    return (_everywhere(machine, machine.workgroup.subgroup_size),)


# ---- subgroups


def _by_subgroup(machine: Machine, item: Array) -> Array:
    """Return lanes as (subgroups, subgroup size, ...), the last subgroup padded with zeros."""
    width = machine.workgroup.subgroup_size
    missing = -item.shape[0] % width
    padded = np.concatenate([item, np.zeros((missing, *item.shape[1:]), item.dtype)])
    return padded.reshape(-1, width, *item.shape[1:])


def _by_lane(machine: Machine, item: Array) -> Array:
    return item.reshape(-1, *item.shape[2:])[: _num_lanes(machine)]


def _halve(kind: str, items: Array, active: Array) -> tuple[Array, Array]:
    """Combine along axis 1: element i with i + size / 2, over and over; skips inactive ones."""
    while items.shape[1] > 1:
        half = (items.shape[1] + 1) // 2
        missing = 2 * half - items.shape[1]
        if missing:
            items = np.concatenate([items, items[:, :missing]], 1)
            active = np.concatenate([active, np.zeros_like(active[:, :missing])], 1)
        left, right = items[:, :half], items[:, half:]
        on_left, on_right = active[:, :half], active[:, half:]
        extra = (1,) * (items.ndim - active.ndim)
        both = (on_left & on_right).reshape(*on_left.shape, *extra)
        alone = on_left.reshape(*on_left.shape, *extra)
        items = np.where(both, combine(kind, left, right), np.where(alone, left, right))
        active = on_left | on_right
    return items[:, 0], active[:, 0]


def _reduced(machine: Machine, op: Op) -> tuple[Array, Array]:
    items = _by_subgroup(machine, machine.array(op.operands[0]))
    return _halve(str(op.attributes["kind"]), items, _by_subgroup(machine, machine.mask))


def _subgroup_reduce(machine: Machine, op: Op) -> Sequence[Any]:
    items, _ = _reduced(machine, op)
    return (items[machine.subgroup],)


def _subgroup_scan(machine: Machine, op: Op) -> Sequence[Any]:
    kind = str(op.attributes["kind"])
    items = _by_subgroup(machine, machine.array(op.operands[0]))
    active = _by_subgroup(machine, machine.mask)
    before = np.broadcast_to(_identity(kind, items), items[:, 0].shape)
    started = np.zeros(items.shape[0], np.bool_)
    result = np.empty_like(items)
    for lane in range(items.shape[1]):
        extra = (1,) * (items.ndim - 2)
        is_active = active[:, lane].reshape(-1, *extra)
        begun = started.reshape(-1, *extra)
        after = np.where(begun, combine(kind, before, items[:, lane]), items[:, lane])
        result[:, lane] = before if op.attributes["exclusive"] else after
        before = np.where(is_active, after, before)
        started = started | active[:, lane]
    return (_by_lane(machine, result),)


def _identity(kind: str, items: Array) -> Array:
    if kind in {"add", "or", "xor"}:
        return np.zeros((), items.dtype)
    if kind == "mul":
        return np.ones((), items.dtype)
    if kind == "and":
        return np.invert(np.zeros((), items.dtype))
    sign = 1 if kind == "min" else -1
    if np.issubdtype(items.dtype, np.integer):
        limits = np.iinfo(items.dtype)
        return np.asarray(limits.max if sign > 0 else limits.min).astype(items.dtype)
    return np.asarray(sign * np.inf).astype(items.dtype)


def _from_lane(machine: Machine, item: Array, lane: Array) -> Array:
    width = machine.workgroup.subgroup_size
    source = machine.subgroup * width + lane
    if machine.check and ((lane < 0) | (lane >= width))[machine.mask].any():
        raise KernelFault(f"reads a lane outside of [0, {width})")
    return item[np.clip(source, 0, _num_lanes(machine) - 1)]


def _subgroup_shuffle(machine: Machine, op: Op) -> Sequence[Any]:
    item, lane = (machine.array(operand) for operand in op.operands)
    return (_from_lane(machine, item, lane.astype(np.int64)),)


def _subgroup_shuffle_xor(machine: Machine, op: Op) -> Sequence[Any]:
    lane = machine.lane % machine.workgroup.subgroup_size
    other = lane ^ cast("int", op.attributes["lane_mask"])
    return (_from_lane(machine, machine.array(op.operands[0]), other),)


def _subgroup_vote(machine: Machine, op: Op) -> Sequence[Any]:
    votes = _by_subgroup(machine, machine.array(op.operands[0]))
    active = _by_subgroup(machine, machine.mask)
    is_any = op.attributes["kind"] == "any"
    found = (votes & active).any(1) if is_any else (votes | ~active).all(1)
    return (np.asarray(found)[machine.subgroup],)


def _workgroup_reduce(machine: Machine, op: Op) -> Sequence[Any]:
    machine.require_all()
    items, _ = _reduced(machine, op)
    total = items[0]
    for item in items[1:]:
        total = combine(str(op.attributes["kind"]), total, item)
    _settle(machine, None)
    return (np.broadcast_to(total, machine.array(op.operands[0]).shape),)


def _barrier(machine: Machine, op: Op) -> Sequence[Any]:
    if op.attributes["scope"] == "subgroup":
        _settle(machine, np.unique(machine.subgroup[machine.mask]))
    else:
        machine.require_all()
        _settle(machine, None)
    return ()


def _settle(machine: Machine, subgroups: Array | None) -> None:
    for memory in machine.memories:
        if memory.tracker is not None:
            memory.tracker.barrier(subgroups)


LANE_RULES: dict[str, Rule] = {
    "load": _load,
    "store": _store,
    "prefetch": _prefetch,
    "atomic": _atomic,
    "shared_alloc": _shared_alloc,
    "constant_table": _constant_table,
    "extent": _extent,
    "workgroup_id": _workgroup_id,
    "grid_size": _grid_size,
    "local_id": _local_id,
    "local_size": _local_size,
    "subgroup_id": _subgroup_id,
    "num_subgroups": _num_subgroups,
    "subgroup_lane": _subgroup_lane,
    "subgroup_size": _subgroup_size,
    "subgroup_reduce": _subgroup_reduce,
    "subgroup_scan": _subgroup_scan,
    "subgroup_shuffle": _subgroup_shuffle,
    "subgroup_shuffle_xor": _subgroup_shuffle_xor,
    "subgroup_broadcast": _subgroup_shuffle,
    "subgroup_vote": _subgroup_vote,
    "workgroup_reduce": _workgroup_reduce,
    "barrier": _barrier,
    "clamp_index": _clamp_index,
    "status_set": _status_set,
}
"""Opcode -> rule."""
