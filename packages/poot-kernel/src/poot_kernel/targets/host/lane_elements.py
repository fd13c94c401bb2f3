"""Element operations of lane kernels: arithmetic, comparison, conversion, math, small vectors."""

from __future__ import annotations

from poot_core import DType, bf16, f32
from poot_kernel.ir import Op, ScalarType, Value, VectorType
from poot_kernel.targets.host.lane_context import LaneContext, Lowering
from poot_kernel.targets.host.lane_values import (
    Held,
    element_count,
    element_type,
    vector_type,
)

__all__ = ["ELEMENTS"]

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_BITWISE = {"and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_PREDICATES = {
    "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne"), "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"), "gt": ("ogt", "sgt", "ugt"), "ge": ("oge", "sge", "uge"),
}  # fmt: skip
_INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint"}


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, ScalarType | VectorType)
    return value.type.dtype


def _result(ctx: LaneContext, op: Op, name: str, varying: bool) -> None:
    ctx.set(op.result, name, varying=varying)


def _suffix(kind: str) -> str:
    """Return an overloaded intrinsic's suffix for a type such as ``<16 x float>``."""
    names = {"float": "f32", "double": "f64", "half": "f16"}
    if not kind.startswith("<"):
        return names.get(kind, kind)
    count, element = kind[1:-1].split(" x ")
    return f"v{count}{names.get(element, element)}"


def _constant(ctx: LaneContext, op: Op) -> None:
    value, dtype = op.attributes["value"], op.attributes["dtype"]
    assert isinstance(value, bool | int | float)
    assert isinstance(dtype, DType)
    ctx.held[op.result] = ctx.literal(value, dtype)


def _binary(ctx: LaneContext, op: Op) -> None:
    a, b = op.operands
    dtype = _dtype(a)
    if dtype.name == "i64" and op.opcode in {"add", "sub", "mul"} and element_count(a.type) == 1:
        _index_arithmetic(ctx, op)
        return
    varying = ctx.is_varying(a, b)
    kind = ctx.type_of(a, varying=varying)
    x, y = (ctx.register(v, varying=varying) for v in (a, b))
    _result(ctx, op, _arithmetic(ctx, op, dtype, kind, x, y), varying)


def _index_arithmetic(ctx: LaneContext, op: Op) -> None:
    a, b = (ctx.held[v] for v in op.operands)
    if op.opcode == "mul":
        ctx.held[op.result] = ctx.multiply_index(a, b)
        return
    if op.opcode == "sub":
        b = ctx.multiply_index(b, Held("-1", literal=-1))
    ctx.held[op.result] = ctx.add_index(a, b)


def _arithmetic(ctx: LaneContext, op: Op, dtype: DType, kind: str, x: str, y: str) -> str:
    w, name = ctx.w, op.opcode
    if dtype is bf16:
        raise ctx.unsupported(op, "takes f32, not bf16: convert first")
    if dtype.is_float:
        if name in {"min", "max"}:
            test = w.emit(f"fcmp {'olt' if name == 'min' else 'ogt'} {kind} {x}, {y}")
            flag = "i1" if not kind.startswith("<") else kind.replace(kind.split(" ")[-1], "i1>")
            return w.emit(f"select {flag} {test}, {kind} {x}, {kind} {y}")
        return w.emit(f"{_FLOAT[name]} {ctx.fast}{kind} {x}, {y}")
    signed = dtype.kind == "int"
    if name in {"min", "max"}:
        if dtype.kind == "bool":
            return w.emit(f"{'and' if name == 'min' else 'or'} {kind} {x}, {y}")
        full = f"llvm.{'s' if signed else 'u'}{name}.{_suffix(kind)}"
        return w.intrinsic(full, kind, [(kind, x), (kind, y)])
    if name == "shr":
        return w.emit(f"{'ashr' if signed else 'lshr'} {kind} {x}, {y}")
    if name in {"floordiv", "mod"}:
        return _floor_division(ctx, op, signed, kind, x, y)
    if name == "mul_high":
        return _multiply_high(ctx, dtype, kind, x, y)
    return w.emit(f"{_BITWISE.get(name, name)} {kind} {x}, {y}")


