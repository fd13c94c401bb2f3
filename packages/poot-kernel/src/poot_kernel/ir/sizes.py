"""Sizes: integers and expressions of a kernel's scalar parameters, known at launch."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poot_core import ShapeError

__all__ = ["Size", "SizeLike", "as_size", "ceildiv"]

_FUNCTIONS = ("ceildiv", "min", "max")
_INFIX: dict[str, str] = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
_AST_INFIX: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}


@dataclass(frozen=True, slots=True)
class Size:
    """One node of a size expression.

    Attributes:
        kind: ``constant``, ``parameter``, or an operation: ``add sub mul floordiv mod ceildiv min
            max``.
        value: The integer of a constant.
        name: The name of a scalar parameter.
        arguments: The two operands of an operation.

    >>> str(ceildiv("N", 16)), ceildiv("N", 16).evaluate({"N": 40})
    ('ceildiv(N, 16)', 3)
    """

    kind: str
    value: int = 0
    name: str = ""
    arguments: tuple[Size, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Size:
        """Return the size that ``str`` printed.

        Raises:
            ShapeError: If the text is no size expression.
        """
        try:
            return _from_ast(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError) as error:
            raise ShapeError(
                f"{text!r} is no size: use integers, scalar parameter names, + - * // % and "
                "ceildiv(a, b), min(a, b), max(a, b)"
            ) from error

    @property
    def constant(self) -> int | None:
        """The value when no parameter is involved."""
        return None if self.parameters() else self.evaluate({})

    def parameters(self) -> frozenset[str]:
        """Return the names of the scalar parameters used."""
        if self.kind == "parameter":
            return frozenset({self.name})
        return frozenset[str]().union(*(a.parameters() for a in self.arguments))

    def evaluate(self, scalars: Mapping[str, int]) -> int:
        """Return the value under the given scalar arguments."""
        if self.kind == "constant":
            return self.value
        if self.kind == "parameter":
            return int(scalars[self.name])
        a, b = (argument.evaluate(scalars) for argument in self.arguments)
        return _APPLY[self.kind](a, b)

    def __str__(self) -> str:
        if self.kind == "constant":
            return str(self.value)
        if self.kind == "parameter":
            return self.name
        a, b = self.arguments
        if self.kind in _INFIX:
            return f"({a} {_INFIX[self.kind]} {b})"
        return f"{self.kind}({a}, {b})"

    def __add__(self, other: SizeLike) -> Size:
        return _binary("add", self, other)

    def __sub__(self, other: SizeLike) -> Size:
        return _binary("sub", self, other)

    def __mul__(self, other: SizeLike) -> Size:
        return _binary("mul", self, other)

    def __floordiv__(self, other: SizeLike) -> Size:
        return _binary("floordiv", self, other)

    def __mod__(self, other: SizeLike) -> Size:
        return _binary("mod", self, other)


SizeLike = Size | int | str


def _round_up_quotient(a: int, b: int) -> int:
    return -(-a // b)


_APPLY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "ceildiv": _round_up_quotient,
    "min": min,
    "max": max,
}


def as_size(value: SizeLike) -> Size:
    """Return an integer, an expression's text or a size as a size."""
    if isinstance(value, Size):
        return value
    return Size("constant", value=value) if isinstance(value, int) else Size.parse(value)


def ceildiv(dividend: SizeLike, divisor: SizeLike) -> Size:
    """Return the quotient rounded up."""
    return _binary("ceildiv", as_size(dividend), divisor)


def _binary(kind: str, a: Size, b: SizeLike) -> Size:
    other = as_size(b)
    if a.kind == other.kind == "constant":
        return Size("constant", value=_APPLY[kind](a.value, other.value))
    return Size(kind, arguments=(a, other))


def _from_ast(node: ast.expr) -> Size:
    match node:
        case ast.Constant(value=int() as value):
            return Size("constant", value=value)
        case ast.Name(id=name):
            return Size("parameter", name=name)
        case ast.BinOp(left=left, op=infix, right=right) if type(infix) in _AST_INFIX:
            return _binary(_AST_INFIX[type(infix)], _from_ast(left), _from_ast(right))
        case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _FUNCTIONS:
            return _binary(name, _from_ast(a), _from_ast(b))
        case _:
            raise ValueError(ast.dump(node))
