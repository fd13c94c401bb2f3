"""Memory of lane kernels: contiguous accesses become vector ones, others gathers and scatters."""

from __future__ import annotations

from poot_core import DType
from poot_kernel.ir import ArrayType, Op, SharedType, Size, Value
from poot_kernel.targets.host.lane_context import LaneContext, Lowering, Memory
from poot_kernel.targets.host.lane_elements import repeat_mask
from poot_kernel.targets.host.lane_values import (
    Held,
    element_count,
    element_type,
    memory_type,
    vector_type,
)

__all__ = ["MEMORY"]

_ALIGNMENT = 64  # of the blocks in thread scratch


def _rank(value: Value) -> int:
    assert isinstance(value.type, ArrayType | SharedType)
    return value.type.rank


def _both(ctx: LaneContext, mask: str | None, other: str | None) -> str | None:
    if mask is None or other is None:
        return mask or other
    return ctx.w.emit(f"and <{ctx.lanes} x i1> {mask}, {other}")


def _explicit_mask(ctx: LaneContext, values: list[Value]) -> str | None:
    return ctx.register(values[0], varying=True) if values else None


class _Access:
    """One load or store: its memory, offset, dtype and active lanes.

    Attributes:
        is_uniform: Whether all lanes access one place.
        is_contiguous: Whether the lanes' elements are neighbours in memory.
    """

    def __init__(
        self, ctx: LaneContext, op: Op, dtype: DType, count: int, masks: list[Value]
    ) -> None:
        memory_value = op.operands[0]
        rank = _rank(memory_value)
        self.ctx, self.dtype, self.count = ctx, dtype, count
        self.memory: Memory = ctx.memory(memory_value)
        self.offset = ctx.offset(self.memory, op.operands[1 : 1 + rank])
        self.scale = self.memory.dtype.itemsize  # bytes of one index step
        alignment = op.attributes["alignment"]
        assert isinstance(alignment, int)
        self.alignment = alignment or min(dtype.itemsize, self.scale)
        explicit = _explicit_mask(ctx, masks)
        self.has_explicit_mask = explicit is not None
        self.mask = _both(ctx, ctx.mask, explicit)
        self.is_uniform = self.offset.kind == "uniform"
        step = self.offset.stride * self.scale
        self.is_contiguous = self.offset.kind == "affine" and step == count * dtype.itemsize

    def pointer(self) -> str:
        """Return the address of the first lane's elements."""
        return _address(self.ctx, self.memory.pointer, self.offset, self.scale)

    def pointers(self) -> str:
        """Return a vector of addresses, one for each element of each lane."""
        ctx = self.ctx
        held = self.offset
        index = held.name if held.kind == "varying" else ctx.index_vector(held, "i64")
        kind = f"<{ctx.lanes} x i64>"
        w = ctx.w
        if self.count > 1:
            total = ctx.lanes * self.count
            order = ", ".join(f"i32 {i}" for i in range(ctx.lanes) for _ in range(self.count))
            index = w.emit(
                f"shufflevector {kind} {index}, {kind} poison, <{total} x i32> <{order}>"
            )
            kind = f"<{total} x i64>"
            factor = self.dtype.itemsize // self.scale
            steps = ", ".join(
                f"i64 {j * factor}" for _ in range(ctx.lanes) for j in range(self.count)
            )
            index = w.emit(f"add {kind} {index}, <{steps}>")
        element = f"i{8 * self.scale}"
        return w.emit(f"getelementptr {element}, ptr {self.memory.pointer}, {kind} {index}")

    def element_mask(self) -> str:
        """Return the active elements of all lanes."""
        if self.mask is None:
            return "splat (i1 true)"
        return repeat_mask(self.ctx, self.mask, self.count)


def _address(ctx: LaneContext, pointer: str, offset: Held, scale: int) -> str:
    if offset.literal == 0:
        return pointer
    return ctx.w.emit(f"getelementptr i{8 * scale}, ptr {pointer}, i64 {offset.name}")


