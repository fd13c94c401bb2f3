"""Ascending sums: what one step of k adds to a tile of accumulators, for each activation type.

These functions are the arithmetic signature of a contraction. Every regime builds its loop out of
them, so a result has the same bits whatever the number of rows, the tile or the thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import bf16, f16, f32, i8, i32, u8
from poot_kernel import IRBuilder, Layout, Value
from poot_kernelgen.contraction._codec import ROWS, Codec, dense_bytes
from poot_kernelgen.contraction._decode import Step, group_values
from poot_kernelgen.contraction._kernel import Frame
from poot_kernelgen.contraction._shapes import dtype_of, shape_of, width_of

__all__ = [
    "ByteActivation",
    "ByteOperand",
    "ByteResidual",
    "add_bytes",
    "add_residual",
    "byte_operand",
    "dense_tile",
    "float_weights",
    "is_signed",
    "lift",
    "read_bytes",
]


@dataclass(frozen=True, slots=True)
class ByteOperand:
    """What an i8 product needs of a step of weights.

    Attributes:
        codes: (32, n): u8 codes; signed i8 ones where activations are lifted to u8.
        scales: For each group (1, n) f32.
        mins: For each group (1, n) f32, or None; with u8 codes their zero is folded in.
        corrections: For each group of signed codes (1, n) i32: minus 128 times their sum.
    """

    codes: Value
    scales: list[Value]
    mins: list[Value] | None
    corrections: list[Value]


def is_signed(codec: Codec, is_lifted: bool) -> bool:
    """Whether products take signed weights and lifted activations."""
    return is_lifted or codec.groups > 1


def byte_operand(b: IRBuilder, codec: Codec, step: Step, *, is_lifted: bool) -> ByteOperand:
    """Return a decoded step in the form that ``add_bytes`` takes.

    Args:
        b: Builder.
        codec: The weights' format.
        step: The decoded step.
        is_lifted: Whether activations come lifted; where a step has groups they are lifted here.
    """
    if not is_signed(codec, is_lifted):
        mins = step.mins
        if codec.zero:
            mins = [b.map(lambda s: b.mul(s, float(-codec.zero)), step.scales[0])]
            assert step.mins is None, "no format has both an offset and centred codes"
        return ByteOperand(step.codes, step.scales, mins, [])
    codes = step.codes

    def centred(code: Value) -> Value:
        if codec.zero == 128:
            return b.bitcast(b.xor(code, 128), i8)
        return b.sub(b.bitcast(code, i8), codec.zero) if codec.zero else b.bitcast(code, i8)

    signed = b.map(centred, codes)
    # Activations enter such products as x + 128: the sum of codes times 128 is taken off in front.
    full = b.tile_full((1, codec.group), b.constant(128, u8))
    corrections: list[Value] = []
    for g in range(codec.groups):
        part = _rows_of(b, signed, codec.group * g, codec.group)
        zero = b.tile_zeros((1, width_of(part)), i32)
        total = b.mma(full, part, zero, signature="exact")
        corrections.append(b.map(lambda v: b.unary("neg", v), total))
    return ByteOperand(signed, step.scales, step.mins, corrections)


def _rows_of(b: IRBuilder, tile: Value, start: int, count: int) -> Value:
    columns = width_of(tile)
    return b.slice(tile, (start, 0), (count, columns))


@dataclass(frozen=True, slots=True)
class ByteActivation:
    """Activations of a step in 8 bits.

    Attributes:
        codes: (m, 32) i8, or u8 ones that were lifted before.
        scales: (m, 1) f32.
        sums: (m, 1) f32: scale * sum of codes, residuals included.
    """

    codes: Value
    scales: Value
    sums: Value


@dataclass(frozen=True, slots=True)
class ByteResidual:
    """What rounding to ``ByteActivation`` lost, in 8 bits again.

    Attributes:
        codes: (m, 32) i8, or u8 ones that were lifted before.
        scales: (m, 1) f32; 0 in rows without residual.
    """

    codes: Value
    scales: Value


def read_bytes(tiles: list[Value]) -> tuple[ByteActivation, ByteResidual | None]:
    """Return the tiles of the activation arrays, in the request's order, as one step."""
    residual = ByteResidual(*tiles[3:]) if len(tiles) > 3 else None
    return ByteActivation(*tiles[:3]), residual


def add_bytes(
    b: IRBuilder, codec: Codec, weights: ByteOperand, x: ByteActivation, acc: Value
) -> Value:
    """Return (m, n) f32 accumulators plus a step of exact integer products, scaled once each."""
    acc = _add_plane(b, codec, weights, x.codes, x.scales, acc)
    if weights.mins is None or codec.groups > 1:
        return acc
    return b.map(lambda t, low, total: b.fma(low, total, t), acc, weights.mins[0], x.sums)


