"""Arrays and workgroup memory: addresses, scalar and vector accesses, hints, the status word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from poot_core import DType, boolean, i64
from poot_kernel.ir.core import Op, Value
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import ArrayType, SharedType, VectorType
from poot_kernel.targets.host.emitter import Emitter, Val, llvm_type
from poot_kernel.targets.host.lowering import Handler, Lowering

__all__ = [
    "MEMORY_HANDLERS",
    "Memory",
    "array_memory",
    "element_offset",
    "load_value",
    "store_value",
]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Memory:
    """A block of memory that a kernel addresses.

    Attributes:
        pointer: LLVM name of its base.
        dtype: Element type.
        strides: Elements between neighbours, by axis.
        extents: Elements by axis; None where unknown.
        alignment: Bytes by which the base is aligned.
    """

    pointer: str
    dtype: DType
    strides: tuple[Val, ...]
    extents: tuple[Val | None, ...]
    alignment: int

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.strides)


def _row_major(lowering: Lowering, shape: Sequence[Size | None]) -> tuple[Val, ...]:
    e = lowering.emitter
    strides = [e.index(1)]
    for size in reversed(shape[1:]):
        assert size is not None
        strides.append(e.mul(strides[-1], lowering.size(size)))
    return tuple(reversed(strides))


def array_memory(lowering: Lowering, found: ArrayType, pointer: str) -> Memory:
    """Return the memory of an array parameter; emits its strides at entry."""
    if found.strides is None:
        strides = _row_major(lowering, found.shape)
    else:
        strides = tuple(lowering.size(size) for size in found.strides)
    extents = tuple(None if size is None else lowering.size(size) for size in found.shape)
    return Memory(pointer=pointer, dtype=found.dtype, strides=strides, extents=extents,
                  alignment=found.alignment)  # fmt: skip


def _shared_alloc(lowering: Lowering, op: Op) -> None:
    found = op.result.type
    assert isinstance(found, SharedType)
    e = lowering.emitter
    base, used = lowering.scratch
    pointer = e.offset(base, used)
    extents = tuple(lowering.size(size) for size in found.shape)
    nbytes = e.index(found.dtype.itemsize)
    for extent in extents:
        nbytes = e.mul(nbytes, extent)
    if isinstance(nbytes.constant, int):
        rounded = e.index(-(-nbytes.constant // 64) * 64)
    else:
        rounded = e.binary("and", e.add(nbytes, e.index(63)), e.index(-64))
    lowering.scratch = (base, e.add(used, rounded))
    memory = Memory(pointer=pointer, dtype=found.dtype, strides=_row_major(lowering, found.shape),
                    extents=extents, alignment=64)  # fmt: skip
    lowering.set(op.result, memory)


def _constant_table(lowering: Lowering, op: Op) -> None:
    found = op.result.type
    assert isinstance(found, ArrayType)
    e = lowering.emitter
    values = cast("tuple[int, ...]", op.attributes["values"])
    element = llvm_type(found.dtype)
    name = f"@{e.fresh('table')}"
    body = ", ".join(f"{element} {value}" for value in values)
    e.prelude[name] = (
        f"{name} = internal constant [{len(values)} x {element}] [{body}], "
        f"align {found.dtype.itemsize}"
    )
    lowering.set(op.result, array_memory(lowering, found, name))


def element_offset(lowering: Lowering, memory: Memory, indices: Sequence[Val]) -> Val:
    """Return the byte offset of an element; of many if an index is varying."""
    e = lowering.emitter
    total = e.index(0)
    for index, stride in zip(indices, memory.strides, strict=True):
        lanes = index.lanes
        if lanes or total.lanes:
            lanes = lanes or total.lanes
            part = e.splat(index, lanes)
            if stride.constant != 1:
                part = e.binary("mul nsw", part, e.splat(stride, lanes))
            total = (
                part if total.constant == 0 else e.binary("add nsw", e.splat(total, lanes), part)
            )
        else:
            total = e.add(total, e.mul(index, stride))
    itemsize = memory.dtype.itemsize
    if total.lanes and itemsize > 1:
        return e.binary("mul nsw", total, e.const(itemsize, i64, total.lanes))
    return e.mul(total, e.index(itemsize)) if not total.lanes else total


def load_value(e: Emitter, pointer: str, dtype: DType, lanes: int, alignment: int = 1) -> Val:
    """Load a scalar or contiguous elements; booleans are bytes in memory."""
    if dtype is boolean:
        kind = f"<{lanes} x i8>" if lanes else "i8"
        raw = e.name(f"load {kind}, ptr {pointer}, align {alignment}")
        zero = "zeroinitializer" if lanes else "0"
        return e.emit(f"icmp ne {kind} {raw}, {zero}", boolean, lanes)
    return e.emit(f"load {llvm_type(dtype, lanes)}, ptr {pointer}, align {alignment}", dtype, lanes)


def store_value(e: Emitter, pointer: str, value: Val, alignment: int = 1) -> None:
    """Store a scalar or contiguous elements."""
    text = value.typed
    if value.dtype is boolean:
        kind = f"<{value.lanes} x i8>" if value.lanes else "i8"
        text = f"{kind} {e.name(f'zext {value.typed} to {kind}')}"
    e.line(f"store {text}, ptr {pointer}, align {alignment}")


def _memory(lowering: Lowering, value: Value) -> Memory:
    return cast("Memory", lowering.get(value))


def _pointer(lowering: Lowering, op: Op, memory: Memory, *, inbounds: bool = True) -> str:
    indices = [lowering.val(v) for v in op.operands[1 : 1 + memory.rank]]
    offset = element_offset(lowering, memory, indices)
    return lowering.emitter.offset(memory.pointer, offset, inbounds=inbounds)


def _load(lowering: Lowering, op: Op) -> None:
    """A uniform load; under a mask it branches around the access."""
    e, memory = lowering.emitter, _memory(lowering, op.operands[0])
    found = op.result.type
    dtype = cast("DType", getattr(found, "dtype"))  # noqa: B009
    lanes = found.count if isinstance(found, VectorType) else 0
    rest = op.operands[1 + memory.rank :]
    if not rest:
        pointer = _pointer(lowering, op, memory)
        lowering.set(op.result, load_value(e, pointer, dtype, lanes))
        return
    other = lowering.val(rest[1]) if len(rest) > 1 else e.const(0, dtype, lanes)
    mask = lowering.val(rest[0])
    read, done, before = e.fresh("read"), e.fresh("done"), e.block
    e.line(f"br i1 {mask.name}, label %{read}, label %{done}")
    e.start(read)
    loaded = load_value(e, _pointer(lowering, op, memory), dtype, lanes)
    e.line(f"br label %{done}")
    after = e.block
    e.start(done)
    text = f"phi {loaded.type} [ {loaded.name}, %{after} ], [ {other.name}, %{before} ]"
    lowering.set(op.result, e.emit(text, dtype, lanes))


def _store(lowering: Lowering, op: Op) -> None:
    e, memory = lowering.emitter, _memory(lowering, op.operands[0])
    lowering.announce_write(memory)
    value = lowering.val(op.operands[1 + memory.rank])
    rest = op.operands[2 + memory.rank :]
    if not rest:
        store_value(e, _pointer(lowering, op, memory), value)
        return
    mask = lowering.val(rest[0])
    write, done = e.fresh("write"), e.fresh("done")
    e.line(f"br i1 {mask.name}, label %{write}, label %{done}")
    e.start(write)
    store_value(e, _pointer(lowering, op, memory), value)
    e.line(f"br label %{done}")
    e.start(done)


def _prefetch(lowering: Lowering, op: Op) -> None:
    e, memory = lowering.emitter, _memory(lowering, op.operands[0])
    pointer = _pointer(lowering, op, memory, inbounds=False)
    e.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    e.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")


def _extent(lowering: Lowering, op: Op) -> None:
    extent = _memory(lowering, op.operands[0]).extents[cast("int", op.attributes["axis"])]
    assert extent is not None
    lowering.set(op.result, extent)


def _workgroup_id(lowering: Lowering, op: Op) -> None:
    _coordinate(lowering, op, 0)


def _grid_size(lowering: Lowering, op: Op) -> None:
    _coordinate(lowering, op, 1)


def _coordinate(lowering: Lowering, op: Op, which: int) -> None:
    axis = cast("int", op.attributes["axis"])
    known = lowering.coordinates[which]
    missing = lowering.emitter.index(which)  # id 0 and size 1 beyond the grid's axes
    lowering.set(op.result, known[axis] if axis < len(known) else missing)


def _flag(lowering: Lowering, memory: Memory, row: Val, bit: int) -> None:
    e = lowering.emitter
    pointer = e.offset(memory.pointer, element_offset(lowering, memory, [row]))
    old = load_value(e, pointer, memory.dtype, 0, 4)
    store_value(e, pointer, e.binary("or", old, e.const(1 << bit, memory.dtype)), 4)


def _clamp_index(lowering: Lowering, op: Op) -> None:
    e, memory = lowering.emitter, _memory(lowering, op.operands[0])
    index, extent, row = (lowering.val(v) for v in op.operands[1:])
    wide = [x if x.dtype is i64 else e.cast("sext", x, i64) for x in (index, extent, row)]
    last = e.binary("sub nsw", wide[1], e.index(1))
    clamped = e.overloaded("smax", e.overloaded("smin", wide[0], last), e.index(0))
    _flag_if(lowering, e.compare("icmp ne", clamped, wide[0]), memory, wide[2], op)
    lowering.set(op.result, clamped)


def _status_set(lowering: Lowering, op: Op) -> None:
    e, memory = lowering.emitter, _memory(lowering, op.operands[0])
    row = lowering.val(op.operands[1])
    mask = lowering.val(op.operands[2]) if len(op.operands) > 2 else e.const(True, boolean)
    _flag_if(lowering, mask, memory, row, op)


def _flag_if(lowering: Lowering, mask: Val, memory: Memory, row: Val, op: Op) -> None:
    e = lowering.emitter
    lowering.announce_write(memory)
    flag, done = e.fresh("flag"), e.fresh("done")
    e.line(f"br i1 {mask.name}, label %{flag}, label %{done}")
    e.start(flag)
    _flag(lowering, memory, row, cast("int", op.attributes["bit"]))
    e.line(f"br label %{done}")
    e.start(done)


MEMORY_HANDLERS: dict[str, Handler] = {
    "load": _load,
    "store": _store,
    "prefetch": _prefetch,
    "shared_alloc": _shared_alloc,
    "constant_table": _constant_table,
    "extent": _extent,
    "workgroup_id": _workgroup_id,
    "grid_size": _grid_size,
    "clamp_index": _clamp_index,
    "status_set": _status_set,
}
"""Opcode -> lowering of scalar accesses, hints, coordinates and the status word."""