def _floor_division(ctx: LaneContext, op: Op, signed: bool, kind: str, x: str, y: str) -> str:
    w = ctx.w
    divisor = ctx.held[op.operands[1]].literal
    is_division = op.opcode == "floordiv"
    if isinstance(divisor, int) and divisor > 0 and divisor & (divisor - 1) == 0:
        element = element_type(_dtype(op.operands[0]))
        amount = divisor.bit_length() - 1 if is_division else divisor - 1
        count = 1 if not kind.startswith("<") else int(kind[1:].split(" ")[0])
        operand = ctx.splat(element, Held(str(amount), literal=amount), count)
        instruction = ("ashr" if signed else "lshr") if is_division else "and"
        return w.emit(f"{instruction} {kind} {x}, {operand}")
    if not signed:
        return w.emit(f"{'udiv' if is_division else 'urem'} {kind} {x}, {y}")
    zero = "0" if not kind.startswith("<") else "zeroinitializer"
    flag = "i1" if not kind.startswith("<") else kind.replace(kind.split(" ")[-1], "i1>")
    rest = w.emit(f"srem {kind} {x}, {y}")
    signs = w.emit(f"icmp slt {kind} {w.emit(f'xor {kind} {rest}, {y}')}, {zero}")
    inexact = w.emit(f"icmp ne {kind} {rest}, {zero}")
    fix = w.emit(f"and {flag} {signs}, {inexact}")
    if is_division:
        quotient = w.emit(f"sdiv {kind} {x}, {y}")
        return w.emit(f"add {kind} {quotient}, {w.emit(f'sext {flag} {fix} to {kind}')}")
    fixed = w.emit(f"add {kind} {rest}, {y}")
    return w.emit(f"select {flag} {fix}, {kind} {fixed}, {kind} {rest}")


def _multiply_high(ctx: LaneContext, dtype: DType, kind: str, x: str, y: str) -> str:
    w = ctx.w
    element = f"i{dtype.bits}"
    wide = kind.replace(element, f"i{dtype.bits * 2}") if kind != element else f"i{dtype.bits * 2}"
    extend = "sext" if dtype.kind == "int" else "zext"
    a, b = (w.emit(f"{extend} {kind} {v} to {wide}") for v in (x, y))
    product = w.emit(f"mul {wide} {a}, {b}")
    count = 1 if not kind.startswith("<") else int(kind[1:].split(" ")[0])
    amount = ctx.splat(f"i{dtype.bits * 2}", Held(str(dtype.bits), literal=dtype.bits), count)
    return w.emit(f"trunc {wide} {w.emit(f'lshr {wide} {product}, {amount}')} to {kind}")


def _compare(ctx: LaneContext, op: Op) -> None:
    a, b = op.operands
    dtype = _dtype(a)
    varying = ctx.is_varying(a, b)
    kind = ctx.type_of(a, varying=varying)
    x, y = (ctx.register(v, varying=varying) for v in (a, b))
    if dtype is bf16:
        raise ctx.unsupported(op, "takes f32, not bf16: convert first")
    column = 0 if dtype.is_float else 1 if dtype.kind == "int" else 2
    instruction = "fcmp" if dtype.is_float else "icmp"
    predicate = _PREDICATES[op.opcode][column]
    _result(ctx, op, ctx.w.emit(f"{instruction} {predicate} {kind} {x}, {y}"), varying)


def _select(ctx: LaneContext, op: Op) -> None:
    condition, a, b = op.operands
    varying = ctx.is_varying(condition, a, b)
    kind = ctx.type_of(a, varying=varying)
    x, y = (ctx.register(v, varying=varying) for v in (a, b))
    if ctx.is_varying(condition) or element_count(condition.type) > 1:
        count = element_count(a.type)
        test = ctx.register(condition, varying=varying)
        if element_count(condition.type) == 1:
            test = repeat_mask(ctx, test, count)
        flags = vector_type("i1", count * (ctx.lanes if varying else 1))
    else:
        test, flags = ctx.uniform(condition), "i1"
    _result(ctx, op, ctx.w.emit(f"select {flags} {test}, {kind} {x}, {kind} {y}"), varying)


def repeat_mask(ctx: LaneContext, mask: str, count: int) -> str:
    """Return a mask over the lanes as one over ``count`` elements of each lane."""
    if count == 1:
        return mask
    order = ", ".join(f"i32 {lane}" for lane in range(ctx.lanes) for _ in range(count))
    kind = f"<{ctx.lanes} x i1>"
    return ctx.w.emit(
        f"shufflevector {kind} {mask}, {kind} poison, <{ctx.lanes * count} x i32> <{order}>"
    )


