"""Dot products within a lane: four bytes into 32 bits, two 16-bit floats into f32."""

from __future__ import annotations

from poot_core import DType
from poot_kernel.ir import Op
from poot_kernel.targets.host.lane_context import LaneContext, Lowering
from poot_kernel.targets.host.lane_values import Held, element_count, vector_type
from poot_kernel.targets.host.machine import host_machine

__all__ = ["DOTS"]


def _dot4(ctx: LaneContext, op: Op) -> None:
    a, b, acc = op.operands
    varying = ctx.is_varying(a, b, acc)
    lanes = ctx.lanes if varying else 1
    count = element_count(a.type) * lanes
    w = ctx.w
    words, quads, wide = vector_type("i32", count), f"<{4 * count} x i8>", f"<{4 * count} x i32>"
    products: list[str] = []
    for value, flag in ((a, "a_signed"), (b, "b_signed")):
        held = ctx.register(value, varying=varying)
        lanes_of_bytes = w.emit(f"bitcast {words} {held} to {quads}")
        extend = "sext" if op.attributes[flag] else "zext"
        products.append(w.emit(f"{extend} {quads} {lanes_of_bytes} to {wide}"))
    product = w.emit(f"mul {wide} {products[0]}, {products[1]}")
    total = ctx.register(acc, varying=varying)
    for byte in range(4):
        if count == 1:
            part = w.emit(f"extractelement {wide} {product}, i64 {byte}")
        else:
            order = ", ".join(f"i32 {4 * at + byte}" for at in range(count))
            part = w.emit(
                f"shufflevector {wide} {product}, {wide} poison, <{count} x i32> <{order}>"
            )
        total = w.emit(f"add {words} {total}, {part}")
    ctx.set(op.result, total, varying=varying)


def _dot2(ctx: LaneContext, op: Op) -> None:
    """Lower ``fma(low, fma(high, acc))`` of pairs of bf16; vdpbf16ps flushes subnormals."""
    dtype = op.attributes["dtype"]
    assert isinstance(dtype, DType)
    if dtype.name != "bf16":
        raise ctx.unsupported(op, f"of pairs of {dtype.name} is not lowered at lane level")
    varying = ctx.is_varying(*op.operands)
    count = element_count(op.result.type) * (ctx.lanes if varying else 1)
    a, b, acc = (ctx.register(value, varying=varying) for value in op.operands)
    if host_machine(ctx.target).has_bf16_dot and count % ctx.lanes == 0:
        parts = [_pair_dot(ctx, at, count, (a, b, acc)) for at in range(0, count, ctx.lanes)]
        ctx.set(op.result, _joined(ctx, parts), varying=varying)
        return
    words, real = vector_type("i32", count), vector_type("float", count)
    high = ctx.splat("i32", Held(str(0xFFFF0000), literal=0xFFFF0000), count)
    amount = ctx.splat("i32", Held("16", literal=16), count)
    for instruction in (f"and {words} %s, {high}", f"shl {words} %s, {amount}"):
        halves = [ctx.w.emit(instruction % word) for word in (a, b)]
        x, y = (ctx.w.emit(f"bitcast {words} {half} to {real}") for half in halves)
        name = f"llvm.fma.{'f32' if count == 1 else f'v{count}f32'}"
        acc = ctx.w.intrinsic(name, real, [(real, x), (real, y), (real, acc)])
    ctx.set(op.result, acc, varying=varying)


def _pair_dot(ctx: LaneContext, start: int, count: int, operands: tuple[str, str, str]) -> str:
    """Return one register of products: lanes ``start`` onwards of vectors of ``count``."""
    w, lanes = ctx.w, ctx.lanes
    words, pairs, real = f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>", f"<{lanes} x float>"
    a, b, acc = operands
    if count > lanes:
        order = ", ".join(f"i32 {start + lane}" for lane in range(lanes))
        a, b, acc = (
            w.emit(f"shufflevector {kind} {x}, {kind} poison, <{lanes} x i32> <{order}>")
            for x, kind in ((a, f"<{count} x i32>"), (b, f"<{count} x i32>"),
                            (acc, f"<{count} x float>"))
        )  # fmt: skip
    x, y = (w.emit(f"bitcast {words} {v} to {pairs}") for v in (a, b))
    name = f"llvm.x86.avx512bf16.dpbf16ps.{lanes * 32}"
    return w.intrinsic(name, real, [(real, acc), (pairs, x), (pairs, y)])


def _joined(ctx: LaneContext, parts: list[str]) -> str:
    """Return vectors one after the other as one, whose number is a power of two."""
    width = ctx.lanes
    while len(parts) > 1:
        kind = f"<{width} x float>"
        width *= 2
        order = ", ".join(f"i32 {lane}" for lane in range(width))
        parts = [
            ctx.w.emit(f"shufflevector {kind} {x}, {kind} {y}, <{width} x i32> <{order}>")
            for x, y in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


DOTS: dict[str, Lowering] = {"dot4": _dot4, "dot2": _dot2}
"""Lowering of the products of packed elements."""
