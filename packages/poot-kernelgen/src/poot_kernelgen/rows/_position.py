"""Symbolic positions: affine functions of loop variables, and moving them through views.

A value's element is named by its flat row-major index. Elementwise nodes and reshapes keep it; other
views take it apart into one digit an axis and put it together again. Where a loop variable straddles
an axis or a piece of a concatenation, an exception says how to split the loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Cut", "Factor", "Position", "Variable", "flatten", "piece_of", "unflatten"]


@dataclass(frozen=True, eq=False, slots=True)
class Variable:
    """A loop variable that counts 0..extent; compared by identity."""

    extent: int


class Factor(Exception):
    """A variable is to become two: ``high * low_extent + low``."""

    def __init__(self, variable: Variable, low_extent: int) -> None:
        super().__init__(variable, low_extent)
        self.variable, self.low_extent = variable, low_extent


class Cut(Exception):
    """A variable's range is to be handled in two loops: below ``at``, and from there on."""

    def __init__(self, variable: Variable, at: int) -> None:
        super().__init__(variable, at)
        self.variable, self.at = variable, at


@dataclass(frozen=True, slots=True)
class Position:
    """``constant + sum of coefficient * variable``, coefficients positive, variables distinct."""

    constant: int = 0
    terms: tuple[tuple[Variable, int], ...] = ()

    @classmethod
    def of(cls, variable: Variable, coefficient: int = 1) -> Position:
        """Return a multiple of one variable; one that only takes 0 vanishes."""
        return cls(0, ((variable, coefficient),) if variable.extent > 1 and coefficient else ())

    @property
    def largest(self) -> int:
        """The largest value that it takes."""
        return self.constant + sum(c * (v.extent - 1) for v, c in self.terms)

    def coefficient(self, variable: Variable) -> int:
        """Return a variable's coefficient."""
        return next((c for v, c in self.terms if v == variable), 0)

    def __add__(self, other: Position) -> Position:
        terms = dict(self.terms)
        for variable, coefficient in other.terms:
            terms[variable] = terms.get(variable, 0) + coefficient
        return Position(self.constant + other.constant, tuple(terms.items()))

    def shifted(self, amount: int) -> Position:
        """Return the position moved by a constant."""
        return Position(self.constant + amount, self.terms)

    def times(self, factor: int) -> Position:
        """Return the position times a constant that is not negative."""
        if factor == 0:
            return Position()
        return Position(self.constant * factor, tuple((v, c * factor) for v, c in self.terms))


def flatten(digits: Sequence[Position], shape: Sequence[int]) -> Position:
    """Return the flat position of an element given by its index along each axis."""
    result, stride = Position(), 1
    for digit, extent in zip(reversed(digits), reversed(shape), strict=True):
        result += digit.times(stride)
        stride *= extent
    return result


def unflatten(position: Position, shape: Sequence[int]) -> list[Position]:
    """Return the index along each axis.

    Raises:
        Factor: If a loop variable runs over more than one axis.
        Cut: If it crosses a border of an axis in the middle.
    """
    digits: list[Position] = []
    for extent in reversed(shape[1:]):
        low, position = _divide(position, extent)
        digits.append(low)
    if shape:
        digits.append(position)
    return digits[::-1]


def _divide(position: Position, extent: int) -> tuple[Position, Position]:
    """Return remainder and quotient by an axis' extent."""
    if extent == 1:
        return Position(), position
    low = tuple((v, c) for v, c in position.terms if c % extent)
    high = tuple((v, c // extent) for v, c in position.terms if c % extent == 0)
    remainder = Position(position.constant % extent, low)
    if remainder.largest < extent:
        return remainder, Position(position.constant // extent, high)
    # The outermost of the variables that overflow the axis is the one to split.
    variable, coefficient = max(low, key=lambda term: term[1])
    if coefficient < extent and extent % coefficient == 0:
        steps = extent // coefficient
        if variable.extent > steps and variable.extent % steps == 0:
            raise Factor(variable, steps)
    rest = remainder.largest - coefficient * (variable.extent - 1)
    at = math.ceil((extent - rest) / coefficient)
    raise Cut(variable, min(max(at, 1), variable.extent - 1))


def piece_of(digit: Position, sizes: Sequence[int]) -> tuple[int, int]:
    """Return which piece of a concatenated axis an index falls in, and where that piece starts.

    Raises:
        Cut: If it falls in several.
    """
    start = 0
    for index, size in enumerate(sizes):
        end = start + size
        if digit.constant < end:
            if digit.largest < end:
                return index, start
            variable, coefficient = max(digit.terms, key=lambda term: term[1])
            at = math.ceil((end - digit.constant) / coefficient)
            raise Cut(variable, min(max(at, 1), variable.extent - 1))
        start = end
    raise AssertionError(f"index {digit} lies outside of a concatenation of {sizes}")
