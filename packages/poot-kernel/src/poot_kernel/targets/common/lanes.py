"""Lane-level operations: invocations, memory, dealing of indices, vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from poot_core import DType, UnsupportedError, boolean, u8, u32
from poot_kernel.ir.core import Op, Region, Value
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import SharedType, VectorType
from poot_kernel.targets.common.control import Carried
from poot_kernel.targets.common.copies import Pointer
from poot_kernel.targets.common.lowering import Handler, Lowering
from poot_kernel.targets.common.machine import Register, SpaceName

__all__ = ["LANE_HANDLERS", "place_of"]

_MOST_OFFSET = 1 << 16  # elements


def _query(low: Lowering, op: Op) -> None:
    axis = cast(int, op.attributes.get("axis", 0))
    if op.opcode == "workgroup_id" and low.place is not None:
        low.set(op.result, low.arithmetic.convert(low.place[axis], low.dtype(op.result)))
        return
    found = {
        "workgroup_id": lambda: low.at_entry(("id", axis), lambda: low.machine.workgroup(axis)),
        "grid_size": lambda: low.at_entry(("grid", axis), lambda: low.machine.num_workgroups(axis)),
        "local_id": low.thread,
        "local_size": lambda: low.arithmetic.word(low.threads),
        "subgroup_id": low.subgroup,
        "num_subgroups": lambda: low.arithmetic.word(low.num_subgroups),
        "subgroup_lane": low.lane,
        "subgroup_size": lambda: low.arithmetic.word(low.machine.subgroup_size),
    }[op.opcode]()
    low.set(op.result, low.arithmetic.convert(found, low.dtype(op.result)))


def place_of(low: Lowering, op: Op) -> tuple[SpaceName, Register, DType, int]:
    """Return space, byte address, element type and the number of operands that addressed it."""
    space, address, offset, dtype, used = _split_place(low, op)
    return space, low.arithmetic.add(address, offset), dtype, used


def _split_place(low: Lowering, op: Op) -> tuple[SpaceName, Register, int, DType, int]:
    """Return the same with the constant part of the address apart: instructions add it for nothing."""
    memory = low.get(op.operands[0])
    ops = low.arithmetic
    if isinstance(memory, Pointer):
        array, space, base = memory.memory, cast(SpaceName, "global"), memory.address
    else:
        block = cast("tuple[SharedType, Register]", memory)
        array, space, base = block[0], cast(SpaceName, "shared"), block[1]
    total, constant = low.machine.constant(0, low.index_dtype), 0
    indices = op.operands[1 : 1 + array.rank]
    for value, stride in zip(indices, low.strides(array), strict=True):
        known = stride.literal
        if isinstance(known, int):
            value, added = _without_constant(low, value)
            constant += added * known
        total = ops.add(ops.mul(low.index(value), stride), total)
    size = _item_bytes(space, array.dtype)
    moved = ops.mul(ops.convert(total, base.dtype), size)
    return space, ops.add(base, moved), constant * size, array.dtype, 1 + array.rank


def _without_constant(low: Lowering, value: Value) -> tuple[Value, int]:
    """Return what a positive constant is added to, and the constant."""
    total = 0
    while value.definition is not None and value.definition.opcode == "add":
        first, second = value.definition.operands
        found = low.get(second)
        literal = found.literal if isinstance(found, Register) else None
        if not isinstance(literal, int) or not 0 <= literal <= _MOST_OFFSET:
            break
        value, total = first, total + literal
    return value, total


def _item_bytes(space: SpaceName, dtype: DType) -> int:
    """Return an element's bytes; in workgroup memory narrow ones have a word of their own."""
    return max(4, dtype.itemsize) if space == "shared" else dtype.itemsize


def _to_word(low: Lowering, x: Register) -> Register:
    if x.dtype is boolean:
        return low.machine.convert(x, u32)
    return low.machine.reinterpret(x, u32) if x.dtype.bits < 32 else x


def _from_word(low: Lowering, word: Register, dtype: DType) -> Register:
    if dtype is boolean:
        return low.machine.compare("ne", word, low.machine.constant(0, u32))
    return low.machine.reinterpret(word, dtype)


