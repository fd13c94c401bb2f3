"""Rules of element operations: scalars, vectors (a last axis) and elements of tiles alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from poot_core import DType, boolean, i32, i64, u64
from poot_kernel.interpreter._machine import Array, Machine, Rule
from poot_kernel.interpreter._rounding import fused_multiply_add, narrow
from poot_kernel.interpreter.errors import KernelFault
from poot_kernel.ir import Op, ScalarType, TileType, Value, VectorType

__all__ = ["COMBINE", "ELEMENT_RULES", "combine", "convert", "element_dtype"]


def element_dtype(value: Value) -> DType:
    """Return a value's element type."""
    assert isinstance(value.type, ScalarType | VectorType | TileType)
    return value.type.dtype


def _typed(x: Any, dtype: DType) -> Array:
    return np.asarray(x).astype(dtype.numpy, copy=False)


def _align(op: Op, items: Sequence[Array]) -> list[Array]:
    """Give scalars a last axis where other operands are vectors."""
    is_vector = [isinstance(operand.type, VectorType) for operand in op.operands]
    if not any(is_vector):
        return list(items)
    return [item if wide else item[..., None] for item, wide in zip(items, is_vector, strict=True)]


def _on_arrays(apply: Callable[..., Any]) -> Rule:
    """Return a rule that applies a function of arrays and keeps the result's dtype."""

    def rule(machine: Machine, op: Op) -> Sequence[Any]:
        items = _align(op, [machine.array(operand) for operand in op.operands])
        return (_typed(apply(*items), element_dtype(op.result)),)

    return rule


def _in_f64(apply: Callable[..., Any]) -> Rule:
    """Return a rule that computes in f64 and rounds once."""

    def rule(machine: Machine, op: Op) -> Sequence[Any]:
        wide = machine.array(op.operands[0]).astype(np.float64)
        return (narrow(np.asarray(apply(wide)), element_dtype(op.result)),)

    return rule


def _constant(machine: Machine, op: Op) -> Sequence[Any]:
    dtype = element_dtype(op.result)
    value = np.asarray(cast("Any", op.attributes["value"]), np.float64 if dtype.is_float else None)
    return (np.broadcast_to(narrow(value, dtype) if dtype.is_float else _typed(value, dtype),
                            machine.mask.shape),)  # fmt: skip


def _pow(machine: Machine, op: Op) -> Sequence[Any]:
    a, b = _align(op, [machine.array(operand).astype(np.float64) for operand in op.operands])
    return (narrow(np.power(a, b), element_dtype(op.result)),)


def _fma(machine: Machine, op: Op) -> Sequence[Any]:
    items = [machine.array(operand) for operand in op.operands]
    return (fused_multiply_add(*items, dtype=element_dtype(op.result)),)


def _mul_high(machine: Machine, op: Op) -> Sequence[Any]:
    dtype = element_dtype(op.result)
    a, b = (machine.array(operand) for operand in op.operands)
    wide = np.multiply(a.astype(object), b.astype(object)) if dtype in {i64, u64} else (
        a.astype(np.int64) * b.astype(np.int64) if dtype.kind == "int"
        else a.astype(np.uint64) * b.astype(np.uint64)
    )  # fmt: skip
    return (_typed(wide >> dtype.bits, dtype),)


def _count_ones(x: Array) -> Array:
    return np.bitwise_count(np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}"))


def _select(machine: Machine, op: Op) -> Sequence[Any]:
    condition, a, b = _align(op, [machine.array(operand) for operand in op.operands])
    return (np.where(condition, a, b),)


def convert(x: Array, source: DType, dtype: DType, *, saturate: bool = False) -> Array:
    """Return elements in another dtype."""
    if dtype is boolean:
        return x != 0
    if dtype.is_float:
        if source.is_float and source.bits <= 32:
            return x.astype(dtype.numpy)
        return narrow(x.astype(np.float64), dtype)
    if source.is_float:
        x = np.trunc(x.astype(np.float64))
    if saturate:
        limits = np.iinfo(dtype.numpy)
        x = np.where(np.isnan(x), 0, x) if source.is_float else x
        low, high = x <= limits.min, x >= limits.max
        middle = np.where(low | high, 0, x).astype(dtype.numpy)
        return np.where(low, limits.min, np.where(high, limits.max, middle)).astype(dtype.numpy)
    return x.astype(np.int64).astype(dtype.numpy) if source.is_float else x.astype(dtype.numpy)


def _convert(machine: Machine, op: Op) -> Sequence[Any]:
    (operand,) = op.operands
    dtype = element_dtype(op.result)
    saturate = bool(op.attributes.get("saturate", False))
    return (convert(machine.array(operand), element_dtype(operand), dtype, saturate=saturate),)


def _bitcast(machine: Machine, op: Op) -> Sequence[Any]:
    (operand,) = op.operands
    item = machine.array(operand)
    wide = item if isinstance(operand.type, VectorType) else item[..., None]
    found = np.ascontiguousarray(wide).view(element_dtype(op.result).numpy)
    return (found if isinstance(op.result.type, VectorType) else found[..., 0],)


def _dot4(machine: Machine, op: Op) -> Sequence[Any]:
    a, b, acc = (np.ascontiguousarray(machine.array(operand)) for operand in op.operands)
    signs = (op.attributes["a_signed"], op.attributes["b_signed"])
    bytes_a, bytes_b = (
        x[..., None].view(np.int8 if signed else np.uint8).astype(np.int64)
        for x, signed in zip((a, b), signs, strict=True)
    )
    return (_typed(acc.astype(np.int64) + (bytes_a * bytes_b).sum(-1), i32),)


