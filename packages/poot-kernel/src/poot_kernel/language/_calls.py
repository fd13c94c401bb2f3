"""Import of calls: operations of the language, inlined helpers, and calls at import time."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from poot_core import DType, PootError
from poot_kernel.ir import Layout, Size, SizeLike, TileType, Value, as_size, ceildiv
from poot_kernel.language import intrinsics
from poot_kernel.language._importer import ImporterCore
from poot_kernel.language._source import read_function
from poot_kernel.language._values import (
    Closure,
    Frame,
    Inline,
    Intrinsic,
    Place,
    has_runtime,
    is_tile,
)

__all__ = ["CallImporter", "outer_names", "substitute"]

# Python's own functions that also work on values.
_BUILTINS: dict[object, Intrinsic] = {
    builtins.min: intrinsics.minimum,
    builtins.max: intrinsics.maximum,
    builtins.abs: intrinsics.absolute,
    builtins.map: intrinsics.map,
    ceildiv: intrinsics.ceildiv,
}
# Python's own functions that move values about without looking at them.
_CONTAINERS: frozenset[object] = frozenset(
    {builtins.len, builtins.list, builtins.tuple, builtins.enumerate, builtins.zip,
     builtins.reversed}
)  # fmt: skip
_DEPTH_LIMIT = 64


def outer_names(function: Callable[..., Any]) -> Mapping[str, object]:
    """Return what a function sees around it: its module's names and its closure."""
    found = inspect.getclosurevars(function)
    module = cast("dict[str, object]", getattr(function, "__globals__", {}))
    return {**module, **found.nonlocals}


