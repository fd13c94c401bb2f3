"""The importer's core: errors with places, conversion of constants, maps over tiles."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn, cast

from poot_core import DType, KernelSyntaxError, PootError
from poot_kernel.ir import IRBuilder, ScalarType, TileType, Value
from poot_kernel.language._values import (
    Closure,
    Frame,
    Inline,
    Intrinsic,
    Place,
    TileExpression,
    Unbound,
    is_tile,
)

__all__ = ["ImporterCore"]


class ImporterCore:
    """Holds the builder and the frame under import.

    Attributes:
        b: Emits operations.
        frame: Names and source of the function being imported.
        constants: Values of the kernel's compile-time parameters.
    """

    def __init__(self, builder: IRBuilder, frame: Frame, constants: Mapping[str, object]) -> None:
        self.b = builder
        self.constants = constants
        self.frame = frame

    # ---- errors and places

    def refuse(self, node: ast.AST, reason: str) -> NoReturn:
        """Raise the error for a node."""
        raise self.frame.source.refuse(node, reason)

    @contextmanager
    def at(self, node: ast.AST) -> Generator[None]:
        """Emit at a node's place; builder errors inside become errors that point at it."""
        before, self.b.location = self.b.location, self.frame.source.location(node)
        try:
            yield
        except KernelSyntaxError:
            raise
        except PootError as error:
            reason = error.message.removesuffix(f" at {self.b.location}")
            raise self.frame.source.refuse(node, reason) from error
        finally:
            self.b.location = before

    # ---- what later layers provide

    def evaluate(self, node: ast.expr, *, as_place: bool = False) -> object:
        """Return what an expression stands for."""
        raise NotImplementedError

    def function_body(self, node: ast.AST) -> object:
        """Import the body of a function and return what it returns."""
        raise NotImplementedError

    def bind(self, target: ast.expr, item: object) -> None:
        """Give a name, or several, to an object."""
        raise NotImplementedError

    def unrolled(self, node: ast.AST, items: object) -> Iterable[object]:
        """Return what an import-time iterable holds."""
        raise NotImplementedError

    def apply(
        self,
        node: ast.AST,
        closure: Closure,
        positional: Sequence[object],
        named: Mapping[str, object] | None = None,
    ) -> object:
        """Import a function's body with arguments bound."""
        raise NotImplementedError

    # ---- constants and tiles

    def value(self, item: object, dtype: DType | None = None, *, what: str = "a value") -> Value:
        """Return an object as an IR value; numbers become constants, tile expressions a map.

        Raises:
            PootError: If it is neither.
        """
        if isinstance(item, TileExpression):
            return self.materialise(item)
        if isinstance(item, Place):
            return self.read(item)
        if isinstance(item, Value):
            return item
        if isinstance(item, bool | int | float):
            return self.b.constant(item, dtype)
        raise PootError(f"{what} is needed here, got {self.describe(item)}")

    def read(self, place: Place) -> Value:
        """Return what stands at a place: an element or a tile."""
        if place.is_open:
            raise PootError("an open slice needs a layout: write copy(x[at:], layout=...)")
        indices = [cast("Value | int", index) for index in place.indices]
        if place.shape is None:
            return self.b.load(place.memory, indices)
        return self.b.copy(place.memory, indices, place.shape)

    def materialise(self, item: TileExpression) -> Value:
        """Emit an expression over tiles as one map."""
        leaves = sorted(item.leaves, key=lambda leaf: not _accumulates(leaf))
        seen: dict[int, Value] = {}

        def emit(expression: TileExpression, elements: dict[Value, Value]) -> Value:
            if id(expression) not in seen:
                arguments = [
                    emit(argument, elements) if isinstance(argument, TileExpression)
                    else elements.get(argument, argument) if isinstance(argument, Value)
                    else argument
                    for argument in expression.arguments
                ]  # fmt: skip
                frame, self.frame = self.frame, Frame(expression.source, {}, {})
                try:
                    with self.at(expression.node):
                        seen[id(expression)] = expression.emit(*arguments)
                finally:
                    self.frame = frame
            return seen[id(expression)]

        def body(*elements: Value) -> Value:
            return emit(item, dict(zip(leaves, elements, strict=True)))

        return self.b.map(body, *leaves)

    def element(self, node: ast.expr, emit: Callable[..., Value], *arguments: object) -> object:
        """Apply an element operation: now to scalars, later in a map if a tile is involved."""
        arguments = tuple(
            self.read(argument) if isinstance(argument, Place) else argument
            for argument in arguments
        )
        for argument in arguments:
            if not isinstance(argument, Value | TileExpression | bool | int | float):
                raise PootError(f"arithmetic takes values, got {self.describe(argument)}")
        if not any(isinstance(argument, Value | TileExpression) for argument in arguments):
            return emit(*(self.value(argument) for argument in arguments))
        if any(is_tile(argument) for argument in arguments):
            return TileExpression(emit, arguments, node, self.frame.source)
        return emit(*arguments)

    def settle(self, item: object) -> object:
        """Return an object with places read and tile expressions emitted, ready to be named."""
        if isinstance(item, tuple):
            return tuple(self.settle(each) for each in cast("tuple[object, ...]", item))
        if isinstance(item, list):
            return [self.settle(each) for each in cast("list[object]", item)]
        return self.value(item) if isinstance(item, Place | TileExpression) else item

    def describe(self, item: object) -> str:
        """Return an object's kind for a message."""
        match item:
            case Value():
                return f"a {item.type}"
            case TileExpression():
                return "a tile"
            case Place():
                return "a slice"
            case Closure() | Inline():
                return "a function"
            case Intrinsic():
                return f"the operation {item.name!r}"
            case Unbound():
                return "an unbound name"
            case _:
                return f"{item!r} ({type(item).__name__})"

    def flattened_values(self, items: Sequence[object], types: Sequence[object]) -> list[Value]:
        """Return leaves as values, numbers with the dtypes of the types beside them."""
        result: list[Value] = []
        for item, found in zip(items, types, strict=True):
            dtype = found.dtype if isinstance(found, ScalarType) else None
            result.append(self.value(item, dtype))
        return result


def _accumulates(leaf: Value) -> bool:
    return isinstance(leaf.type, TileType) and leaf.type.space == "accumulator"