def _load(ctx: LaneContext, op: Op) -> None:
    rank = _rank(op.operands[0])
    dtype = op.attributes["dtype"]
    count = op.attributes["count"]
    assert isinstance(count, int)
    found = dtype if isinstance(dtype, DType) else ctx.memory(op.operands[0]).dtype
    access = _Access(ctx, op, found, count, op.operands[1 + rank : 2 + rank])
    others = op.operands[2 + rank :]
    element = memory_type(found)
    w, alias = ctx.w, access.memory.alias
    if access.is_uniform and not access.has_explicit_mask:
        kind = vector_type(element, count)
        name = w.emit(f"load {kind}, ptr {access.pointer()}, align {access.alignment}{alias}")
        ctx.set(op.result, _from_memory(ctx, name, found, count), varying=False)
        return
    total = ctx.lanes * count
    kind = vector_type(element, total)
    if access.is_contiguous and access.mask is None:
        name = w.emit(f"load {kind}, ptr {access.pointer()}, align {access.alignment}{alias}")
        ctx.set(op.result, _from_memory(ctx, name, found, total), varying=True)
        return
    if found.name == "boolean" and others:
        raise ctx.unsupported(op, "of booleans takes no value for masked lanes")
    other = ctx.register(others[0], varying=True) if others else "zeroinitializer"
    flags, mask = f"<{total} x i1>", access.element_mask()
    if access.is_contiguous:
        parts = [
            ("ptr", f"align {access.alignment} {access.pointer()}"),
            (flags, mask),
            (kind, other),
        ]
        name = _masked(ctx, f"llvm.masked.load.{_name(element, total)}.p0", kind, parts, alias)
    else:
        pointers = access.pointers() if not access.is_uniform else _same_pointers(access)
        where = (f"<{total} x ptr>", f"align {access.alignment} {pointers}")
        full = f"llvm.masked.gather.{_name(element, total)}.v{total}p0"
        name = _masked(ctx, full, kind, [where, (flags, mask), (kind, other)], alias)
    ctx.set(op.result, _from_memory(ctx, name, found, total), varying=True)


def _same_pointers(access: _Access) -> str:
    total = access.ctx.lanes * access.count
    if access.count > 1:
        access.offset = Held(access.offset.name, "affine", 0, access.offset.literal)
        return access.pointers()
    return access.ctx.splat("ptr", Held(access.pointer()), total)


def _masked(
    ctx: LaneContext, name: str, kind: str, parts: list[tuple[str, str]], alias: str
) -> str:
    found = ctx.w.intrinsic(name, kind, parts)
    ctx.w.lines[-1] += alias
    return found


def _name(element: str, total: int) -> str:
    return f"v{total}" + {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)


def _from_memory(ctx: LaneContext, name: str, dtype: DType, count: int) -> str:
    if dtype.name != "boolean":
        return name
    kind = vector_type("i8", count)
    return ctx.w.emit(f"icmp ne {kind} {name}, {'0' if count == 1 else 'zeroinitializer'}")


def _store(ctx: LaneContext, op: Op) -> None:
    rank = _rank(op.operands[0])
    value = op.operands[1 + rank]
    assert not isinstance(value.type, ArrayType | SharedType)
    dtype: DType = value.type.dtype  # type: ignore[union-attr]
    count = element_count(value.type)
    access = _Access(ctx, op, dtype, count, op.operands[2 + rank :])
    element = memory_type(dtype)
    w, alias = ctx.w, access.memory.alias
    if access.is_uniform:
        if access.has_explicit_mask or ctx.is_varying(value):
            raise ctx.unsupported(op, "of a varying value or mask needs a varying index")
        kind = vector_type(element, count)
        name = _to_memory(ctx, ctx.uniform(value), dtype, count)
        w.do(f"store {kind} {name}, ptr {access.pointer()}, align {access.alignment}{alias}")
        return
    total = ctx.lanes * count
    kind = vector_type(element, total)
    name = _to_memory(ctx, ctx.register(value, varying=True), dtype, total)
    if access.is_contiguous and access.mask is None:
        w.do(f"store {kind} {name}, ptr {access.pointer()}, align {access.alignment}{alias}")
        return
    flags, mask = f"<{total} x i1>", access.element_mask()
    if access.is_contiguous:
        where = ("ptr", f"align {access.alignment} {access.pointer()}")
        full = f"llvm.masked.store.{_name(element, total)}.p0"
    else:
        where = (f"<{total} x ptr>", f"align {access.alignment} {access.pointers()}")
        full = f"llvm.masked.scatter.{_name(element, total)}.v{total}p0"
    w.intrinsic(full, "void", [(kind, name), where, (flags, mask)])
    w.lines[-1] += alias


def _to_memory(ctx: LaneContext, name: str, dtype: DType, count: int) -> str:
    if dtype.name != "boolean":
        return name
    return ctx.w.emit(f"zext {vector_type('i1', count)} {name} to {vector_type('i8', count)}")


