"""Opcode table: element arithmetic, on scalars, vectors and the elements of tiles."""

from __future__ import annotations

from poot_core import DType, boolean, i32
from poot_kernel.ir.core import Attribute
from poot_kernel.ir.specs import (
    REDUCE_KINDS,
    OpSpec,
    Request,
    Rule,
    RuleError,
    same_types,
    with_dtype,
)
from poot_kernel.ir.types import (
    BOOLEAN,
    ScalarType,
    Type,
    VectorType,
)

__all__ = ["ELEMENT_OPS"]


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


def _assume_multiple(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.integer(0)
    return (request.type(0),)


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