class CallImporter(ImporterCore):
    """Turns call nodes into operations or import-time results."""

    _depth = 0

    def call(self, node: ast.Call) -> object:
        """Return what a call gives."""
        callee = self.evaluate(node.func)
        if isinstance(callee, DType):
            return self._convert(node, callee)
        at_import = callee in _BUILTINS if _is_hashable(callee) else False
        intrinsic = callee if isinstance(callee, Intrinsic) else None
        positional, named = self._arguments(node, places=bool(intrinsic and intrinsic.places))
        is_runtime = has_runtime(positional) or has_runtime(list(named.values()))
        if intrinsic is None and at_import and (is_runtime or callee is builtins.map):
            intrinsic = _BUILTINS[callee]
        if intrinsic is not None:
            return self._intrinsic(node, intrinsic, positional, named)
        if isinstance(callee, Inline):
            return self._inline(node, callee, positional, named)
        if isinstance(callee, Closure):
            return self.apply(node, callee, positional, named)
        if isinstance(callee, Value) or not callable(callee):
            self.refuse(node, f"cannot call {self.describe(callee)}")
        return self._at_import(node, callee, positional, named, is_runtime=is_runtime)

    def _arguments(self, node: ast.Call, *, places: bool) -> tuple[list[object], dict[str, object]]:
        positional: list[object] = []
        for item in node.args:
            if isinstance(item, ast.Starred):
                positional.extend(self.unrolled(item, self.evaluate(item.value)))
            else:
                positional.append(self.evaluate(item, as_place=places))
        named: dict[str, object] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.refuse(keyword.value, "kernels have no ** in calls")
            named[keyword.arg] = self.evaluate(keyword.value, as_place=places)
        return positional, named

    def _convert(self, node: ast.Call, dtype: DType) -> object:
        positional, named = self._arguments(node, places=False)
        if len(positional) != 1 or named:
            self.refuse(node, f"{dtype.name}(x) takes one value")
        (item,) = positional
        if not has_runtime(item):
            if not isinstance(item, bool | int | float):
                self.refuse(node, f"cannot make {self.describe(item)} a {dtype.name}")
            literal = item if dtype.kind == "bool" or dtype.is_float else int(item)
            return self.b.constant(literal, dtype)

        def emit(x: Value) -> Value:
            return self.b.convert(x, dtype)

        return self.element(node, emit, item)

    def _intrinsic(
        self,
        node: ast.Call,
        intrinsic: Intrinsic,
        positional: Sequence[object],
        named: Mapping[str, object],
    ) -> object:
        try:
            bound = inspect.signature(intrinsic.handler).bind(self, node, *positional, **named)
        except TypeError as error:
            self.refuse(node, f"{intrinsic.name}(): {error}")
        return intrinsic.handler(*bound.args, **bound.kwargs)

    def _at_import(
        self,
        node: ast.Call,
        function: Callable[..., Any],
        positional: Sequence[object],
        named: Mapping[str, object],
        *,
        is_runtime: bool,
    ) -> object:
        name = str(getattr(function, "__name__", repr(function)))
        if is_runtime and function not in _CONTAINERS:
            hint = "mark it @inline to import its body"
            if function in {builtins.float, builtins.int, builtins.bool}:
                hint = "convert with a dtype, as in f32(x) or i32(x)"
            self.refuse(node, f"{name!r} is plain Python and is given values of run time; {hint}")
        if function in {builtins.print, builtins.open, builtins.exec, builtins.eval}:
            self.refuse(node, f"kernels cannot call {name!r}")
        try:
            return function(*positional, **named)
        except PootError:
            raise
        except Exception as error:
            raise self.frame.source.refuse(node, f"{name}() fails at import: {error}") from error

    # ---- helpers

    def _inline(
        self,
        node: ast.Call,
        helper: Inline,
        positional: Sequence[object],
        named: Mapping[str, object],
    ) -> object:
        return self.apply(node, self.closure(helper), positional, named)

    def apply(
        self,
        node: ast.AST,
        closure: Closure,
        positional: Sequence[object],
        named: Mapping[str, object] | None = None,
    ) -> object:
        """Import a function's body with arguments bound; returns what it returns."""
        names = self._bound(node, closure, positional, named or {})
        inner = closure.frame
        is_definition = isinstance(closure.node, ast.FunctionDef)
        # A helper from a file stands alone; a nested function sees the names around it.
        parent = inner if inner.names or inner.parent else None
        frame = Frame(inner.source, names, inner.outer, parent)
        if self._depth >= _DEPTH_LIMIT:
            self.refuse(node, "helpers call each other without end; recursion is not possible")
        caller, self.frame = self.frame, frame
        self._depth += 1
        try:
            if is_definition:
                return self.function_body(closure.node)
            return self.evaluate(cast("ast.Lambda", closure.node).body)
        finally:
            self.frame = caller
            self._depth -= 1

    def _bound(
        self,
        node: ast.AST,
        closure: Closure,
        positional: Sequence[object],
        named: Mapping[str, object],
    ) -> dict[str, object]:
        arguments = closure.node.args
        parameters = [
            inspect.Parameter(a.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for a in [*arguments.posonlyargs, *arguments.args]
        ]
        if arguments.vararg:
            parameters.append(
                inspect.Parameter(arguments.vararg.arg, inspect.Parameter.VAR_POSITIONAL)
            )
        parameters += [
            inspect.Parameter(a.arg, inspect.Parameter.KEYWORD_ONLY) for a in arguments.kwonlyargs
        ]
        defaults = self._defaults(closure)
        parameters = [
            p.replace(default=defaults[p.name]) if p.name in defaults else p for p in parameters
        ]
        try:
            bound = inspect.Signature(parameters).bind(*positional, **named)
        except (TypeError, ValueError) as error:
            self.refuse(node, f"call does not fit the function: {error}")
        bound.apply_defaults()
        return {name: self.settle(value) for name, value in bound.arguments.items()}

    def _defaults(self, closure: Closure) -> dict[str, object]:
        arguments = closure.node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults,
                         strict=True))  # fmt: skip
        pairs += [
            (argument, default)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        ]
        caller, self.frame = self.frame, closure.frame
        try:
            return {argument.arg: self.evaluate(default) for argument, default in pairs}
        finally:
            self.frame = caller

    # ---- arguments of operations

    def closure(self, helper: Inline) -> Closure:
        """Return a helper as a function to import."""
        source, definition = read_function(helper.function)
        return Closure(definition, Frame(source, {}, outer_names(helper.function)))

    def size(self, size: SizeLike) -> Size:
        """Return a size in which compile-time parameters are replaced by their values."""
        return substitute(as_size(size), self.constants)

    def tile(self, item: object, what: str = "a tile") -> Value:
        """Return an argument that must be a tile; a slice of an array is copied."""
        found = self.value(item, what=what)
        if not is_tile(found):
            raise PootError(f"{what} is needed here, got {self.describe(item)}")
        return found

    def place(self, item: object) -> Place:
        """Return an argument that must be a subscripted array."""
        if not isinstance(item, Place):
            raise PootError(f"needs a subscripted array such as x[i], got {self.describe(item)}")
        return item

    def write(
        self,
        place: Place,
        item: object,
        *,
        mask: object = None,
        masked: bool = False,
        layout: Layout | None = None,
        strides: Sequence[Any] = (),
        alignment: int = 0,
    ) -> None:
        """Store a value at a place: a tile into a box, a scalar or vector at an element."""
        indices = [cast("Value | int", index) for index in place.indices]
        if place.shape is None and layout is None and not is_tile(item):
            value = self.value(item, getattr(place.memory.type, "dtype", None))
            condition = None if mask is None else self.value(mask)
            self.b.store(place.memory, indices, value, mask=condition, alignment=alignment)
            return
        tile = self.tile(item)
        assert isinstance(tile.type, TileType)
        if layout is None and place.shape != tile.type.shape:
            raise PootError(f"cannot store {tile.type} into a box of {place.shape}")
        self.b.store_tile(
            place.memory,
            tile,
            indices,
            layout=layout,
            strides=strides,
            bounds="masked" if masked else "full",
            alignment=alignment,
        )


def substitute(size: Size, constants: Mapping[str, object]) -> Size:
    """Return a size with parameters of known value replaced."""
    known = constants.get(size.name) if size.kind == "parameter" else None
    if isinstance(known, int):
        return as_size(known)
    if not size.arguments:
        return size
    a, b = (substitute(argument, constants) for argument in size.arguments)
    found = Size(size.kind, arguments=(a, b))
    value = found.constant
    return found if value is None else as_size(value)


def _is_hashable(item: object) -> bool:
    try:
        hash(item)
    except TypeError:
        return False
    return True