def _fma(ctx: LaneContext, op: Op) -> None:
    varying = ctx.is_varying(*op.operands)
    kind = ctx.type_of(op.operands[0], varying=varying)
    operands = [(kind, ctx.register(v, varying=varying)) for v in op.operands]
    _result(ctx, op, ctx.w.intrinsic(f"llvm.fma.{_suffix(kind)}", kind, operands), varying)


def _pow(ctx: LaneContext, op: Op) -> None:
    varying = ctx.is_varying(*op.operands)
    if _dtype(op.operands[0]) is not f32:
        raise ctx.unsupported(op, "takes f32 on the host")
    count = element_count(op.result.type) * (ctx.lanes if varying else 1)
    operands = [ctx.register(v, varying=varying) for v in op.operands]
    _result(ctx, op, ctx.w.math("pow", count, *operands), varying)


def _unary(ctx: LaneContext, op: Op) -> None:
    (x,) = op.operands
    dtype = _dtype(x)
    varying = ctx.is_varying(x)
    kind = ctx.type_of(x, varying=varying)
    name = ctx.register(x, varying=varying)
    w = ctx.w
    if dtype is bf16:
        raise ctx.unsupported(op, "takes f32, not bf16: convert first")
    if op.opcode == "neg":
        zero = "0" if not kind.startswith("<") else "zeroinitializer"
        found = w.emit(f"fneg {kind} {name}" if dtype.is_float else f"sub {kind} {zero}, {name}")
    elif op.opcode == "abs":
        found = (
            w.intrinsic(f"llvm.fabs.{_suffix(kind)}", kind, [(kind, name)])
            if dtype.is_float
            else w.intrinsic(f"llvm.abs.{_suffix(kind)}", kind, [(kind, name), ("i1", "false")])
        )
    elif op.opcode == "not":
        ones = "true" if dtype.kind == "bool" else "-1"
        literal = Held(ones, literal=-1)
        count = element_count(x.type) * (ctx.lanes if varying else 1)
        found = w.emit(f"xor {kind} {name}, {ctx.splat(element_type(dtype), literal, count)}")
    elif op.opcode == "count_ones":
        found = w.intrinsic(f"llvm.ctpop.{_suffix(kind)}", kind, [(kind, name)])
    elif op.opcode in _INTRINSICS:
        full = f"llvm.{_INTRINSICS[op.opcode]}.{_suffix(kind)}"
        found = w.intrinsic(full, kind, [(kind, name)])
    else:
        found = _math(ctx, op, dtype, kind, name)
    _result(ctx, op, found, varying)


def _math(ctx: LaneContext, op: Op, dtype: DType, kind: str, name: str) -> str:
    w = ctx.w
    count = 1 if not kind.startswith("<") else int(kind[1:].split(" ")[0])
    if op.opcode == "rsqrt":
        root = w.intrinsic(f"llvm.sqrt.{_suffix(kind)}", kind, [(kind, name)])
        one = ctx.splat(element_type(dtype), ctx.literal(1.0, dtype), count)
        return w.emit(f"fdiv {ctx.fast}{kind} {one}, {root}")
    if dtype is not f32:
        raise ctx.unsupported(op, f"takes f32 on the host, got {dtype.name}")
    return w.math(op.opcode, count, name)


def _convert(ctx: LaneContext, op: Op) -> None:
    (x,) = op.operands
    source, dtype = _dtype(x), op.attributes["dtype"]
    assert isinstance(dtype, DType)
    held = ctx.held[x]
    if source is dtype:
        ctx.held[op.result] = held
        return
    is_known = held.literal is not None and held.kind == "uniform" and source.is_integer
    if held.literal is not None and is_known and (dtype.is_float or dtype.name == "i64"):
        ctx.held[op.result] = ctx.literal(held.literal, dtype)
        return
    if held.kind == "affine" and dtype.name in {"i32", "u32", "f32"}:
        narrow = ctx.index_vector(held, "i32")
        if dtype is f32:
            kind = ctx.type_of(op.result, varying=True)
            narrow = ctx.w.emit(f"sitofp <{ctx.lanes} x i32> {narrow} to {kind}")
        _result(ctx, op, narrow, True)
        return
    varying = held.kind != "uniform"
    count = element_count(x.type) * (ctx.lanes if varying else 1)
    saturate = bool(op.attributes["saturate"])
    name = convert(ctx, ctx.register(x, varying=varying), source, dtype, count, saturate)
    _result(ctx, op, name, varying)


