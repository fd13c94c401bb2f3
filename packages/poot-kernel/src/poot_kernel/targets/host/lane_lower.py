"""Lane kernels as LLVM IR for the host: one call runs a range of workgroups, lanes are a vector."""

from __future__ import annotations

from poot_core import Target
from poot_kernel.ir import ArrayType, KernelFunction, ScalarType
from poot_kernel.targets.host.lane_context import LaneContext
from poot_kernel.targets.host.lane_control import CONTROL
from poot_kernel.targets.host.lane_dots import DOTS
from poot_kernel.targets.host.lane_elements import ELEMENTS
from poot_kernel.targets.host.lane_groups import GROUPS
from poot_kernel.targets.host.lane_memory import MEMORY
from poot_kernel.targets.host.lane_values import Held, memory_type

__all__ = ["lower_lane_kernel"]

_TABLE = {**ELEMENTS, **DOTS, **MEMORY, **GROUPS, **CONTROL}


def lower_lane_kernel(kernel: KernelFunction, target: Target) -> str:
    """Return a module with one entry, named as the kernel, in the host ABI (see the README).

    Args:
        kernel: A verified lane kernel.
        target: The host; its features decide the number of lanes.

    Raises:
        UnsupportedError: If the target has no vectors that poot knows, or an operation is not
            lowered at lane level.
    """
    ctx = LaneContext(kernel, target, _TABLE)
    _parameters(ctx)
    _workgroups(ctx)
    text = "\n".join(ctx.w.lines)
    for index, metadata in enumerate(ctx.alias_metadata()):
        text = text.replace(f"#{index}#", metadata)
    ctx.w.lines = [text]
    signature = (
        f"void @{kernel.name}(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) "
        "nounwind alignstack(64)"
    )
    return ctx.w.module(signature)


def _parameters(ctx: LaneContext) -> None:
    w = ctx.w
    pointers: dict[int, str] = {}
    for index, value in enumerate(ctx.kernel.parameters):
        slot = w.emit(f"getelementptr i64, ptr %args, i64 {index}")
        if isinstance(value.type, ScalarType):
            dtype = value.type.dtype
            kind = memory_type(dtype)
            name = w.emit(f"load {kind}, ptr {slot}, align 8")
            if dtype.name == "boolean":
                name = w.emit(f"trunc i8 {name} to i1")
            ctx.set(value, name, varying=False)
            if dtype.is_integer:
                ctx.scalars[value.name] = _as_index(ctx, name, dtype.bits, dtype.kind == "int")
        else:
            pointers[index] = w.emit(f"load ptr, ptr {slot}, align 8")
    for index, value in enumerate(ctx.kernel.parameters):
        if isinstance(value.type, ArrayType):
            found = value.type
            ctx.add_memory(value, pointers[index], found.dtype, found.shape, found.strides)


def _as_index(ctx: LaneContext, name: str, bits: int, is_signed: bool) -> Held:
    if bits == 64:
        return Held(name)
    return Held(ctx.w.emit(f"{'sext' if is_signed else 'zext'} i{bits} {name} to i64"))


def _workgroups(ctx: LaneContext) -> None:
    """Loop over the call's workgroups; x runs fastest."""
    w = ctx.w
    extents = [ctx.size(size) for size in ctx.kernel.grid]
    entry = w.block
    w.branch("workgroups")
    w.label("workgroups")
    line = w.reserve()
    w.branch_if(w.emit("icmp slt i64 %workgroup, %end"), "run", "finished")
    w.label("run")
    rest = "%workgroup"
    for axis, extent in enumerate(extents):
        if axis == len(extents) - 1:
            ctx.coordinates.append(Held(rest))
        else:
            ctx.coordinates.append(Held(w.emit(f"urem i64 {rest}, {extent.name}")))
            rest = w.emit(f"udiv i64 {rest}, {extent.name}")
    ctx.run(ctx.kernel.body)
    following = w.emit("add nsw i64 %workgroup, 1")
    latch = w.block
    w.branch("workgroups")
    w.lines[line] = f"  %workgroup = phi i64 [ %begin, %{entry} ], [ {following}, %{latch} ]"
    w.label("finished")
    w.do("ret void")
