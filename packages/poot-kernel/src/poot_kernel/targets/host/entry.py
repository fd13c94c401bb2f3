"""From a kernel to a module: entry point, argument slots, the loop over workgroups."""

from __future__ import annotations

from poot_core import Target, i64
from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.sizes import Size, as_size
from poot_kernel.ir.types import ArrayType, ScalarType, SharedType
from poot_kernel.targets.host.control import CONTROL_HANDLERS
from poot_kernel.targets.host.convert import convert
from poot_kernel.targets.host.emitter import Emitter, Val, llvm_type
from poot_kernel.targets.host.lane_lower import lower_lane_kernel
from poot_kernel.targets.host.lowering import Handler, Lowering
from poot_kernel.targets.host.machine import host_machine
from poot_kernel.targets.host.memory import MEMORY_HANDLERS, array_memory, load_value
from poot_kernel.targets.host.tile_ops import TILE_HANDLERS

__all__ = ["lower_host", "scratch_size"]


_HANDLERS: dict[str, Handler] = {**MEMORY_HANDLERS, **CONTROL_HANDLERS, **TILE_HANDLERS}


def lower_host(function: KernelFunction, target: Target) -> str:
    """Return the LLVM IR of a verified kernel, one module with the kernel's name as its entry.

    Raises:
        UnsupportedError: If the kernel needs what hosts, or this one, do not have.
    """
    if function.level == "lane":
        return lower_lane_kernel(function, target)
    lowering = Lowering(function, host_machine(target), _HANDLERS)
    e = lowering.emitter
    parameters: list[str] = []
    for number, parameter in enumerate(function.parameters):
        if isinstance(parameter.type, ArrayType):
            parameters.append(f"ptr noalias %p{number}")
        else:
            assert isinstance(parameter.type, ScalarType)
            parameters.append(f"{llvm_type(parameter.type.dtype)} %p{number}")
    _bind_parameters(lowering)
    _workgroups(lowering)
    body = "\n".join(e.lines)
    text = [
        *e.prelude.values(),
        f"define internal void @{function.name}.body({', '.join([*parameters, _RANGE])}) "
        'noinline nounwind "no-builtins" {',
        "entry:",
        body,
        "}",
        *_entry(function),
        *e.metadata,
        *(_ALIGNED_STACK if target.arch.startswith("x86") else ()),
    ]
    return "\n".join(text) + "\n"


# The entry aligns the stack to a vector and the body keeps it so. The compiler does not align it of
# its own accord once registers run out, and spilled vectors across two cache lines then made the same
# kernel 1.6 times slower in processes whose stack happened to start so.
_ALIGNED_STACK = (
    "!llvm.module.flags = !{!9999}",
    '!9999 = !{i32 1, !"override-stack-alignment", i32 64}',
)

_RANGE = "i64 %tile_begin, i64 %tile_end, ptr noalias align 64 %scratch"


def _bind_parameters(lowering: Lowering) -> None:
    e = lowering.emitter
    for number, parameter in enumerate(lowering.kernel.parameters):
        if isinstance(parameter.type, ScalarType):
            value = Val(f"%p{number}", parameter.type.dtype)
            lowering.set(parameter, value)
            if parameter.type.dtype.is_integer:
                lowering.sizes[parameter.name] = convert(e, value, i64)
    for number, parameter in enumerate(lowering.kernel.parameters):
        if isinstance(parameter.type, ArrayType):
            lowering.set(parameter, array_memory(lowering, parameter.type, f"%p{number}"))


def _workgroups(lowering: Lowering) -> None:
    """Emit the loop over flat tiles around the kernel's body; x varies fastest."""
    e, kernel = lowering.emitter, lowering.kernel
    extents = [lowering.size(size) for size in kernel.grid]
    lowering.scratch = ("%scratch", e.index(0))
    before = e.block
    begin, end = Val("%tile_begin", i64), Val("%tile_end", i64)
    some = e.compare("icmp slt", begin, end)
    e.line(f"br i1 {some.name}, label %workgroup, label %finish")
    e.start("workgroup")
    hole = e.hole()
    tile = Val("%tile", i64)
    with lowering.entered():
        ids: list[Val] = []
        rest = tile
        for extent in extents[:-1]:
            ids.append(e.binary("urem", rest, extent))
            rest = e.binary("udiv", rest, extent)
        ids.append(rest)
        lowering.coordinates = (ids, extents)
        lowering.lower_region(kernel.body)
        following = e.add(tile, e.index(1))
        more = e.compare("icmp slt", following, end)
        latch = e.block
    e.line(f"br i1 {more.name}, label %workgroup, label %finish{e.loop_metadata(1)}")
    e.fill(hole, f"{tile.name} = phi i64 [ {begin.name}, %{before} ], "
                 f"[ {following.name}, %{latch} ]")  # fmt: skip
    e.start("finish")
    e.line("ret void")


def _entry(function: KernelFunction) -> list[str]:
    """The exported function: reads the argument slots and calls the body.

    Pointers become ``noalias`` parameters there: array arguments of a kernel never overlap unless
    both are only read.
    """
    e = Emitter()
    arguments: list[str] = []
    for number, parameter in enumerate(function.parameters):
        slot = e.offset("%args", e.index(8 * number))
        if isinstance(parameter.type, ArrayType):
            arguments.append(f"ptr {e.name(f'load ptr, ptr {slot}, align 8')}")
        else:
            assert isinstance(parameter.type, ScalarType)
            arguments.append(load_value(e, slot, parameter.type.dtype, 0, 8).typed)
    call = ", ".join([*arguments, "i64 %tile_begin", "i64 %tile_end", "ptr %scratch"])
    return [
        f"define void @{function.name}(ptr %args, i64 %tile_begin, i64 %tile_end, ptr %scratch) "
        "nounwind alignstack(64) {",
        "entry:",
        *e.lines,
        f"  call void @{function.name}.body({call})",
        "  ret void",
        "}",
    ]


def scratch_size(function: KernelFunction) -> Size:
    """Return the bytes of thread scratch that a kernel uses, over its integer parameters."""
    total = as_size(0)
    for op in function.body.walk():
        if op.opcode == "shared_alloc":
            found = op.result.type
            assert isinstance(found, SharedType)
            nbytes = as_size(found.dtype.itemsize)
            for extent in found.shape:
                nbytes = nbytes * extent
            total = total + (nbytes + 63) // 64 * 64
    return total
