"""The text of a graph; ``parse`` is its inverse."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence

from poot_core import DType, SymbolicDim
from poot_graph_ir._graph import Attribute, Body, Equation, Graph, Literal

__all__ = ["format_attribute", "format_equation", "print_graph"]


def print_graph(graph: Graph, *, locations: bool = True, literals: bool = True) -> str:
    """Return the text of a graph.

    Args:
        graph: What to print.
        locations: Whether each equation names its model line.
        literals: Whether the bytes of literals follow; without them the text does not parse.
    """
    bodies = _name_bodies(graph.equations)
    lines = [f"graph {json.dumps(graph.name)}"]
    for body, name in bodies.values():
        arguments = ", ".join(f"{value}: {value.type}" for value in body.inputs)
        lines.append(f"body @{name}({arguments}) {{")
        lines += _equation_lines(body.equations, bodies, locations)
        lines.append(f"  yield {', '.join(map(str, body.outputs))}")
        lines.append("}")
    lines.append("inputs {")
    for value in graph.inputs:
        lines.append(f"  {value}: {value.type} = {value.storage.value} {json.dumps(value.name)}")
    lines += ["}", "equations {"]
    lines += _equation_lines(graph.equations, bodies, locations)
    lines.append("}")
    for title, named in (("outputs", graph.outputs), ("updates", graph.updates)):
        lines.append(f"{title} {{")
        lines += [f"  {json.dumps(name)} = {value}" for name, value in named]
        lines.append("}")
    if literals:
        lines.append("literals {")
        lines += _literal_lines(graph)
        lines.append("}")
    return "\n".join(lines) + "\n"


def format_equation(equation: Equation, body: str | None = None, *, location: bool = True) -> str:
    """Return one equation as a line.

    Args:
        equation: What to print.
        body: Name of a region's body; left out where None.
        location: Whether the model line follows.
    """
    results = ", ".join(f"{value}: {value.type}" for value in equation.outputs)
    operands = ", ".join(map(str, equation.inputs))
    name = f"{equation.op} @{body}" if body else equation.op
    text = f"{results} = {name}({operands})"
    if equation.attributes:
        text += f" {{{_format_attributes(equation.attributes)}}}"
    if equation.scope.path:
        text += " in " + " ".join(json.dumps(part) for part in equation.scope.path)
    if equation.scope.layer is not None:
        text += f" layer {equation.scope.layer}"
    if location and (where := equation.location) is not None:
        text += f" at {json.dumps(where.path)}:{where.line} {json.dumps(where.function)}"
    return text


def format_attribute(value: Attribute) -> str:
    """Return an attribute as text.

    >>> format_attribute((1, 2.0, None, "a", SymbolicDim("T")))
    '(1, 2.0, none, "a", T)'
    """
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value)
        case DType() | SymbolicDim():
            return repr(value)
        case Literal():
            return f"#{value.digest}"
        case tuple():
            inner = ", ".join(format_attribute(item) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"


def _format_attributes(attributes: Mapping[str, Attribute]) -> str:
    return ", ".join(f"{name} = {format_attribute(value)}" for name, value in attributes.items())


Bodies = dict[int, tuple[Body, str]]


def _name_bodies(equations: Iterable[Equation]) -> Bodies:
    """Return each body once, by identity, inner ones first, with a name."""
    bodies: Bodies = {}

    def visit(equations: Iterable[Equation]) -> None:
        for equation in equations:
            if equation.body is not None and id(equation.body) not in bodies:
                visit(equation.body.equations)
                bodies[id(equation.body)] = (equation.body, f"{equation.op}.{len(bodies)}")

    visit(equations)
    return bodies


def _equation_lines(equations: Sequence[Equation], bodies: Bodies, locations: bool) -> list[str]:
    lines: list[str] = []
    for equation in equations:
        name = None if equation.body is None else bodies[id(equation.body)][1]
        lines.append("  " + format_equation(equation, name, location=locations))
    return lines


def _literal_lines(graph: Graph) -> list[str]:
    found: dict[str, Literal] = {}
    lists = [graph.equations, *(body.equations for body, _ in _name_bodies(graph).values())]
    for equations in lists:
        for equation in equations:
            for value in equation.attributes.values():
                if isinstance(value, Literal):
                    found.setdefault(value.digest, value)
    return [
        f"  #{digest}: {literal.type} = "
        f"{json.dumps(base64.b64encode(literal.array.tobytes()).decode())}"
        for digest, literal in found.items()
    ]
