"""Facts about a graph: who makes and uses a value, how long it lives, what is given up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poot_graph_ir._graph import Body, Equation, Graph, Value

__all__ = ["Use", "donated_inputs", "live_ranges", "uses"]


@dataclass(frozen=True, slots=True)
class Use:
    """One operand of one equation.

    Attributes:
        equation: Index in the list of equations.
        operand: Index in the equation's inputs.
    """

    equation: int
    operand: int


def uses(equations: Iterable[Equation]) -> dict[int, list[Use]]:
    """Return the uses of each value id that is used, in order."""
    found: dict[int, list[Use]] = {}
    for number, equation in enumerate(equations):
        for position, value in enumerate(equation.inputs):
            found.setdefault(value.id, []).append(Use(number, position))
    return found


def live_ranges(graph: Graph) -> dict[int, tuple[int, int]]:
    """Return the first and last equation index at which each value is alive.

    Inputs are alive from -1; outputs and updates to ``len(graph.equations)``; a value nobody uses
    ends where it is made.
    """
    ranges = {value.id: (-1, -1) for value in graph.inputs}
    for number, equation in enumerate(graph.equations):
        for value in equation.inputs:
            ranges[value.id] = (ranges[value.id][0], number)
        for value in equation.outputs:
            ranges[value.id] = (number, number)
    for _, value in (*graph.outputs, *graph.updates):
        ranges[value.id] = (ranges[value.id][0], len(graph.equations))
    return ranges


def donated_inputs(equation: Equation, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the operands that an equation gives up: those that it scatters into.

    Args:
        equation: A primitive or a region.
        known: What earlier calls found out about bodies, by identity; extended.
    """
    if equation.op == "scatter":
        return (0,)
    body = equation.body
    if body is None:
        return ()
    found = known.get(id(body))
    if found is None:
        found = known[id(body)] = _donated_arguments(body.inputs, body, known)
    return found


def _donated_arguments(
    arguments: Sequence[Value], body: Body, known: dict[int, tuple[int, ...]]
) -> tuple[int, ...]:
    given = {
        equation.inputs[operand].id
        for equation in body.equations
        for operand in donated_inputs(equation, known)
    }
    return tuple(i for i, value in enumerate(arguments) if value.id in given)
