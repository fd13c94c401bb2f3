"""Structural hashes: equal for graphs that mean the same by construction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from poot_graph_ir._graph import Body, Equation, Graph, Value
from poot_graph_ir._printer import format_attribute

__all__ = ["graph_hash", "hash_equations"]


def graph_hash(graph: Graph) -> str:
    """Return 64 hexadecimal digits that depend on what a graph computes and from what.

    Names of inputs, outputs and states count; value ids, locations, scopes and the graph's own name
    do not.
    """
    inputs = [f"{v.storage.value} {v.name} {v.type}" for v in graph.inputs]
    numbers, lines = hash_equations(graph.inputs, graph.equations)
    named = [f"{name}={numbers[value.id]}" for name, value in (*graph.outputs, *graph.updates)]
    return _digest([*inputs, "", *lines, "", f"{len(graph.outputs)}", *named])


def hash_equations(
    inputs: Sequence[Value], equations: Iterable[Equation]
) -> tuple[dict[int, int], list[str]]:
    """Return dense numbers for values, inputs first, and a line for each equation that uses them."""
    numbers = {value.id: number for number, value in enumerate(inputs)}
    bodies: dict[int, str] = {}
    lines: list[str] = []
    for equation in equations:
        for value in equation.outputs:
            numbers[value.id] = len(numbers)
        attributes = sorted((k, format_attribute(v)) for k, v in equation.attributes.items())
        operands = [numbers[value.id] for value in equation.inputs]
        results = [str(value.type) for value in equation.outputs]
        body = "" if equation.body is None else _body_hash(equation.body, bodies)
        lines.append(f"{equation.op} {operands} {attributes} {results} {body}")
    return numbers, lines


def _body_hash(body: Body, known: dict[int, str]) -> str:
    found = known.get(id(body))
    if found is None:
        numbers, lines = hash_equations(body.inputs, body.equations)
        inputs = [str(value.type) for value in body.inputs]
        outputs = [str(numbers[value.id]) for value in body.outputs]
        found = known[id(body)] = _digest([*inputs, "", *lines, "", *outputs])
    return found


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
