"""What an expression of a kernel can be at import time, besides Python constants."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from poot_core import DType
from poot_kernel.ir import ArrayType, SharedType, TileType, Value
from poot_kernel.language._source import Source

__all__ = [
    "Closure",
    "Emit",
    "Frame",
    "Inline",
    "Intrinsic",
    "Place",
    "TileExpression",
    "Unbound",
    "flatten",
    "has_runtime",
    "intrinsic",
    "is_carriable",
    "is_memory",
    "is_tile",
    "on_places",
    "rebuild",
]


Emit = Callable[..., Value]
"""Emits an element operation on scalars: values, or numbers for constants."""


@dataclass(eq=False, slots=True)
class Frame:
    """Names visible in one function under import: its own, then those around it."""

    source: Source
    names: dict[str, object]
    outer: Mapping[str, object]
    parent: Frame | None = None

    def lookup(self, name: str) -> object:
        """Return what a name stands for.

        Raises:
            KeyError: If it is not bound anywhere.
        """
        frame: Frame | None = self
        while frame is not None:
            if name in frame.names:
                return frame.names[name]
            frame = frame.parent
        return self.outer[name]


@dataclass(frozen=True, slots=True)
class Unbound:
    """Stands for a name that has no value here, and says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Closure:
    """A lambda or a nested function; called by importing its body in place."""

    node: ast.FunctionDef | ast.Lambda
    frame: Frame


@dataclass(frozen=True, slots=True)
class Inline:
    """A helper marked ``@inline``: a function whose body is imported at each call."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the helper as plain Python, for use outside of kernels."""
        return self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """An operation of the language; outside of kernels it cannot be called.

    Attributes:
        name: As written in kernels.
        handler: Takes the importer, then the arguments.
        places: Whether subscripts among the arguments are places in memory rather than values.
    """

    name: str
    handler: Callable[..., object]
    places: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: only kernels may use it.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{self.name!r} stands for a kernel operation; use it inside of @kernel")


def intrinsic(handler: Callable[..., object]) -> Intrinsic:
    """Return the operation that a handler emits, by the handler's name."""
    return Intrinsic(handler.__name__, handler)


def on_places(handler: Callable[..., object]) -> Intrinsic:
    """Return one whose subscripted arguments are places in memory."""
    return Intrinsic(handler.__name__, handler, places=True)


@dataclass(frozen=True, slots=True)
class Place:
    """A subscripted array or shared memory: one element, a box, or an open end for layouts.

    Attributes:
        memory: The array.
        indices: First index along each axis.
        shape: Extents of a box's last axes; None for a single element.
        is_open: Whether the extent comes from a layout.
    """

    memory: Value
    indices: tuple[object, ...]
    shape: tuple[int, ...] | None = None
    is_open: bool = False

    def starts(self) -> list[Value | int]:
        """Return the first index along each axis, as the builder takes them."""
        return [cast("Value | int", index) for index in self.indices]


@dataclass(eq=False, slots=True)
class TileExpression:
    """An element-wise expression over tiles, emitted as one ``map`` where it is needed."""

    emit: Emit
    arguments: tuple[object, ...]
    node: ast.expr
    source: Source
    leaves: dict[Value, None] = field(default_factory=dict["Value", None])

    def __post_init__(self) -> None:
        for argument in self.arguments:
            if isinstance(argument, TileExpression):
                self.leaves.update(argument.leaves)
            elif is_tile(argument):
                self.leaves[cast("Value", argument)] = None


def is_tile(item: object) -> bool:
    """Whether an object is a tile or an expression over tiles."""
    return isinstance(item, TileExpression) or (
        isinstance(item, Value) and isinstance(item.type, TileType)
    )


def is_memory(item: object) -> bool:
    """Whether an object is an array or shared memory."""
    return isinstance(item, Value) and isinstance(item.type, ArrayType | SharedType)


def has_runtime(item: object) -> bool:
    """Whether an object holds anything that exists only when the kernel runs."""
    if isinstance(item, tuple | list):
        return any(has_runtime(each) for each in cast("Sequence[object]", item))
    return isinstance(item, Value | TileExpression | Place | Closure | Unbound)


def flatten(item: object) -> list[object]:
    """Return the leaves of nested tuples and lists, in order."""
    if isinstance(item, tuple | list):
        return [leaf for each in cast("Sequence[object]", item) for leaf in flatten(each)]
    return [item]


def rebuild(like: object, leaves: Iterator[object]) -> object:
    """Return the same nesting with other leaves."""
    if isinstance(like, tuple):
        return tuple(rebuild(each, leaves) for each in cast("tuple[object, ...]", like))
    if isinstance(like, list):
        return [rebuild(each, leaves) for each in cast("list[object]", like)]
    return next(leaves)


def is_carriable(item: object) -> bool:
    """Whether a loop or branch can pass an object on: values and numbers, in tuples and lists."""
    return all(
        (isinstance(leaf, Value) and not is_memory(leaf)) or isinstance(leaf, bool | int | float)
        for leaf in flatten(item)
    ) and not isinstance(item, DType)
