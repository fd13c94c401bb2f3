"""Loop nests over the positions of a value, split until every view can be followed."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from poot_core import UnsupportedError
from poot_kernel import IRBuilder
from poot_kernelgen.rows._elements import Scope
from poot_kernelgen.rows._plan import RowPlan
from poot_kernelgen.rows._position import Cut, Factor, Position, Variable

__all__ = ["Nest", "element_count", "pick_vector", "run_flat", "run_nest", "solve_nests"]

_MOST_NESTS = 64


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops, outermost first, and the position of the value for each iteration."""

    variables: tuple[Variable, ...]
    position: Position

    def substitute(self, old: Variable, new: Sequence[Variable], meaning: Position) -> Nest:
        """Return the nest with one variable replaced by an expression of others."""
        variables = tuple(
            part for v in self.variables for part in (new if v == old else [v]) if part.extent > 1
        )
        position = Position(self.position.constant)
        for variable, coefficient in self.position.terms:
            replaced = meaning if variable == old else Position.of(variable)
            position += replaced.times(coefficient)
        return Nest(variables, position)


def solve_nests(size: int, check: Callable[[Position], object]) -> list[Nest]:
    """Return loop nests over positions 0..size at whose positions ``check`` raises nothing.

    Raises:
        UnsupportedError: If that takes too many nests.
    """
    whole = Variable(size)
    start = Nest((whole,) if size > 1 else (), Position.of(whole))
    return list(_solve(start, check))


def _solve(nest: Nest, check: Callable[[Position], object]) -> Generator[Nest]:
    waiting, done = [nest], 0
    while waiting:
        if len(waiting) + done > _MOST_NESTS:
            raise UnsupportedError(
                f"a row program's views split one loop into more than {_MOST_NESTS}"
            )
        current = waiting.pop()
        try:
            check(current.position)
        except Factor as found:
            waiting.append(_factored(current, found))
            continue
        except Cut as found:
            waiting += _cut(current, found)[::-1]
            continue
        done += 1
        yield current


def _factored(nest: Nest, found: Factor) -> Nest:
    high = Variable(found.variable.extent // found.low_extent)
    low = Variable(found.low_extent)
    meaning = Position.of(high, found.low_extent) + Position.of(low)
    return nest.substitute(found.variable, [high, low], meaning)


def _cut(nest: Nest, found: Cut) -> list[Nest]:
    parts: list[Nest] = []
    for start, end in ((0, found.at), (found.at, found.variable.extent)):
        part = Variable(end - start)
        parts.append(nest.substitute(found.variable, [part], Position.of(part).shifted(start)))
    return parts


def element_count(
    vector: Variable | None, leaves: set[tuple[int, Position]], plan: RowPlan, lanes: int, most: int
) -> int:
    """Return how many neighbouring elements a lane should hold: more than one saves loop steps."""
    if vector is None:
        return 1
    for value, position in leaves:
        node = plan.node(value)
        if position.coefficient(vector) > 1 or (
            node is not None and node.op == "iota" and position.coefficient(vector)
        ):
            return 1
    return next((c for c in (4, 2) if c <= most and vector.extent % (lanes * c) == 0), 1)


def pick_vector(nest: Nest, lanes: int) -> Variable | None:
    """Return the variable that the lanes take: the innermost that fills them, or the longest."""
    if not nest.variables:
        return None
    for candidate in reversed(nest.variables):
        if candidate.extent >= lanes:
            return candidate
    return max(reversed(nest.variables), key=lambda v: v.extent)


def run_flat(b: IRBuilder, nest: Nest, body: Callable[[Scope], None], *, count: int = 1) -> None:
    """Emit a nest as one loop that is dealt to the invocations of a workgroup.

    Args:
        b: The builder.
        nest: Its variables are digits of the loop's index, the innermost the lowest.
        body: Sees the variables' values.
        count: Neighbouring elements of each invocation along the innermost variable.
    """
    total = math.prod(v.extent for v in nest.variables)
    with b.foreach(0, total // count) as loop:
        scope, rest = Scope({}), loop.index
        if count > 1:
            scope = Scope({}, nest.variables[-1], count, is_aligned=True)
        for number, variable in enumerate(reversed(nest.variables)):
            is_last = number == len(nest.variables) - 1
            extent = variable.extent if number else variable.extent // count
            scope.values[variable] = rest if is_last else b.mod(rest, extent)
            rest = rest if is_last else b.floordiv(rest, extent)
        body(scope)


def run_nest(
    b: IRBuilder,
    nest: Nest,
    vector: Variable | None,
    count: int,
    body: Callable[[Scope], None],
) -> None:
    """Emit a nest; ``body`` sees the loop variables' values, the vector variable innermost."""
    with ExitStack() as stack:
        scope = Scope({}, vector, count)
        for outer in nest.variables:
            if outer != vector:
                loop = stack.enter_context(b.for_(0, outer.extent))
                scope.values[outer] = loop.index
        if vector is not None:
            loop = stack.enter_context(b.foreach(0, vector.extent // count))
            scope.values[vector] = loop.index
        body(scope)