def _dot2(machine: Machine, op: Op) -> Sequence[Any]:
    dtype = cast("DType", op.attributes["dtype"])
    a, b, acc = (machine.array(operand) for operand in op.operands)
    halves = [np.ascontiguousarray(x)[..., None].view(dtype.numpy) for x in (a, b)]
    for index in (1, 0):
        acc = fused_multiply_add(
            halves[0][..., index], halves[1][..., index], acc, element_dtype(op.result)
        )
    return (acc,)


def _lut16(machine: Machine, op: Op) -> Sequence[Any]:
    dtype = element_dtype(op.result)
    table = np.asarray(cast("tuple[int, ...]", op.attributes["table"])).astype(dtype.numpy)
    return (table[(machine.array(op.operands[0]) & 15).astype(np.int64)],)


def _vector_build(machine: Machine, op: Op) -> Sequence[Any]:
    items = np.broadcast_arrays(*(machine.array(operand) for operand in op.operands))
    return (np.stack(items, -1),)


def _splat(machine: Machine, op: Op) -> Sequence[Any]:
    item = machine.array(op.operands[0])[..., None]
    return (np.repeat(item, cast("int", op.attributes["count"]), -1),)


def _extract(machine: Machine, op: Op) -> Sequence[Any]:
    return (machine.array(op.operands[0])[..., cast("int", op.attributes["index"])],)


def _insert(machine: Machine, op: Op) -> Sequence[Any]:
    vector, item = (machine.array(operand) for operand in op.operands)
    shape = np.broadcast_shapes(vector.shape[:-1], item.shape)
    result = np.broadcast_to(vector, (*shape, vector.shape[-1])).copy()
    result[..., cast("int", op.attributes["index"])] = item
    return (result,)


COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""Reduction kind -> its operation on arrays of one dtype, each rounding once."""


def combine(kind: str, a: Array, b: Array) -> Array:
    """Return one step of a reduction, in the dtype of a."""
    return np.asarray(COMBINE[kind](a, b)).astype(a.dtype, copy=False)


def _vector_reduce(machine: Machine, op: Op) -> Sequence[Any]:
    vector = machine.array(op.operands[0])
    if not isinstance(op.operands[0].type, VectorType):
        return (vector,)
    result = vector[..., 0]
    for index in range(1, vector.shape[-1]):
        result = combine(str(op.attributes["kind"]), result, vector[..., index])
    return (result,)


def _assume_multiple(machine: Machine, op: Op) -> Sequence[Any]:
    item = machine.array(op.operands[0])
    factor = cast("int", op.attributes["factor"])
    if machine.check and (item[machine.mask] % factor).any():
        raise KernelFault(f"promises a multiple of {factor}, got {item[machine.mask]}")
    return (item,)


_erf = np.frompyfunc(math.erf, 1, 1)


def _erf_f64(x: Array) -> Array:
    return np.asarray(_erf(x)).astype(np.float64)


def _rsqrt_f64(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


ELEMENT_RULES: dict[str, Rule] = {
    "constant": _constant,
    "add": _on_arrays(np.add),
    "sub": _on_arrays(np.subtract),
    "mul": _on_arrays(np.multiply),
    "div": _on_arrays(np.divide),
    "floordiv": _on_arrays(np.floor_divide),
    "mod": _on_arrays(np.remainder),
    "min": _on_arrays(np.minimum),
    "max": _on_arrays(np.maximum),
    "mul_high": _mul_high,
    "and": _on_arrays(np.bitwise_and),
    "or": _on_arrays(np.bitwise_or),
    "xor": _on_arrays(np.bitwise_xor),
    "shl": _on_arrays(np.left_shift),
    "shr": _on_arrays(np.right_shift),
    "fma": _fma,
    "pow": _pow,
    "neg": _on_arrays(np.negative),
    "abs": _on_arrays(np.abs),
    "not": _on_arrays(np.invert),
    "count_ones": _on_arrays(_count_ones),
    "exp": _in_f64(np.exp),
    "exp2": _in_f64(np.exp2),
    "log": _in_f64(np.log),
    "log2": _in_f64(np.log2),
    "sqrt": _on_arrays(np.sqrt),
    "rsqrt": _in_f64(_rsqrt_f64),
    "sin": _in_f64(np.sin),
    "cos": _in_f64(np.cos),
    "tanh": _in_f64(np.tanh),
    "erf": _in_f64(_erf_f64),
    "floor": _on_arrays(np.floor),
    "ceil": _on_arrays(np.ceil),
    "trunc": _on_arrays(np.trunc),
    "rint": _on_arrays(np.rint),
    "eq": _on_arrays(np.equal),
    "ne": _on_arrays(np.not_equal),
    "lt": _on_arrays(np.less),
    "le": _on_arrays(np.less_equal),
    "gt": _on_arrays(np.greater),
    "ge": _on_arrays(np.greater_equal),
    "select": _select,
    "convert": _convert,
    "bitcast": _bitcast,
    "dot4": _dot4,
    "dot2": _dot2,
    "lut16": _lut16,
    "vector_build": _vector_build,
    "splat": _splat,
    "extract": _extract,
    "insert": _insert,
    "vector_reduce": _vector_reduce,
    "assume_multiple": _assume_multiple,
}
"""Opcode -> rule."""
