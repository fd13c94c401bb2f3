"""Opcode table, part 1: element arithmetic, lane-level memory, subgroups and control flow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from poot_core import DType, boolean, i32
from poot_kernel.ir.core import Attribute
from poot_kernel.ir.sizes import Size, as_size
from poot_kernel.ir.specs import (
    Effect,
    OpSpec,
    Request,
    Rule,
    RuleError,
    Uniformity,
    same_types,
    with_dtype,
)
from poot_kernel.ir.types import (
    BOOLEAN,
    INDEX,
    ArrayType,
    ScalarType,
    SharedType,
    TileType,
    TokenType,
    Type,
    VectorType,
)

__all__ = ["CONTROL_OPS", "ELEMENT_OPS", "LANE_OPS"]

REDUCE_KINDS = ("add", "mul", "min", "max", "and", "or", "xor")
ATOMIC_KINDS = ("add", "min", "max", "and", "or", "exchange")


# ---- rules of element operations


def _arithmetic(arity: int, kinds: str) -> Rule:
    def rule(request: Request) -> tuple[Type, ...]:
        request.count(arity)
        return (same_types(request, kinds),)

    return rule


def _compare(request: Request) -> tuple[Type, ...]:
    request.count(2)
    return (with_dtype(same_types(request), boolean),)


def _select(request: Request) -> tuple[Type, ...]:
    request.count(3)
    chosen = request.elementwise(1)
    if request.type(2) != chosen:
        raise RuleError(f"branches differ in type: {chosen} and {request.type(2)}")
    if request.type(0) not in {BOOLEAN, with_dtype(chosen, boolean)}:
        raise RuleError(f"condition must be boolean, got {request.type(0)}")
    return (chosen,)


def _constant(request: Request) -> tuple[Type, ...]:
    request.count(0)
    dtype = request.attribute("dtype", DType)
    value = request.attributes.get("value")
    if isinstance(value, bool) != (dtype is boolean):
        raise RuleError(f"value {value!r} does not fit {dtype.name}")
    if dtype.is_integer:
        low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
        high = (1 << dtype.bits - (dtype.kind == "int")) - 1
        if not isinstance(value, int) or not low <= value <= high:
            raise RuleError(f"value {value!r} does not fit {dtype.name}")
    elif dtype.is_float and not isinstance(value, float):
        raise RuleError(f"value of a {dtype.name} must be a float, got {value!r}")
    return (ScalarType(dtype),)


def _convert(request: Request) -> tuple[Type, ...]:
    request.count(1)
    return (with_dtype(request.elementwise(0), request.attribute("dtype", DType)),)


def _bitcast(request: Request) -> tuple[Type, ...]:
    request.count(1)
    source = request.elementwise(0)
    dtype = request.attribute("dtype", DType)
    bits = source.dtype.bits * (source.count if isinstance(source, VectorType) else 1)
    if bits % dtype.bits:
        raise RuleError(f"cannot view {bits} bits as {dtype.name}")
    count = bits // dtype.bits
    return (ScalarType(dtype) if count == 1 else VectorType(dtype, count),)


def _dot4(request: Request) -> tuple[Type, ...]:
    request.count(3)
    for index in (0, 1):
        if request.elementwise(index, "integer").dtype.bits != 32:
            raise RuleError(f"operand {index} must be four bytes packed into 32 bits")
    accumulator = request.elementwise(2)
    if accumulator.dtype is not i32:
        raise RuleError(f"accumulator must be i32, got {accumulator}")
    return (accumulator,)


def _dot2(request: Request) -> tuple[Type, ...]:
    request.count(3)
    if request.attribute("dtype", DType).name not in {"bf16", "f16"}:
        raise RuleError("attribute 'dtype' must be bf16 or f16")
    for index in (0, 1):
        if request.elementwise(index, "integer").dtype.bits != 32:
            raise RuleError(f"operand {index} must be two 16-bit floats packed into 32 bits")
    accumulator = request.elementwise(2, "float")
    if accumulator.dtype.name != "f32":
        raise RuleError(f"accumulator must be f32, got {accumulator}")
    return (accumulator,)


def _lut16(request: Request) -> tuple[Type, ...]:
    request.count(1)
    if len(request.integers("table")) != 16:
        raise RuleError("attribute 'table' must hold 16 integers")
    return (with_dtype(request.elementwise(0, "integer"), request.attribute("dtype", DType)),)


def _vector_build(request: Request) -> tuple[Type, ...]:
    request.count(1, 64)
    first = same_types(request)
    if isinstance(first, VectorType):
        raise RuleError("takes scalars")
    return (VectorType(first.dtype, len(request.operands)),)


def _splat(request: Request) -> tuple[Type, ...]:
    request.count(1)
    return (VectorType(request.elementwise(0).dtype, request.attribute("count", int)),)


def _vector_element(request: Request) -> VectorType:
    found = request.type(0)
    index = request.attribute("index", int)
    if not isinstance(found, VectorType) or not 0 <= index < found.count:
        raise RuleError(f"index {index} is outside of {found}")
    return found


def _extract(request: Request) -> tuple[Type, ...]:
    request.count(1)
    return (ScalarType(_vector_element(request).dtype),)


def _insert(request: Request) -> tuple[Type, ...]:
    request.count(2)
    vector = _vector_element(request)
    if request.type(1) != ScalarType(vector.dtype):
        raise RuleError(f"cannot insert {request.type(1)} into {vector}")
    return (vector,)


def _vector_reduce(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.one_of("kind", REDUCE_KINDS)
    return (ScalarType(request.elementwise(0).dtype),)


# ---- rules of memory and lane operations


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


def _query(request: Request) -> tuple[Type, ...]:
    request.count(0)
    if "axis" in request.attributes and request.attribute("axis", int) not in {0, 1, 2}:
        raise RuleError("attribute 'axis' must be 0, 1 or 2")
    return (INDEX,)


def _group_reduce(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.one_of("kind", REDUCE_KINDS)
    return (request.elementwise(0),)


def _shuffle(request: Request) -> tuple[Type, ...]:
    request.count(2)
    request.integer(1)
    return (request.elementwise(0),)


def _shuffle_xor(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.attribute("lane_mask", int)
    return (request.elementwise(0),)


def _vote(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.condition(0)
    request.one_of("kind", ("any", "all"))
    return (BOOLEAN,)


def _barrier(request: Request) -> tuple[Type, ...]:
    request.count(0)
    request.one_of("scope", ("workgroup", "subgroup"))
    return ()


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


def _assume_multiple(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.integer(0)
    return (request.type(0),)


# ---- rules of control flow


def _yielded(request: Request, region: int) -> list[Type]:
    return [value.type for value in request.regions[region].terminator.operands]


def _match(got: Sequence[Type], expected: Sequence[Type], what: str) -> None:
    if list(got) != list(expected):
        raise RuleError(
            f"{what}: got ({', '.join(map(str, got))}), expected ({', '.join(map(str, expected))})"
        )


def _carried(request: Request, start: int) -> list[Type]:
    found = [value.type for value in request.operands[start:]]
    for carried in found:
        if isinstance(carried, ArrayType | SharedType | TokenType):
            raise RuleError(f"a loop cannot carry {carried}")
    return found


def _loop(bounds: int) -> Rule:
    def rule(request: Request) -> tuple[Type, ...]:
        for index in range(bounds):
            request.integer(index)
            if request.type(index) != INDEX:
                raise RuleError(f"bound {index} must be {INDEX}, got {request.type(index)}")
        carried = _carried(request, bounds)
        arguments = [value.type for value in request.regions[0].arguments]
        _match(arguments, [INDEX, *carried], "body arguments")
        _match(_yielded(request, 0), carried, "body yields")
        return tuple(carried)

    return rule


def _foreach(request: Request) -> tuple[Type, ...]:
    request.one_of("scope", ("workgroup", "subgroup"))
    return _loop(2)(request)


def _while(request: Request) -> tuple[Type, ...]:
    carried = _carried(request, 0)
    for region in request.regions:
        _match([v.type for v in region.arguments], carried, "region arguments")
    test = request.regions[0].terminator
    if test.opcode != "condition":
        raise RuleError("the first region must end in condition")
    _match([v.type for v in test.operands[1:]], carried, "condition passes")
    _match(_yielded(request, 1), carried, "body yields")
    return tuple(carried)


def _if(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.condition(0)
    _match(_yielded(request, 1), _yielded(request, 0), "else yields")
    return tuple(_yielded(request, 0))


def _condition(request: Request) -> tuple[Type, ...]:
    request.count(1, 1 << 16)
    request.condition(0)
    return ()


def _pipeline(request: Request) -> tuple[Type, ...]:
    for index in range(3):
        if request.type(index) != INDEX:
            raise RuleError(f"bound {index} must be {INDEX}, got {request.type(index)}")
    carried = _carried(request, 3)
    load, compute = request.regions
    _match([v.type for v in load.arguments], [INDEX], "load arguments")
    moved: list[Type] = [t.tile if isinstance(t, TokenType) else t for t in _yielded(request, 0)]
    if not all(isinstance(t, TileType) for t in moved):
        raise RuleError("the load part must yield tiles or tokens")
    arguments = [v.type for v in compute.arguments]
    _match(arguments, [INDEX, *carried, *moved], "compute arguments")
    _match(_yielded(request, 1), carried, "compute yields")
    return tuple(carried)


def _nothing(request: Request) -> tuple[Type, ...]:
    return ()


# ---- the table


def _element(
    name: str,
    operands: str,
    rule: Rule,
    doc: str,
    attributes: dict[str, Attribute | None] | None = None,
    *,
    commutative: bool = False,
) -> OpSpec:
    return OpSpec(
        name=name,
        level="both",
        operands=operands,
        rule=rule,
        attributes=attributes or {},
        is_elementwise=True,
        is_commutative=commutative,
        doc=doc,
    )


def _lane(
    name: str,
    operands: str,
    rule: Rule,
    effect: Effect,
    doc: str,
    attributes: dict[str, Attribute | None] | None = None,
    *,
    uniformity: Uniformity | None = None,
    uniform: bool = False,
    both: bool = False,
) -> OpSpec:
    return OpSpec(
        name=name,
        level="both" if both else "lane",
        operands=operands,
        rule=rule,
        attributes=attributes or {},
        effect=effect,
        uniformity=uniformity,
        needs_uniform=uniform,
        doc=doc,
    )


def _control(
    name: str,
    operands: str,
    rule: Rule,
    regions: int,
    doc: str,
    attributes: dict[str, Attribute | None] | None = None,
    *,
    level: str = "both",
    terminator: bool = False,
) -> OpSpec:
    return OpSpec(
        name=name,
        level="lane" if level == "lane" else "tile" if level == "tile" else "both",
        operands=operands,
        rule=rule,
        attributes=attributes or {},
        num_regions=regions,
        is_terminator=terminator,
        doc=doc,
    )


def _float_unary(name: str, doc: str) -> OpSpec:
    return _element(name, "x: float", _arithmetic(1, "float"), doc)


_BINARY = {
    "add": ("number", True, "a + b; wraps for integers, never contracted without fastmath"),
    "sub": ("number", False, "a - b"),
    "mul": ("number", True, "a * b"),
    "div": ("float", False, "a / b, correctly rounded"),
    "floordiv": ("integer", False, "quotient rounded down, as Python's //"),
    "mod": ("integer", False, "remainder of floordiv, as Python's %"),
    "min": ("number", True, "the smaller; with a NaN either operand"),
    "max": ("number", True, "the larger; with a NaN either operand"),
    "mul_high": ("integer", True, "upper half of the double-width product"),
    "and": ("bits", True, "bitwise and"),
    "or": ("bits", True, "bitwise or"),
    "xor": ("bits", True, "bitwise exclusive or"),
    "shl": ("integer", False, "shift left by less than the width"),
    "shr": ("integer", False, "shift right: arithmetic if signed, logical if not"),
}
_UNARY = {
    "exp": "e ** x",
    "exp2": "2 ** x",
    "log": "natural logarithm",
    "log2": "logarithm to base 2",
    "sqrt": "square root, correctly rounded",
    "rsqrt": "1 / sqrt(x)",
    "sin": "sine of radians",
    "cos": "cosine of radians",
    "tanh": "hyperbolic tangent",
    "erf": "error function",
    "floor": "round down",
    "ceil": "round up",
    "trunc": "round towards zero",
    "rint": "round to nearest, ties to even",
}
_COMPARE = {
    "eq": "a == b",
    "ne": "a != b",
    "lt": "a < b",
    "le": "a <= b",
    "gt": "a > b",
    "ge": "a >= b",
}

ELEMENT_OPS: tuple[OpSpec, ...] = (
    _element("constant", "", _constant, "a literal", {"value": None, "dtype": None}),
    *(
        _element(name, "a, b", _arithmetic(2, kinds), doc, commutative=swaps)
        for name, (kinds, swaps, doc) in _BINARY.items()
    ),
    _element("fma", "a, b, c: float", _arithmetic(3, "float"), "a * b + c, rounded once"),
    _element("pow", "a, b: float", _arithmetic(2, "float"), "a ** b"),
    _element("neg", "x", _arithmetic(1, "number"), "-x"),
    _element("abs", "x", _arithmetic(1, "number"), "absolute value"),
    _element("not", "x", _arithmetic(1, "bits"), "bitwise complement"),
    _element("count_ones", "x", _arithmetic(1, "integer"), "bits set"),
    *(_float_unary(name, doc) for name, doc in _UNARY.items()),
    *(
        _element(
            name,
            "a, b",
            _compare,
            f"{doc}; NaN is unequal and unordered",
            commutative=name in {"eq", "ne"},
        )
        for name, doc in _COMPARE.items()
    ),
    _element("select", "condition, a, b", _select, "a where the condition holds, else b"),
    _element(
        "convert",
        "x",
        _convert,
        "to another dtype: to float rounds to nearest even, to integer truncates (out of range: "
        "unspecified, or clamped with saturate), integers wrap, to boolean is x != 0",
        {"dtype": None, "saturate": False},
    ),
    _element("bitcast", "x", _bitcast, "the same bits as dtype, little-endian", {"dtype": None}),
    _element(
        "dot4",
        "a, b: 32 bits, acc: i32",
        _dot4,
        "acc + sum of four byte products, exact modulo 2**32",
        {"a_signed": True, "b_signed": True},
    ),
    _element(
        "dot2",
        "a, b: 32 bits, acc: f32",
        _dot2,
        "fma(low, fma(high, acc)) of two 16-bit float pairs",
        {"dtype": None},
    ),
    _element("lut16", "index", _lut16, "table[index & 15]", {"table": None, "dtype": None}),
    _element("vector_build", "scalars...", _vector_build, "a vector of scalars"),
    _element("splat", "x", _splat, "a vector of equal elements", {"count": None}),
    _element("extract", "v", _extract, "one element", {"index": None}),
    _element("insert", "v, x", _insert, "v with one element replaced", {"index": None}),
    _element(
        "vector_reduce", "v", _vector_reduce, "elements combined in ascending order", {"kind": None}
    ),
    _element(
        "assume_multiple",
        "x",
        _assume_multiple,
        "x, promised to be a multiple of factor",
        {"factor": None},
    ),
)

LANE_OPS: tuple[OpSpec, ...] = (
    _lane(
        "load",
        "memory, indices..., [mask, [other]]",
        _load,
        "read",
        "element or count contiguous elements; masked lanes get other (zero); dtype reads a raw "
        "byte array at a byte offset",
        {"count": 1, "dtype": False, "alignment": 0},
        both=True,
    ),
    _lane(
        "store",
        "memory, indices..., value, [mask]",
        _store,
        "write",
        "write a scalar or a vector's contiguous elements",
        {"alignment": 0},
        both=True,
    ),
    _lane(
        "prefetch",
        "memory, indices...",
        _prefetch,
        "read",
        "hint; may address past the end",
        both=True,
    ),
    _lane(
        "atomic",
        "memory, indices..., value, [mask]",
        _atomic,
        "write",
        "combine relaxed at device scope; the old value",
        {"kind": None},
        uniformity=Uniformity.VARYING,
    ),
    _lane(
        "shared_alloc",
        "",
        _shared_alloc,
        "sync",
        "uninitialised workgroup memory",
        {"dtype": None, "shape": None},
        both=True,
        uniform=True,
    ),
    _lane(
        "constant_table",
        "",
        _constant_table,
        "pure",
        "read-only memory that holds these integers, row-major",
        {"dtype": None, "shape": None, "values": None},
        both=True,
    ),
    _lane("extent", "memory", _extent, "pure", "extent of an axis", {"axis": None}, both=True),
    _lane(
        "workgroup_id",
        "",
        _query,
        "pure",
        "workgroup's coordinate",
        {"axis": 0},
        both=True,
        uniformity=Uniformity.WORKGROUP,
    ),
    _lane(
        "grid_size",
        "",
        _query,
        "pure",
        "workgroups along an axis",
        {"axis": 0},
        both=True,
        uniformity=Uniformity.WORKGROUP,
    ),
    _lane(
        "local_id",
        "",
        _query,
        "pure",
        "invocation in its workgroup; subgroups are contiguous",
        uniformity=Uniformity.VARYING,
    ),
    _lane(
        "local_size",
        "",
        _query,
        "pure",
        "invocations of a workgroup",
        uniformity=Uniformity.WORKGROUP,
    ),
    _lane(
        "subgroup_id",
        "",
        _query,
        "pure",
        "subgroup in its workgroup",
        uniformity=Uniformity.SUBGROUP,
    ),
    _lane(
        "num_subgroups",
        "",
        _query,
        "pure",
        "subgroups of a workgroup",
        uniformity=Uniformity.WORKGROUP,
    ),
    _lane(
        "subgroup_lane",
        "",
        _query,
        "pure",
        "invocation in its subgroup",
        uniformity=Uniformity.VARYING,
    ),
    _lane(
        "subgroup_size",
        "",
        _query,
        "pure",
        "invocations of a subgroup",
        uniformity=Uniformity.WORKGROUP,
    ),
    _lane(
        "subgroup_reduce",
        "x",
        _group_reduce,
        "pure",
        "active lanes combined by halving: lane i with lane i + size / 2 first",
        {"kind": None},
        uniformity=Uniformity.SUBGROUP,
    ),
    _lane(
        "subgroup_scan",
        "x",
        _group_reduce,
        "pure",
        "prefix combination by ascending lane",
        {"kind": None, "exclusive": False},
        uniformity=Uniformity.VARYING,
    ),
    _lane(
        "subgroup_shuffle",
        "x, lane",
        _shuffle,
        "pure",
        "x of another lane",
        uniformity=Uniformity.VARYING,
    ),
    _lane(
        "subgroup_shuffle_xor",
        "x",
        _shuffle_xor,
        "pure",
        "x of lane ^ lane_mask",
        {"lane_mask": None},
        uniformity=Uniformity.VARYING,
    ),
    _lane(
        "subgroup_broadcast",
        "x, lane",
        _shuffle,
        "pure",
        "x of one lane, uniform",
        uniformity=Uniformity.SUBGROUP,
    ),
    _lane(
        "subgroup_vote",
        "x",
        _vote,
        "pure",
        "any or all of the active lanes",
        {"kind": None},
        uniformity=Uniformity.SUBGROUP,
    ),
    _lane(
        "workgroup_reduce",
        "x",
        _group_reduce,
        "sync",
        "subgroup_reduce, then subgroups in ascending order",
        {"kind": None},
        uniform=True,
        uniformity=Uniformity.WORKGROUP,
    ),
    _lane(
        "barrier",
        "",
        _barrier,
        "sync",
        "order memory among the scope's invocations",
        {"scope": "workgroup"},
        uniform=True,
    ),
    _lane(
        "clamp_index",
        "status, index, extent, row",
        _clamp_index,
        "write",
        "index clamped into [0, extent); out of range sets bit and row in the status word",
        {"bit": None},
        both=True,
    ),
    _lane(
        "status_set",
        "status, row, [mask]",
        _status_set,
        "write",
        "set bit and row in the status word",
        {"bit": None},
        both=True,
    ),
)

CONTROL_OPS: tuple[OpSpec, ...] = (
    _control(
        "for",
        "lower, upper, step, carried...",
        _loop(3),
        1,
        "counted loop: body(index, carried...) yields carried; step is positive; static "
        "asks for full unrolling and needs constant bounds; dealt says that turns are independent "
        "and carry nothing, so that subgroups may share them",
        {"unroll": 1, "static": False, "dealt": False},
    ),
    _control(
        "foreach",
        "lower, upper, carried...",
        _foreach,
        1,
        "each index once, dealt round-robin to the scope's invocations in ascending order: "
        "index = lower + lane + j * size, lanes past the end are masked",
        {"scope": "workgroup", "unroll": 1},
        level="lane",
    ),
    _control(
        "while",
        "carried...",
        _while,
        2,
        "region 0 ends in condition(test, carried...), region 1 yields carried",
    ),
    _control("if", "condition", _if, 2, "then and else yield the results"),
    _control(
        "pipeline",
        "lower, upper, step, carried...",
        _pipeline,
        2,
        "region 0 load(index) yields tiles or tokens and may run stages - 1 iterations ahead; "
        "region 1 compute(index, carried..., tiles...) yields carried",
        {"stages": 2},
        level="tile",
    ),
    _control("yield", "values...", _nothing, 0, "end of a region", terminator=True),
    _control(
        "condition",
        "test, values...",
        _condition,
        0,
        "end of a while's first region",
        terminator=True,
    ),
)
