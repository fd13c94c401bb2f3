"""Import of expressions: constants fold, values emit operations, tiles collect into maps."""

from __future__ import annotations

import ast
import builtins
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from poot_core import DType, PootError, boolean
from poot_kernel.ir import ArrayType, ScalarType, TileType, Value, VectorType
from poot_kernel.language._calls import CallImporter
from poot_kernel.language._values import Closure, Place, Unbound, has_runtime, is_memory, is_tile

__all__ = ["ExpressionImporter"]

_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor),
    ast.LShift: ("shl", operator.lshift),
    ast.RShift: ("shr", operator.rshift),
}
_UNARY: dict[type[ast.unaryop], tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("neg", operator.neg),
    ast.Not: ("not", operator.not_),
    ast.Invert: ("not", operator.invert),
    ast.UAdd: ("", operator.pos),
}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
}
_IMPORT_TIME_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_MISSING = object()


class ExpressionImporter(CallImporter):
    """Turns expression nodes into import-time objects."""

    def evaluate(self, node: ast.expr, *, as_place: bool = False) -> object:
        """Return what an expression stands for.

        Args:
            node: The expression.
            as_place: Leave a subscripted array a place instead of reading it.

        Raises:
            KernelSyntaxError: If the language has no such expression.
        """
        with self.at(node):
            found = self._evaluate(node)
            if isinstance(found, Place) and not as_place:
                return self.read(found)
            return found

    def _evaluate(self, node: ast.expr) -> object:  # noqa: C901 -- one case for each form
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(node, op, self.evaluate(left), self.evaluate(right))
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(node, op, self.evaluate(operand))
            case ast.BoolOp(op=op, values=values):
                return self._logic(node, isinstance(op, ast.And), values)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._comparison(node, [left, *comparators], ops)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(node, test, body, orelse)
            case ast.Call():
                return self.call(node)
            case ast.Subscript(value=base, slice=index):
                return self._subscript(node, self.evaluate(base), index)
            case ast.Attribute(value=base, attr=name):
                return self._attribute(node, self.evaluate(base), name)
            case ast.Tuple(elts=items):
                return tuple(self._items(items))
            case ast.List(elts=items):
                return self._items(items)
            case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
                return {
                    self.evaluate(key): self.evaluate(value)
                    for key, value in zip(keys, values, strict=True)
                    if key is not None
                }
            case ast.ListComp(elt=element, generators=[generator]):
                return self._comprehension(element, generator)
            case ast.JoinedStr(values=parts):
                return "".join(self._format(part) for part in parts)
            case ast.Lambda():
                return Closure(node, self.frame)
            case _:
                kind = type(node).__name__
                raise self.frame.source.refuse(node, f"kernels have no {_FORMS.get(kind, kind)}")

    def _items(self, items: Sequence[ast.expr]) -> list[object]:
        found: list[object] = []
        for item in items:
            if isinstance(item, ast.Starred):
                found.extend(self.unrolled(item, self.evaluate(item.value)))
            else:
                found.append(self.evaluate(item))
        return found

    # ---- names and constants

    def _name(self, node: ast.expr, name: str) -> object:
        try:
            found = self.frame.lookup(name)
        except KeyError:
            found = getattr(builtins, name, _MISSING)
            if found is _MISSING:
                self.refuse(node, f"name {name!r} is not defined")
        if isinstance(found, Unbound):
            self.refuse(node, f"name {name!r} has no value here: {found.reason}")
        return found

    def unrolled(self, node: ast.AST, items: object) -> Iterable[object]:
        """Return what an import-time iterable holds."""
        if has_runtime(items) and not isinstance(items, tuple | list):
            self.refuse(
                node, f"needs something known at import time to go through, got "
                f"{self.describe(items)}; loops at run time are 'for i in range(...)'",
            )  # fmt: skip
        try:
            return list(cast("Iterable[object]", items))
        except TypeError:
            self.refuse(node, f"cannot go through {self.describe(items)}")

    def _comprehension(self, element: ast.expr, generator: ast.comprehension) -> list[object]:
        found: list[object] = []
        saved = dict(self.frame.names)
        for item in self.unrolled(generator.iter, self.evaluate(generator.iter)):
            self.bind(generator.target, item)
            if all(self.import_time(test, self.evaluate(test)) for test in generator.ifs):
                found.append(self.settle(self.evaluate(element)))
        self.frame.names = saved
        return found

    def _format(self, part: ast.expr) -> str:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        return str(self.import_time(inner, self.evaluate(inner)))

    def import_time(self, node: ast.AST, item: object) -> Any:
        """Return an object that must be known at import time."""
        if has_runtime(item):
            self.refuse(node, f"must be known at import time, got {self.describe(item)}")
        return item

    # ---- operators

    def binary(self, node: ast.expr, op: ast.operator, a: object, b: object) -> object:
        """Return a binary operator's result."""
        opcode, fold = _BINARY.get(type(op), ("", operator.add))
        if not (has_runtime(a) or has_runtime(b)):
            return self._fold(node, fold, a, b)
        if isinstance(a, tuple | list) and isinstance(b, tuple | list) and opcode == "add":
            return fold(a, b)
        if not opcode:
            self.refuse(node, "values have no operator @: write mma(a, b, acc)")
        return self.element(node, functools.partial(self._binary, opcode), a, b)

    def _binary(self, opcode: str, a: Any, b: Any) -> Value:
        kinds = {_dtype(x) for x in (a, b) if isinstance(x, Value)}
        if opcode == "div" and any(kind and kind.is_integer for kind in kinds):
            raise PootError("'/' divides floats: write '//' or convert to a float first")
        if len(kinds) > 1:
            names = " and ".join(sorted(kind.name for kind in kinds if kind))
            raise PootError(f"{opcode!r} of {names}: convert one of them, as in f32(x)")
        return self.b.binary(opcode, a, b)

    def _fold(self, node: ast.expr, fold: Callable[..., Any], *items: object) -> object:
        try:
            return fold(*items)
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise self.frame.source.refuse(node, f"fails at import time: {error}") from error

    def _unary(self, node: ast.expr, op: ast.unaryop, item: object) -> object:
        opcode, fold = _UNARY[type(op)]
        if not has_runtime(item):
            return self._fold(node, fold, item)
        if not opcode:
            return item
        if isinstance(op, ast.Not) and isinstance(item, Value) and _dtype(item) is not boolean:
            self.refuse(node, f"'not' takes a boolean, got {self.describe(item)}; write x == 0")
        return self.element(node, functools.partial(self.b.unary, opcode), item)

    def _logic(self, node: ast.expr, is_and: bool, parts: Sequence[ast.expr]) -> object:
        result: object = is_and
        for part in parts:
            item = self.evaluate(part)
            if not has_runtime(item):
                if bool(item) != is_and:
                    return item
                continue
            if isinstance(item, Value) and _dtype(item) is not boolean:
                self.refuse(
                    part, f"'and' and 'or' take booleans, got {self.describe(item)}; "
                    "bits are combined with & and |"
                )  # fmt: skip
            emit = self.b.and_ if is_and else self.b.or_
            result = item if result is is_and else self.element(node, emit, result, item)
        return result

    def _comparison(
        self, node: ast.expr, operands: Sequence[ast.expr], ops: Sequence[ast.cmpop]
    ) -> object:
        items = [self.evaluate(operand) for operand in operands]
        result: object = True
        for op, a, b in zip(ops, items, items[1:], strict=False):
            one = self._compare(node, op, a, b)
            if result is True:
                result = one
            elif not has_runtime(one) and not has_runtime(result):
                result = result and one
            else:
                result = self.element(node, self.b.and_, result, one)
        return result

    def _compare(self, node: ast.expr, op: ast.cmpop, a: object, b: object) -> object:
        if type(op) in _IMPORT_TIME_COMPARE:
            if isinstance(op, ast.Is | ast.IsNot) and (a is None or b is None):
                return _IMPORT_TIME_COMPARE[type(op)](a, b)
            items = (self.import_time(node, a), self.import_time(node, b))
            return self._fold(node, _IMPORT_TIME_COMPARE[type(op)], *items)
        opcode, fold = _COMPARE[type(op)]
        if not (has_runtime(a) or has_runtime(b)):
            return self._fold(node, fold, a, b)
        return self.element(node, functools.partial(self._binary, opcode), a, b)

    def _choice(self, node: ast.expr, test: ast.expr, body: ast.expr, orelse: ast.expr) -> object:
        condition = self.evaluate(test)
        if not has_runtime(condition):
            return self.evaluate(body if condition else orelse)
        chosen = (self.evaluate(body), self.evaluate(orelse))
        return self.element(node, self.b.select, condition, *chosen)

    # ---- subscripts and attributes

    def _subscript(self, node: ast.expr, base: object, index: ast.expr) -> object:
        items = list(index.elts) if isinstance(index, ast.Tuple) else [index]
        if is_memory(base):
            return self._place(node, cast("Value", base), items)
        if is_tile(base):
            return self._tile_part(node, self.value(base), items)
        if isinstance(base, Value) and isinstance(base.type, VectorType):
            return self.b.extract(base, self.import_time(index, self.evaluate(index)))
        if isinstance(base, Value):
            self.refuse(node, f"cannot subscript {self.describe(base)}")
        key = self._slice_object(index) if isinstance(index, ast.Slice) else self.evaluate(index)
        return self._fold(node, operator.getitem, base, self.import_time(index, key))

    def _slice_object(self, node: ast.Slice) -> slice:
        parts = [
            None if part is None else self.import_time(part, self.evaluate(part))
            for part in (node.lower, node.upper, node.step)
        ]
        return slice(*parts)

    def _place(self, node: ast.expr, memory: Value, items: Sequence[ast.expr]) -> Place:
        rank = getattr(memory.type, "rank", 0)
        if len(items) != rank:
            self.refuse(node, f"{self.describe(memory)} has {rank} axes, got {len(items)} indices")
        indices: list[object] = []
        shape: list[int] = []
        is_open = False
        for axis, item in enumerate(items):
            if not isinstance(item, ast.Slice):
                if shape or is_open:
                    self.refuse(item, "single indices stand before slices: a tile's axes are last")
                indices.append(self._index(item))
                continue
            lower = 0 if item.lower is None else self._index(item.lower)
            indices.append(lower)
            if item.upper is None and item.lower is not None and rank == 1:
                is_open = True
            else:
                shape.append(self._extent(item, memory, axis, lower))
        return Place(memory, tuple(indices), tuple(shape) if shape else None, is_open)

    def _index(self, node: ast.expr) -> object:
        item = self.evaluate(node)
        dtype = _dtype(item) if isinstance(item, Value) else None
        if (isinstance(item, int) and not isinstance(item, bool)) or (dtype and dtype.is_integer):
            return item
        raise self.frame.source.refuse(
            node, f"an index must be an integer, got {self.describe(item)}"
        )

    def _extent(self, item: ast.Slice, memory: Value, axis: int, lower: object) -> int:
        if item.step is not None:
            self.refuse(item, "slices of arrays have no step")
        if item.upper is None:
            sizes = memory.type.shape if isinstance(memory.type, ArrayType) else ()
            size = sizes[axis] if axis < len(sizes) else None
            if item.lower is None and size is not None and size.constant is not None:
                return size.constant
            self.refuse(item, "a slice needs an end, or an axis whose extent is a constant")
        extent = self._difference(item, item.lower or ast.Constant(0), item.upper)
        if not isinstance(extent, int):
            self.refuse(item, f"a tile's extent must be an integer, got {self.describe(extent)}")
        return extent

    def _difference(self, item: ast.Slice, lower: ast.expr, upper: ast.expr) -> object:
        """Return upper - lower, known at import once the addends that they share cancel."""
        left, right = _addends(upper), _addends(lower)
        for addend in list(right):
            same = next((each for each in left if ast.dump(each) == ast.dump(addend)), None)
            if same is not None:
                left.remove(same)
                right.remove(addend)
        total = 0
        for sign, addends in ((1, left), (-1, right)):
            for addend in addends:
                number = self.evaluate(addend)
                if has_runtime(number):
                    self.refuse(
                        item, "a tile's extent must be known at import time: write the slice as "
                        "[start : start + EXTENT]",
                    )  # fmt: skip
                total += sign * cast("int", number)
        return total

    def _tile_part(self, node: ast.expr, tile: Value, items: Sequence[ast.expr]) -> Value:
        assert isinstance(tile.type, TileType)
        extents = tile.type.shape
        if len(items) != len(extents):
            self.refuse(node, f"a {tile.type} has {len(extents)} axes, got {len(items)} indices")
        if not any(isinstance(item, ast.Slice) for item in items):
            return self.b.tile_element(
                tile, [self.import_time(item, self.evaluate(item)) for item in items]
            )
        starts: list[int] = []
        shape: list[int] = []
        for item, extent in zip(items, extents, strict=True):
            if not isinstance(item, ast.Slice):
                self.refuse(item, "a slice of a tile keeps its axes: write i : i + 1")
            start, stop, step = self._slice_object(item).indices(extent)
            if step != 1:
                self.refuse(item, "slices of tiles have no step")
            starts.append(start)
            shape.append(stop - start)
        return self.b.slice(tile, starts, shape)

    def _attribute(self, node: ast.expr, base: object, name: str) -> object:
        if is_tile(base):
            base = self.value(base)
        if isinstance(base, Value):
            match base.type, name:
                case TileType(shape=shape), "shape":
                    return shape
                case TileType(), "T":
                    return self.b.transpose(base)
                case ArrayType() as found, "shape":
                    return tuple(self._extent_value(base, axis) for axis in range(found.rank))
                case found, "dtype":
                    return getattr(found, "dtype", None)
                case _:
                    self.refuse(node, f"{self.describe(base)} has no attribute {name!r}")
        if name.startswith("__"):
            self.refuse(node, f"kernels read no attribute {name!r}")
        found = getattr(base, name, _MISSING)
        if found is _MISSING:
            self.refuse(node, f"{self.describe(base)} has no attribute {name!r}")
        return found

    def _extent_value(self, memory: Value, axis: int) -> object:
        assert isinstance(memory.type, ArrayType)
        size = memory.type.shape[axis]
        if size is None:
            return Unbound("the array's first extent is unknown")
        return size.constant if size.constant is not None else self.b.extent(memory, axis)


_FORMS = {
    "Set": "sets",
    "Dict": "dictionaries with unpacking",
    "SetComp": "set comprehensions",
    "DictComp": "dictionary comprehensions",
    "GeneratorExp": "generator expressions; write a list comprehension",
    "ListComp": "nested list comprehensions",
    "Await": "await",
    "Yield": "yield",
    "YieldFrom": "yield from",
    "NamedExpr": "assignment inside of expressions",
    "Starred": "unpacking here",
}


def _addends(node: ast.expr) -> list[ast.expr]:
    """Return the terms of a sum; a difference is one term with its second part negated."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [*_addends(left), *_addends(right)]
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            negated = ast.copy_location(ast.UnaryOp(ast.USub(), right), right)
            return [*_addends(left), negated]
        case _:
            return [node]


def _dtype(item: Value) -> DType | None:
    match item.type:
        case ScalarType(dtype=dtype) | VectorType(dtype=dtype) | TileType(dtype=dtype):
            return dtype
        case _:
            return None