def convert(
    ctx: LaneContext, name: str, source: DType, dtype: DType, count: int, saturate: bool = False
) -> str:
    """Return ``count`` elements in another dtype."""
    w = ctx.w
    if source is bf16:
        wide = _from_bf16(ctx, name, count)
        return wide if dtype is f32 else convert(ctx, wide, f32, dtype, count, saturate)
    if dtype is bf16:
        if source is not f32:
            name = convert(ctx, name, source, f32, count)
        return _to_bf16(ctx, name, count)
    a, b = vector_type(element_type(source), count), vector_type(element_type(dtype), count)
    if dtype.name == "boolean":
        zero = ctx.splat(element_type(source), ctx.literal(0, source), count)
        return w.emit(f"{'fcmp une' if source.is_float else 'icmp ne'} {a} {name}, {zero}")
    if source.is_float and dtype.is_float:
        return w.emit(f"{'fptrunc' if dtype.bits < source.bits else 'fpext'} {a} {name} to {b}")
    if source.is_float:
        return _to_integer(ctx, name, a, dtype, count, saturate)
    if dtype.is_float:
        return w.emit(f"{'sitofp' if source.kind == 'int' else 'uitofp'} {a} {name} to {b}")
    bits = 1 if source.name == "boolean" else source.bits
    if dtype.bits == bits:
        return name
    if dtype.bits < bits:
        return w.emit(f"trunc {a} {name} to {b}")
    return w.emit(f"{'sext' if source.kind == 'int' else 'zext'} {a} {name} to {b}")


def _to_integer(
    ctx: LaneContext, name: str, kind: str, dtype: DType, count: int, saturate: bool
) -> str:
    w = ctx.w
    target = vector_type(element_type(dtype), count)
    letter = "s" if dtype.kind == "int" else "u"
    if saturate:
        full = f"llvm.fpto{letter}i.sat.{_suffix(target)}.{_suffix(kind)}"
        return w.intrinsic(full, target, [(kind, name)])
    if dtype.bits < 32:
        wide = vector_type("i32", count)
        return w.emit(f"trunc {wide} {w.emit(f'fptosi {kind} {name} to {wide}')} to {target}")
    return w.emit(f"fpto{letter}i {kind} {name} to {target}")


def _from_bf16(ctx: LaneContext, name: str, count: int) -> str:
    w = ctx.w
    wide, real = vector_type("i32", count), vector_type("float", count)
    bits = w.emit(f"zext {vector_type('i16', count)} {name} to {wide}")
    amount = ctx.splat("i32", Held("16", literal=16), count)
    return w.emit(f"bitcast {wide} {w.emit(f'shl {wide} {bits}, {amount}')} to {real}")


def _to_bf16(ctx: LaneContext, name: str, count: int) -> str:
    """Nearest even on the bits; a NaN stays one (quiet)."""
    w = ctx.w
    wide, real = vector_type("i32", count), vector_type("float", count)

    def number(value: int) -> str:
        return ctx.splat("i32", Held(str(value), literal=value), count)

    bits = w.emit(f"bitcast {real} {name} to {wide}")
    low = w.emit(f"and {wide} {w.emit(f'lshr {wide} {bits}, {number(16)}')}, {number(1)}")
    biased = w.emit(f"add {wide} {w.emit(f'add {wide} {bits}, {number(0x7FFF)}')}, {low}")
    quiet = w.emit(f"or {wide} {bits}, {number(0x400000)}")
    is_nan = w.emit(f"fcmp uno {real} {name}, {name}")
    flags = vector_type("i1", count)
    chosen = w.emit(f"select {flags} {is_nan}, {wide} {quiet}, {wide} {biased}")
    high = w.emit(f"lshr {wide} {chosen}, {number(16)}")
    return w.emit(f"trunc {wide} {high} to {vector_type('i16', count)}")


def _bitcast(ctx: LaneContext, op: Op) -> None:
    (x,) = op.operands
    varying = ctx.is_varying(x)
    a, b = ctx.type_of(x, varying=varying), ctx.type_of(op.result, varying=varying)
    name = ctx.register(x, varying=varying)
    _result(ctx, op, name if a == b else ctx.w.emit(f"bitcast {a} {name} to {b}"), varying)


def _splat(ctx: LaneContext, op: Op) -> None:
    (x,) = op.operands
    count = element_count(op.result.type)
    if not ctx.is_varying(x):
        _result(ctx, op, ctx.splat(element_type(_dtype(x)), ctx.held[x], count), False)
        return
    _result(ctx, op, _repeat(ctx, x, count), True)


