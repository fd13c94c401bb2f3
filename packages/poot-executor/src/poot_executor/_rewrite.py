"""What passes share: who makes and who uses a value, fresh values, and substitution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from poot_core import SymbolicDim, UnsupportedError
from poot_graph_ir import Equation, Graph, TensorType, Value

__all__ = [
    "Links",
    "attribute",
    "extents",
    "fresh_values",
    "leading_symbol",
    "refuse",
    "static_shape",
    "substitute",
]


class Links:
    """Makers and users of the values of one graph, as it was when this was built."""

    def __init__(self, graph: Graph) -> None:
        self.maker: dict[int, Equation] = {}
        self.users: dict[int, list[Equation]] = {}
        self.position: dict[int, int] = {}
        for index, equation in enumerate(graph.equations):
            for value in equation.outputs:
                self.maker[value.id] = equation
                self.position[value.id] = index
            for value in dict.fromkeys(v.id for v in equation.inputs):
                self.users.setdefault(value, []).append(equation)
        self.kept = {v.id for _, v in graph.outputs} | {v.id for _, v in graph.updates}

    def users_of(self, value: Value) -> list[Equation]:
        """Return the equations that read a value."""
        return self.users.get(value.id, [])

    def is_used_once(self, value: Value) -> bool:
        """Whether one equation reads the value and the step does not return it."""
        return len(self.users_of(value)) == 1 and value.id not in self.kept


class fresh_values:
    """Makes values whose ids no value of the graph has."""

    def __init__(self, graph: Graph) -> None:
        used = [v.id for e in graph.equations for v in e.outputs]
        self._next = max([*used, *(v.id for v in graph.inputs)], default=-1) + 1

    def __call__(self, kind: TensorType) -> Value:
        """Return a new computed value."""
        value = Value(self._next, kind)
        self._next += 1
        return value


def substitute(graph: Graph, equations: Iterable[Equation], mapping: Mapping[int, Value]) -> Graph:
    """Return the graph with other equations, in which mapped values are read instead of the old."""

    def final(value: Value) -> Value:
        while value.id in mapping and mapping[value.id].id != value.id:
            value = mapping[value.id]
        return value

    changed: list[Equation] = []
    for equation in equations:
        if any(value.id in mapping for value in equation.inputs):
            equation = replace(equation, inputs=tuple(final(v) for v in equation.inputs))
        changed.append(equation)
    return replace(
        graph,
        equations=tuple(changed),
        outputs=tuple((name, final(value)) for name, value in graph.outputs),
        updates=tuple((name, final(value)) for name, value in graph.updates),
    )


def attribute(equation: Equation, name: str) -> Any:
    """Return an attribute; the primitive's rule has checked its type."""
    return equation.attributes[name]


def extents(value: Value) -> tuple[int, ...]:
    """Return the shape of a value that has no symbolic dimension.

    Raises:
        UnsupportedError: If it has one.
    """
    found = tuple(dim for dim in value.shape if isinstance(dim, int))
    if len(found) != len(value.shape):
        raise UnsupportedError(f"{value.name or value} of {value.type} must have a static shape")
    return found


def leading_symbol(value: Value) -> str | None:
    """Return the name of the symbolic dimension that a value's rows count, or None."""
    dim = value.shape[0] if value.shape else None
    return dim.name if isinstance(dim, SymbolicDim) else None


def static_shape(equation: Equation, value: Value) -> tuple[int, ...]:
    """Return the shape without a leading symbolic dimension; refuse symbols elsewhere."""
    shape = value.shape[1:] if leading_symbol(value) else value.shape
    if any(isinstance(dim, SymbolicDim) for dim in shape):
        refuse(equation, f"its shape {value.type} has a symbolic dimension that does not lead")
    return tuple(int(dim) for dim in shape if not isinstance(dim, SymbolicDim))


def refuse(equation: Equation, why: str) -> NoReturn:
    """Raise the planner's typed refusal: names the equation, its place and what is missing."""
    operands = ", ".join(f"{v.name or v}: {v.type}" for v in equation.inputs)
    scope = "/".join(equation.scope.path)
    raise UnsupportedError(
        f"cannot plan {equation.op}({operands}){f' of {scope}' if scope else ''}: {why}"
        f"{f'; at {equation.location}' if equation.location else ''}",
        op=equation.op,
        location=str(equation.location) if equation.location else None,
    )
