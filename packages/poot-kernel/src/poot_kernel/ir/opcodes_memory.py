"""Opcode table: memory read and written by single lanes, and the status word."""

from __future__ import annotations

import math

from poot_core import DType
from poot_kernel.ir.sizes import Size, as_size
from poot_kernel.ir.specs import (
    OpSpec,
    Request,
    RuleError,
    Uniformity,
    lane_op,
)
from poot_kernel.ir.types import (
    INDEX,
    ArrayType,
    ScalarType,
    SharedType,
    Type,
    VectorType,
)

__all__ = ["MEMORY_OPS", "access_dtype"]

ATOMIC_KINDS = ("add", "min", "max", "and", "or", "exchange")


def _indices(request: Request, rank: int, extra: int) -> None:
    request.count(1 + rank, 1 + rank + extra)
    for index in range(1, 1 + rank):
        request.integer(index)


def _element_type(request: Request, dtype: DType) -> ScalarType | VectorType:
    count = request.attribute("count", int)
    if count < 1:
        raise RuleError(f"attribute 'count' must be positive, got {count}")
    return ScalarType(dtype) if count == 1 else VectorType(dtype, count)


def access_dtype(request: Request) -> DType:
    """Return the dtype an access reads: the array's, or any out of a raw byte array."""
    memory = request.memory()
    dtype = request.attributes.get("dtype")
    if not isinstance(dtype, DType) or dtype is memory.dtype:
        return memory.dtype
    if memory.dtype.name != "u8" or memory.rank != 1:
        raise RuleError(f"only a u8 array of rank 1 can be read as {dtype.name}, not {memory}")
    return dtype


def _load(request: Request) -> tuple[Type, ...]:
    memory = request.memory()
    request.readable(memory)
    _indices(request, memory.rank, 2)
    found = _element_type(request, access_dtype(request))
    if len(request.operands) > 1 + memory.rank:
        request.condition(1 + memory.rank)
    if len(request.operands) > 2 + memory.rank and request.type(2 + memory.rank) != found:
        raise RuleError(f"value for masked lanes must be {found}")
    return (found,)


def _store(request: Request) -> tuple[Type, ...]:
    memory = request.memory()
    request.writable(memory)
    request.count(2 + memory.rank, 3 + memory.rank)
    for index in range(1, 1 + memory.rank):
        request.integer(index)
    value = request.elementwise(1 + memory.rank)
    raw = memory.dtype.name == "u8" and memory.rank == 1
    if value.dtype is not memory.dtype and not raw:
        raise RuleError(f"cannot store {value} into {memory}")
    if len(request.operands) > 2 + memory.rank:
        request.condition(2 + memory.rank)
    return ()


def _prefetch(request: Request) -> tuple[Type, ...]:
    _indices(request, request.memory().rank, 0)
    return ()


def _atomic(request: Request) -> tuple[Type, ...]:
    memory = request.memory()
    request.writable(memory)
    request.one_of("kind", ATOMIC_KINDS)
    request.count(2 + memory.rank, 3 + memory.rank)
    for index in range(1, 1 + memory.rank):
        request.integer(index)
    if request.type(1 + memory.rank) != ScalarType(memory.dtype):
        raise RuleError(f"cannot combine {request.type(1 + memory.rank)} into {memory}")
    return (ScalarType(memory.dtype),)


def _shared_alloc(request: Request) -> tuple[Type, ...]:
    request.count(0)
    sizes = tuple(s for s in request.attribute("shape", tuple) if isinstance(s, Size))
    if not sizes:
        raise RuleError("attribute 'shape' must hold sizes")
    return (SharedType(request.attribute("dtype", DType), sizes),)


def _constant_table(request: Request) -> tuple[Type, ...]:
    request.count(0)
    dtype, shape = request.attribute("dtype", DType), request.integers("shape")
    values = request.integers("values")
    if not dtype.is_integer or not shape or len(values) != math.prod(shape):
        raise RuleError(f"{len(values)} values of {dtype.name} do not fill integers of {shape}")
    low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
    if min(values) < low or max(values) >= low + (1 << dtype.bits):
        raise RuleError(f"values {min(values)}..{max(values)} do not fit {dtype.name}")
    return (ArrayType(dtype, tuple(as_size(n) for n in shape), alignment=dtype.itemsize),)


def _extent(request: Request) -> tuple[Type, ...]:
    request.count(1)
    axis = request.attribute("axis", int)
    memory = request.memory()
    if not 0 <= axis < memory.rank or memory.shape[axis] is None:
        raise RuleError(f"axis {axis} of {memory} has no known extent")
    return (INDEX,)


def _clamp_index(request: Request) -> tuple[Type, ...]:
    request.count(4)
    if not isinstance(request.type(0), ArrayType):
        raise RuleError(f"operand 0 must be the status array, got {request.type(0)}")
    for index in (1, 2, 3):
        request.integer(index)
    return (INDEX,)


def _status_set(request: Request) -> tuple[Type, ...]:
    request.count(2, 3)
    if not isinstance(request.type(0), ArrayType):
        raise RuleError(f"operand 0 must be the status array, got {request.type(0)}")
    request.integer(1)
    return ()


MEMORY_OPS: tuple[OpSpec, ...] = (
    lane_op(
        "load",
        "memory, indices..., [mask, [other]]",
        _load,
        "read",
        "element or count contiguous elements; masked lanes get other (zero); dtype reads a raw "
        "byte array at a byte offset",
        {"count": 1, "dtype": False, "alignment": 0},
        both=True,
    ),
    lane_op(
        "store",
        "memory, indices..., value, [mask]",
        _store,
        "write",
        "write a scalar or a vector's contiguous elements",
        {"alignment": 0},
        both=True,
    ),
    lane_op(
        "prefetch",
        "memory, indices...",
        _prefetch,
        "read",
        "hint; may address past the end",
        both=True,
    ),
    lane_op(
        "atomic",
        "memory, indices..., value, [mask]",
        _atomic,
        "write",
        "combine relaxed at device scope; the old value",
        {"kind": None},
        uniformity=Uniformity.VARYING,
    ),
    lane_op(
        "shared_alloc",
        "",
        _shared_alloc,
        "sync",
        "uninitialised workgroup memory",
        {"dtype": None, "shape": None},
        both=True,
        uniform=True,
    ),
    lane_op(
        "constant_table",
        "",
        _constant_table,
        "pure",
        "read-only memory that holds these integers, row-major",
        {"dtype": None, "shape": None, "values": None},
        both=True,
    ),
    lane_op("extent", "memory", _extent, "pure", "extent of an axis", {"axis": None}, both=True),
    lane_op(
        "clamp_index",
        "status, index, extent, row",
        _clamp_index,
        "write",
        "index clamped into [0, extent); out of range sets bit and row in the status word",
        {"bit": None},
        both=True,
    ),
    lane_op(
        "status_set",
        "status, row, [mask]",
        _status_set,
        "write",
        "set bit and row in the status word",
        {"bit": None},
        both=True,
    ),
)