@dataclass(frozen=True, slots=True)
class Table:
    """Read-only memory that the code holds: an element a word.

    Attributes:
        name: As the machine knows it.
        dtype: Of the elements.
        shape: Extents.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]


def _constant_table(low: Lowering, op: Op) -> None:
    dtype = cast(DType, op.attributes["dtype"])
    values = cast("tuple[int, ...]", op.attributes["values"])
    if dtype.bits > 32 or dtype.is_float:
        raise UnsupportedError(f"GPU kernels hold tables of integers of up to 32 bits, not {dtype}")
    name = low.machine.table([value & 0xFFFFFFFF for value in values])
    low.set(op.result, Table(name, dtype, cast("tuple[int, ...]", op.attributes["shape"])))


def _load_table(low: Lowering, op: Op, table: Table) -> None:
    ops = low.arithmetic
    total = low.machine.constant(0, low.index_dtype)
    for value, extent in zip(op.operands[1:], table.shape, strict=True):
        total = ops.add(ops.mul(total, extent), low.index(value))
    word = low.machine.table_word(table.name, ops.convert(total, u32))
    low.set(op.result, low.machine.reinterpret(word, table.dtype))


def _load(low: Lowering, op: Op) -> None:
    memory = low.get(op.operands[0])
    if isinstance(memory, Table):
        _load_table(low, op, memory)
        return
    space, address, offset, dtype, used = _split_place(low, op)
    given = op.attributes["dtype"]
    dtype = given if isinstance(given, DType) else dtype
    count, alignment = cast(int, op.attributes["count"]), cast(int, op.attributes["alignment"])
    mask = low.scalar(op.operands[used]) if len(op.operands) > used else None
    if mask is not None:
        memory = low.get(op.operands[0])
        origin = memory.address if isinstance(memory, Pointer) else low.arithmetic.word(0)
        address = low.machine.select(mask, low.arithmetic.add(address, offset), origin)
        offset = 0
    found = _elements(low, space, (address, offset), dtype, count, alignment)
    if mask is not None:
        zero = low.machine.constant(0, dtype)
        other = low.scalar(op.operands[used + 1]) if len(op.operands) > used + 1 else zero
        found = [low.machine.select(mask, x, other) for x in found]
    low.set(op.result, found if isinstance(op.result.type, VectorType) else found[0])


def _elements(
    low: Lowering, space: SpaceName, place: tuple[Register, int], dtype: DType, count: int,
    alignment: int,
) -> list[Register]:  # fmt: skip
    address, start = place
    size = _item_bytes(space, dtype)
    width = max(1, min(16, max(alignment, size)) // size)
    while count % width:
        width //= 2
    found: list[Register] = []
    if space == "shared" and dtype.bits < 32:
        for first in range(0, count, width):
            words = low.machine.load(space, address, start + first * size, u32, width)
            found += [_from_word(low, word, dtype) for word in words]
        return found
    for first in range(0, count, width):
        if width * size < 4 or dtype.bits >= 32:
            found += (
                low.machine.load(space, address, start + first * size, dtype, width)
                if dtype.bits >= 32
                else [
                    low.machine.load(space, address, start + (first + i) * size, dtype, 1)[0]
                    for i in range(width)
                ]
            )
            continue
        words = low.machine.load(space, address, start + first * size, u32, width * size // 4)
        for word in words:
            found += low.arithmetic.unpack(word, dtype)
    return found


def _store(low: Lowering, op: Op) -> None:
    space, address, offset, _, used = _split_place(low, op)
    value = low.get(op.operands[used])
    values = value if isinstance(value, list) else [cast(Register, value)]
    alignment = cast(int, op.attributes["alignment"])

    def emit() -> None:
        found = cast("list[Register]", values)
        if space == "shared":
            found = [_to_word(low, x) for x in found]
        elif found[0].dtype is boolean:
            found = [low.arithmetic.convert(x, u8) for x in found]
        size = found[0].dtype.itemsize
        width = max(1, min(16, max(alignment, size)) // size)
        while len(found) % width:
            width //= 2
        for first in range(0, len(found), width):
            part = found[first : first + width]
            part = low.arithmetic.pack(part) if width * size >= 4 and size < 4 else part
            low.machine.store(space, address, offset + first * size, part)

    if len(op.operands) > used + 1:
        low.machine.branch(low.scalar(op.operands[used + 1]), emit)
    elif low.late is not None and _is_written_only(low.get(op.operands[0])):
        low.late.append(emit)
    else:
        emit()


def _is_written_only(memory: object) -> bool:
    return isinstance(memory, Pointer) and memory.memory.access == "w"


_MOST_TRIPS = 32
_MOST_OPERATIONS = 60
_TOGETHER = 8  # turns whose loads are in flight at once


def _few_trips(
    op: Op, lower: Register, upper: Register, size: int
) -> tuple[int, Register | None, int] | None:
    """Return turns, the end if the last one is partial, and the step; None to emit a loop.

    Loops over a constant number of elements are written out where that is little code: the loads of
    one turn then need not wait for those of the turn before.
    """
    if not isinstance(lower.literal, int) or not isinstance(upper.literal, int):
        return None
    operations = list(op.regions[0].walk())
    total = upper.literal - lower.literal
    trips = -(-total // size)
    if trips < 2 or any(o.regions for o in operations):
        return None
    if min(trips, _MOST_TRIPS) * len(operations) > _MOST_TRIPS * _MOST_OPERATIONS:
        return None
    return trips, upper if total % size else None, size


def _straight(
    low: Lowering,
    body: Region,
    carried: Carried,
    start: Register,
    trips: tuple[int, Register | None, int],
) -> None:
    count, end, size = trips

    def turn(index: Register) -> None:
        carried.assign(low.region(body, [index, *carried.read()]))

    def together(first: Register, turns: int) -> None:
        # What only this kernel writes and never reads may be written after all loads.
        low.late = []
        for number in range(turns):
            turn(low.arithmetic.add(first, number * size))
        late, low.late = low.late, None
        for emit in late:
            emit()

    whole = count if end is None else count - 1
    groups = whole // _TOGETHER
    done = 0
    if whole > _MOST_TRIPS:
        done = groups * _TOGETHER
        _in_groups(low, start, groups, lambda at: together(at, _TOGETHER), _TOGETHER * size)
    for first in range(done, whole, _TOGETHER):
        at = low.arithmetic.add(start, first * size)
        together(at, min(_TOGETHER, whole - first))
    if end is not None:
        last = low.arithmetic.add(start, whole * size)
        low.machine.branch(low.machine.compare("lt", last, end), lambda: turn(last))


def _in_groups(
    low: Lowering, start: Register, groups: int, body: Callable[[Register], None], step: int
) -> None:
    machine, ops = low.machine, low.arithmetic
    place = machine.variable(start)
    left = machine.variable(ops.word(groups))

    def turn() -> None:
        at = machine.read(place)
        body(at)
        machine.assign(place, ops.add(at, step))
        machine.assign(left, machine.binary("sub", machine.read(left), ops.word(1)))

    machine.loop(lambda: machine.compare("gt", machine.read(left), ops.word(0)), turn)


def _foreach(low: Lowering, op: Op) -> None:
    lower, upper = (low.index(v) for v in op.operands[:2])
    (body,) = op.regions
    is_workgroup = op.attributes["scope"] == "workgroup"
    lane = low.thread() if is_workgroup else low.lane()
    size = low.threads if is_workgroup else low.machine.subgroup_size
    carried = Carried(low, body.arguments[1:], [low.get(v) for v in op.operands[2:]])
    start = low.arithmetic.add(lower, low.arithmetic.convert(lane, low.index_dtype))
    if (trips := _few_trips(op, lower, upper, size)) is not None:
        _straight(low, body, carried, start, trips)
        for value, runtime in zip(op.results, carried.read(), strict=True):
            low.set(value, runtime)
        return
    counter = low.machine.variable(start)

    def turn() -> None:
        index = low.machine.read(counter)
        carried.assign(low.region(body, [index, *carried.read()]))
        low.machine.assign(counter, low.arithmetic.add(index, size))

    low.machine.loop(lambda: low.machine.compare("lt", low.machine.read(counter), upper), turn)
    for value, runtime in zip(op.results, carried.read(), strict=True):
        low.set(value, runtime)


def _barrier(low: Lowering, op: Op) -> None:
    # A subgroup's lanes need not run in step: its barrier is the workgroup's.
    low.barrier()


def _shared_alloc(low: Lowering, op: Op) -> None:
    found = op.result.type
    assert isinstance(found, SharedType)
    is_lane = low.kernel.level == "lane"
    total = _item_bytes("shared", found.dtype) if is_lane else found.dtype.itemsize
    for size in found.shape:
        total *= _constant(size)
    start = low.allocate(op, total)
    low.set(op.result, (found, start))


def _constant(size: Size) -> int:
    found = size.constant
    if found is None:
        raise UnsupportedError(f"GPU targets need constant shared memory, got extent {size}")
    return found


def _extent(low: Lowering, op: Op) -> None:
    memory = op.operands[0].type
    axis = cast(int, op.attributes["axis"])
    size = memory.shape[axis]  # type: ignore[union-attr]
    assert isinstance(size, Size)
    low.set(op.result, low.size(size))


def _vector_build(low: Lowering, op: Op) -> None:
    low.set(op.result, [low.scalar(v) for v in op.operands])


def _splat(low: Lowering, op: Op) -> None:
    low.set(op.result, [low.scalar(op.operands[0])] * cast(int, op.attributes["count"]))


def _extract(low: Lowering, op: Op) -> None:
    found = cast("list[Register]", low.get(op.operands[0]))
    low.set(op.result, found[cast(int, op.attributes["index"])])


def _insert(low: Lowering, op: Op) -> None:
    found = list(cast("list[Register]", low.get(op.operands[0])))
    found[cast(int, op.attributes["index"])] = low.scalar(op.operands[1])
    low.set(op.result, found)


def _vector_reduce(low: Lowering, op: Op) -> None:
    found = cast("list[Register]", low.get(op.operands[0]))
    total = found[0]
    for x in found[1:]:
        total = low.arithmetic.combine(cast(str, op.attributes["kind"]), total, x)
    low.set(op.result, total)


_QUERIES = ("workgroup_id", "grid_size", "local_id", "local_size", "subgroup_id", "num_subgroups",
            "subgroup_lane", "subgroup_size")  # fmt: skip
LANE_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_QUERIES, _query),
    "load": _load, "store": _store, "foreach": _foreach, "insert": _insert,
    "barrier": _barrier, "shared_alloc": _shared_alloc, "extent": _extent, "splat": _splat,
    "constant_table": _constant_table, "vector_build": _vector_build, "extract": _extract,
    "vector_reduce": _vector_reduce,
    "prefetch": lambda low, op: None,
}  # fmt: skip
