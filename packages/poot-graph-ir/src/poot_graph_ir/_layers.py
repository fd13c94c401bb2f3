"""Repeated layers: cutting a graph at its ``layer`` scopes, so that equal ones are planned once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from poot_graph_ir._graph import Equation, Graph, Value
from poot_graph_ir._hash import hash_equations
from poot_graph_ir._printer import format_attribute
from poot_graph_ir._types import Storage

__all__ = ["Layer", "split_layers"]


@dataclass(frozen=True)
class Layer:
    """The equations of one layer.

    Attributes:
        number: Index of the layer.
        equations: In dependency order.
        inputs: Values from outside, in order of first use: weights, slots, states, results of
            equations outside of the layer (``full`` too).
        outputs: Values used outside of the layer, in order of definition: by other equations, as
            outputs of the graph or as updates of states.
        hash: Equal for layers that compute the same from other weights, states and operands; a plan
            for one serves the other with ``inputs`` and ``outputs`` matched by position.
    """

    number: int
    equations: tuple[Equation, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    hash: str


def split_layers(graph: Graph) -> dict[int, Layer]:
    """Return the layers of a graph by number; equations outside of all layers are left out."""
    grouped: dict[int, list[Equation]] = {}
    owner: dict[int, int | None] = {}
    makers: dict[int, Equation] = {}
    for equation in graph.equations:
        layer = equation.scope.layer
        if layer is not None:
            grouped.setdefault(layer, []).append(equation)
        for value in equation.outputs:
            owner[value.id] = layer
            makers[value.id] = equation
    leaving = {value.id for _, value in (*graph.outputs, *graph.updates)}
    for equation in graph.equations:
        for value in equation.inputs:
            if owner.get(value.id) != equation.scope.layer:
                leaving.add(value.id)
    updates = {value.id: graph.states[name].id for name, value in graph.updates}
    return {
        number: _layer(number, equations, leaving, makers, updates)
        for number, equations in grouped.items()
    }


def _layer(
    number: int,
    equations: list[Equation],
    leaving: set[int],
    makers: dict[int, Equation],
    updates: dict[int, int],
) -> Layer:
    inside = {value.id for equation in equations for value in equation.outputs}
    used = {v.id: v for e in equations for v in e.inputs if v.id not in inside}
    inputs = tuple(used.values())
    outputs = tuple(v for e in equations for v in e.outputs if v.id in leaving)
    numbers, lines = hash_equations(inputs, equations)
    given = [_role(value, makers.get(value.id)) for value in inputs]
    leaves = [
        f"{numbers[value.id]} updates {numbers.get(updates.get(value.id, -1))}" for value in outputs
    ]
    text = "\n".join([*given, "", *lines, "", *leaves])
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Layer(number, tuple(equations), inputs, outputs, digest)


def _role(value: Value, maker: Equation | None) -> str:
    """Return what a plan may depend on: constants by value, slots by name, all else by type."""
    if maker is not None and not maker.inputs:
        attributes = [format_attribute(item) for item in maker.attributes.values()]
        return f"{maker.op} {attributes}"
    name = value.name if value.storage is Storage.SLOT else ""
    return f"{value.storage.value} {name} {value.type}"