def _prefetch(ctx: LaneContext, op: Op) -> None:
    memory = ctx.memory(op.operands[0])
    offset = ctx.offset(memory, op.operands[1:])
    if offset.kind == "varying":
        raise ctx.unsupported(op, "needs a uniform or contiguous index")
    pointer = _address(ctx, memory.pointer, offset, memory.dtype.itemsize)
    # Into the second level: it takes far more misses at once than the first does.
    hints = [("i32", "0"), ("i32", "2"), ("i32", "1")]
    ctx.w.intrinsic("llvm.prefetch.p0", "void", [("ptr", pointer), *hints])


def _shared_alloc(ctx: LaneContext, op: Op) -> None:
    dtype, shape = op.attributes["dtype"], op.attributes["shape"]
    assert isinstance(dtype, DType)
    assert isinstance(shape, tuple)
    sizes = tuple(size for size in shape if isinstance(size, Size))
    nbytes = dtype.itemsize
    for size in sizes:
        if size.constant is None:
            raise ctx.unsupported(op, "needs a constant shape in a lane kernel")
        nbytes *= size.constant
    pointer = ctx.w.emit(f"getelementptr i8, ptr %scratch, i64 {ctx.scratch_offset}")
    ctx.scratch_offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    ctx.add_memory(op.result, pointer, dtype, sizes, None)


def _extent(ctx: LaneContext, op: Op) -> None:
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    ctx.held[op.result] = ctx.extent(op.operands[0], axis)


def _status_address(ctx: LaneContext, op: Op, row: Value) -> tuple[str, str]:
    memory = ctx.memory(op.operands[0])
    if ctx.is_varying(row):
        raise ctx.unsupported(op, "needs a uniform row on the host")
    offset = ctx.multiply_index(ctx.held[row], memory.strides[0])
    pointer = _address(ctx, memory.pointer, offset, memory.dtype.itemsize)
    return pointer, element_type(memory.dtype)


def _mark(ctx: LaneContext, op: Op, row: Value, condition: str) -> None:
    """Set a bit of a row's flags where a condition holds."""
    w = ctx.w
    bit = op.attributes["bit"]
    assert isinstance(bit, int)
    pointer, kind = _status_address(ctx, op, row)
    alias = ctx.memory(op.operands[0]).alias
    bad, done = w.fresh("fault"), w.fresh("checked")
    w.branch_if(condition, bad, done)
    w.label(bad)
    old = w.emit(f"load {kind}, ptr {pointer}, align 4{alias}")
    w.do(f"store {kind} {w.emit(f'or {kind} {old}, {1 << bit}')}, ptr {pointer}, align 4{alias}")
    w.branch(done)
    w.label(done)


def _clamp_index(ctx: LaneContext, op: Op) -> None:
    _, index, extent, row = op.operands
    w = ctx.w
    varying = ctx.is_varying(index)
    kind = ctx.type_of(index, varying=varying)
    x, limit = (ctx.register(v, varying=varying) for v in (index, extent))
    outside = w.emit(f"icmp uge {kind} {x}, {limit}")
    condition = any_lane(ctx, _both(ctx, ctx.mask, outside) or outside) if varying else outside
    _mark(ctx, op, row, condition)
    suffix = f"v{ctx.lanes}i64" if varying else "i64"
    one = ctx.splat("i64", Held("1", literal=1), ctx.lanes if varying else 1)
    last = w.emit(f"sub {kind} {limit}, {one}")
    low = w.intrinsic(f"llvm.smin.{suffix}", kind, [(kind, x), (kind, last)])
    zero = "zeroinitializer" if varying else "0"
    ctx.set(
        op.result,
        w.intrinsic(f"llvm.smax.{suffix}", kind, [(kind, low), (kind, zero)]),
        varying=varying,
    )


def any_lane(ctx: LaneContext, mask: str) -> str:
    """Return whether any lane of a mask is set."""
    kind = f"<{ctx.lanes} x i1>"
    return ctx.w.intrinsic(f"llvm.vector.reduce.or.v{ctx.lanes}i1", "i1", [(kind, mask)])


def _status_set(ctx: LaneContext, op: Op) -> None:
    mask = ctx.mask
    if len(op.operands) > 2:
        if not ctx.is_varying(op.operands[2]):
            _mark(ctx, op, op.operands[1], ctx.uniform(op.operands[2]))
            return
        mask = _both(ctx, mask, ctx.register(op.operands[2], varying=True))
    _mark(ctx, op, op.operands[1], "true" if mask is None else any_lane(ctx, mask))


MEMORY: dict[str, Lowering] = {
    "load": _load,
    "store": _store,
    "prefetch": _prefetch,
    "shared_alloc": _shared_alloc,
    "extent": _extent,
    "clamp_index": _clamp_index,
    "status_set": _status_set,
}
"""Lowering of loads, stores, scratch and status flags."""