def _repeat(ctx: LaneContext, x: Value, count: int) -> str:
    kind = ctx.type_of(x, varying=True)
    order = ", ".join(f"i32 {lane}" for lane in range(ctx.lanes) for _ in range(count))
    name = ctx.register(x, varying=True)
    return ctx.w.emit(
        f"shufflevector {kind} {name}, {kind} poison, <{ctx.lanes * count} x i32> <{order}>"
    )


def _vector_build(ctx: LaneContext, op: Op) -> None:
    varying = ctx.is_varying(*op.operands)
    count = len(op.operands)
    total = count * (ctx.lanes if varying else 1)
    element = element_type(_dtype(op.result))
    result, kind = "poison", vector_type(element, total)
    if not varying:
        for place, value in enumerate(op.operands):
            result = ctx.w.emit(
                f"insertelement {kind} {result}, {element} {ctx.uniform(value)}, i64 {place}"
            )
        _result(ctx, op, result, False)
        return
    for place, value in enumerate(op.operands):
        spread = _repeat(ctx, value, count)
        flags = ", ".join(f"i1 {'true' if at % count == place else 'false'}" for at in range(total))
        result = ctx.w.emit(f"select <{total} x i1> <{flags}>, {kind} {spread}, {kind} {result}")
    _result(ctx, op, result, True)


def _extract(ctx: LaneContext, op: Op) -> None:
    (v,) = op.operands
    index, count = op.attributes["index"], element_count(v.type)
    assert isinstance(index, int)
    varying = ctx.is_varying(v)
    kind = ctx.type_of(v, varying=varying)
    name = ctx.register(v, varying=varying)
    if varying:
        order = ", ".join(f"i32 {lane * count + index}" for lane in range(ctx.lanes))
        found = ctx.w.emit(
            f"shufflevector {kind} {name}, {kind} poison, <{ctx.lanes} x i32> <{order}>"
        )
    else:
        found = name if count == 1 else ctx.w.emit(f"extractelement {kind} {name}, i64 {index}")
    _result(ctx, op, found, varying)


def _vector_reduce(ctx: LaneContext, op: Op) -> None:
    (v,) = op.operands
    count = element_count(v.type)
    varying = ctx.is_varying(v)
    kind = ctx.type_of(v, varying=varying)
    name = ctx.register(v, varying=varying)
    width = ctx.lanes if varying else 1
    parts: list[str] = []
    for index in range(count):
        if count == 1:
            parts.append(name)
        elif varying:
            order = ", ".join(f"i32 {lane * count + index}" for lane in range(width))
            parts.append(ctx.w.emit(
                f"shufflevector {kind} {name}, {kind} poison, <{width} x i32> <{order}>"
            ))  # fmt: skip
        else:
            parts.append(ctx.w.emit(f"extractelement {kind} {name}, i64 {index}"))
    total = parts[0]
    for part in parts[1:]:
        total = combine(ctx, op, _dtype(v), width, total, part)
    _result(ctx, op, total, varying)


def combine(ctx: LaneContext, op: Op, dtype: DType, count: int, x: str, y: str) -> str:
    """Return two values combined as a reduction's ``kind`` says."""
    kind = str(op.attributes["kind"])
    named = Op(kind, op.operands, op.results, op.attributes, [], op.location)
    return _arithmetic(ctx, named, dtype, vector_type(element_type(dtype), count), x, y)


def _assume(ctx: LaneContext, op: Op) -> None:
    ctx.held[op.result] = ctx.held[op.operands[0]]


ELEMENTS: dict[str, Lowering] = {
    "constant": _constant,
    "fma": _fma,
    "pow": _pow,
    "select": _select,
    "convert": _convert,
    "bitcast": _bitcast,
    "splat": _splat,
    "vector_build": _vector_build,
    "extract": _extract,
    "vector_reduce": _vector_reduce,
    "assume_multiple": _assume,
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "mul_high", "and", "or",
         "xor", "shl", "shr"), _binary
    ),
    **dict.fromkeys(_PREDICATES, _compare),
    **dict.fromkeys(
        ("neg", "abs", "not", "count_ones", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin",
         "cos", "tanh", "erf", "floor", "ceil", "trunc", "rint"), _unary
    ),
}  # fmt: skip
"""Lowering of every element operation that the host has at lane level."""
