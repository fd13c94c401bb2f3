"""Small rewrites that keep the meaning of a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from poot_core import SymbolicDim
from poot_graph_ir._analysis import donated_inputs
from poot_graph_ir._graph import Equation, Graph, Literal, Value

__all__ = [
    "eliminate_common_subexpressions",
    "eliminate_dead_code",
    "fold_constants",
    "inline_regions",
]

EvaluateEquation = Callable[[Equation, Sequence[np.ndarray[Any, Any]]], Sequence[Any]]


def eliminate_dead_code(graph: Graph) -> Graph:
    """Return the graph without equations that no output and no update needs, and unused consts."""
    needed = {value.id for _, value in (*graph.outputs, *graph.updates)}
    kept: list[Equation] = []
    for equation in reversed(graph.equations):
        if any(value.id in needed for value in equation.outputs):
            kept.append(equation)
            needed.update(value.id for value in equation.inputs)
    consts = {value.id for value in graph.consts.values()}
    inputs = tuple(v for v in graph.inputs if v.id in needed or v.id not in consts)
    return replace(graph, inputs=inputs, equations=tuple(reversed(kept)))


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Return the graph with equal equations of one layer (or outside of all) computed once.

    Equations of different layers stay apart, so that the layers stay alike; so does what writes to
    a state.
    """
    seen: dict[Hashable, tuple[Value, ...]] = {}
    donations: dict[int, tuple[int, ...]] = {}
    renamed: dict[int, Value] = {}
    kept: list[Equation] = []
    for equation in graph.equations:
        inputs = tuple(renamed.get(value.id, value) for value in equation.inputs)
        key = (
            equation.op,
            tuple(value.id for value in inputs),
            # repr keeps 0.0 and -0.0, 1 and 1.0 and True apart.
            tuple((name, repr(item)) for name, item in sorted(equation.attributes.items())),
            id(equation.body),
            equation.scope.layer,
        )
        found = seen.get(key)
        if found is None or donated_inputs(equation, donations):
            seen[key] = equation.outputs
            kept.append(replace(equation, inputs=inputs) if inputs != equation.inputs else equation)
        else:
            renamed.update((v.id, w) for v, w in zip(equation.outputs, found, strict=True))
    return _with(graph, kept, renamed)


def fold_constants(graph: Graph, evaluate: EvaluateEquation, max_elements: int = 1 << 16) -> Graph:
    """Return the graph with what depends on literals alone computed now.

    Args:
        graph: What to fold.
        evaluate: Computes an equation on arrays: ``poot_eval.evaluate_equation``.
        max_elements: Largest result that becomes a literal.
    """
    known: dict[int, np.ndarray[Any, Any]] = {}
    kept: list[Equation] = []
    for equation in graph.equations:
        constant = all(value.id in known for value in equation.inputs) and all(
            _elements(value) <= max_elements for value in equation.outputs
        )
        if not constant:
            kept.append(equation)
            continue
        results = evaluate(equation, [known[value.id] for value in equation.inputs])
        for value, array in zip(equation.outputs, results, strict=True):
            known[value.id] = array
            kept.append(_constant(equation, value, array) if equation.inputs else equation)
    return eliminate_dead_code(replace(graph, equations=tuple(kept)))


def _elements(value: Value) -> float:
    size = 1.0
    for dim in value.shape:
        size *= float("inf") if isinstance(dim, SymbolicDim) else dim
    return size


def _constant(equation: Equation, value: Value, array: np.ndarray[Any, Any]) -> Equation:
    """Return an equation that makes a known array: ``full`` if all elements have the same bits."""
    dtype = value.dtype
    raw = np.ascontiguousarray(array).tobytes()
    if array.size and raw == raw[: array.itemsize] * array.size:
        item = array.reshape(-1)[0]
        # ml_dtypes scalars have no ``item`` of their own.
        number = float(item) if array.dtype.kind not in "iub" else item.item()
        attributes = {"shape": value.shape, "value": number, "dtype": dtype}
        return replace(
            equation, op="full", inputs=(), outputs=(value,), attributes=attributes, body=None
        )
    attributes = {"value": Literal(array)}
    return replace(
        equation, op="literal", inputs=(), outputs=(value,), attributes=attributes, body=None
    )


def inline_regions(graph: Graph, chosen: Callable[[Equation], bool]) -> Graph:
    """Return the graph with the chosen regions (inner ones too) replaced by their bodies."""
    largest = max((v.id for e in graph.equations for v in e.outputs), default=-1)
    fresh = count(max(largest, *(v.id for v in graph.inputs), -1) + 1)
    kept: list[Equation] = []

    def emit(equation: Equation, names: dict[int, Value], outer: Equation | None) -> None:
        inputs = tuple(names.get(value.id, value) for value in equation.inputs)
        if equation.body is not None and chosen(equation):
            inner = {v.id: w for v, w in zip(equation.body.inputs, inputs, strict=True)}
            site = outer or equation
            for part in equation.body.equations:
                emit(part, inner, site)
            for value, result in zip(equation.outputs, equation.body.outputs, strict=True):
                names[value.id] = inner.get(result.id, result)
            return
        if outer is not None:
            outputs = tuple(replace(value, id=next(fresh)) for value in equation.outputs)
            names.update((v.id, w) for v, w in zip(equation.outputs, outputs, strict=True))
            equation = replace(equation, outputs=outputs, scope=outer.scope)
        kept.append(replace(equation, inputs=inputs))

    names: dict[int, Value] = {}
    for equation in graph.equations:
        emit(equation, names, None)
    return _with(graph, kept, names)


def _with(graph: Graph, equations: Sequence[Equation], renamed: dict[int, Value]) -> Graph:
    def named(pairs: tuple[tuple[str, Value], ...]) -> tuple[tuple[str, Value], ...]:
        return tuple((name, renamed.get(value.id, value)) for name, value in pairs)

    return replace(
        graph,
        equations=tuple(equations),
        outputs=named(graph.outputs),
        updates=named(graph.updates),
    )