def add_residual(
    b: IRBuilder, codec: Codec, weights: ByteOperand, x: ByteResidual, rest: Value
) -> Value:
    """Return (m, n) f32 accumulators of residuals plus a step.

    They are a chain of their own, added to the other at its end. A row without residual adds zeros,
    so it has the same bits whether this runs for its neighbours' sake or not at all. Offsets of
    formats with one group a step are in ``add_bytes`` already, whose sums include residuals.
    """
    return _add_plane(b, codec, weights, x.codes, x.scales, rest)


def _add_plane(
    b: IRBuilder, codec: Codec, weights: ByteOperand, codes: Value, scales: Value, acc: Value
) -> Value:
    """Return accumulators plus the products, and group sums, of one plane of codes."""
    dots = _dots(b, codec, weights, codes)
    if codec.groups > 1:
        acc = _add_groups(b, acc, scales, dots, weights.scales)
        if weights.mins is None:
            return acc
        return _add_groups(
            b, acc, scales, _group_sums(b, codec, codes, shape_of(acc)), weights.mins
        )

    def add(total: Value, d: Value, s: Value, xs: Value) -> Value:
        return b.fma(b.convert(d, f32), b.mul(s, xs), total)

    return b.map(add, acc, dots[0], weights.scales[0], scales)


def _dots(b: IRBuilder, codec: Codec, weights: ByteOperand, codes: Value) -> list[Value]:
    """Return (m, n) i32 products for each group of the step."""
    shape = (shape_of(codes)[0], width_of(weights.codes))
    if not weights.corrections:
        return [b.mma(codes, weights.codes, b.tile_zeros(shape, i32), signature="exact")]
    found: list[Value] = []
    for g, part in enumerate(_lifted_parts(b, codec, codes)):
        first = b.broadcast(weights.corrections[g], shape)
        rows = _rows_of(b, weights.codes, codec.group * g, codec.group)
        found.append(b.mma(part, rows, first, signature="exact"))
    return found


def _group_sums(b: IRBuilder, codec: Codec, codes: Value, shape: tuple[int, ...]) -> list[Value]:
    """Return (m, n) i32 sums of the codes of each group of 16, which offsets are multiplied with."""
    ones = b.tile_full((codec.group, shape[1]), b.constant(1, i8))
    first = b.tile_full(shape, b.constant(-128 * codec.group, i32))
    parts = _lifted_parts(b, codec, codes)
    return [b.mma(part, ones, first, signature="exact") for part in parts]


def _lifted_parts(b: IRBuilder, codec: Codec, codes: Value) -> list[Value]:
    lifted = lift(b, codes)
    rows = shape_of(codes)[0]
    return [b.slice(lifted, (0, codec.group * g), (rows, codec.group)) for g in range(codec.groups)]


def lift(b: IRBuilder, codes: Value) -> Value:
    """Return activation codes as u8, 128 more than they are; lifted ones pass."""
    if dtype_of(codes) is u8:
        return codes
    return b.map(lambda v: b.xor(b.bitcast(v, u8), 128), codes)


def _add_groups(
    b: IRBuilder, acc: Value, scale: Value, dots: list[Value], factors: list[Value]
) -> Value:
    """Return acc + scale * (f0 * d0 + f1 * d1)."""

    def add(total: Value, xs: Value, d0: Value, d1: Value, f0: Value, f1: Value) -> Value:
        first = b.mul(b.convert(d1, f32), f1)
        return b.fma(b.fma(b.convert(d0, f32), f0, first), xs, total)

    return b.map(add, acc, scale, *dots, *factors)


def float_weights(b: IRBuilder, codec: Codec, step: Step) -> Value:
    """Return the (32, n) f32 tile of a step, for products with f32 activations."""
    return group_values(b, codec, step)


def dense_tile(
    frame: Frame, source: str, base: Value, k: Value, depth: int, groups: int, stride: Value
) -> Value:
    """Return the (depth, 16 * groups) tile of a dense weight; row groups are ``stride`` bytes apart."""
    b = frame.b
    dtype = {"f32": f32, "f16": f16, "bf16": bf16}[source]
    size = dense_bytes(source)
    at = b.add(base, b.mul(k, ROWS * size))
    pair = f"k2@{size} n16@{2 * size} k{depth // 2}@{ROWS * 2 * size}"
    single = f"n16@{size} k{depth}@{ROWS * size}"
    text = pair if source == "bf16" else single
    more = f" n{groups}@$0" if groups > 1 else ""
    layout = Layout.parse(f"kn: {text}{more}")
    strides = [stride] if groups > 1 else []
    return b.copy(frame.weight, at, layout=layout, strides=strides, dtype=dtype)
