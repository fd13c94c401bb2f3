"""What every pass must leave behind: values made once, before they are read, by known equations."""

from __future__ import annotations

from poot_core import VerifyError
from poot_graph_ir import PRIMITIVES, Equation, Graph

__all__ = ["verify_planned"]

_PLANNED = frozenset({"contract", "embed", "quantise", "attend", "kv_write"})


def verify_planned(graph: Graph, stage: str) -> None:
    """Check a graph between passes.

    Args:
        graph: What a pass returned.
        stage: Name of the pass, for the message.

    Raises:
        VerifyError: Names the pass and the equation.
    """
    made: set[int] = {value.id for value in graph.inputs}
    for equation in graph.equations:
        if equation.body is None and equation.op not in PRIMITIVES and equation.op not in _PLANNED:
            raise _broken(stage, equation, "has an operation that no stage knows")
        for value in equation.inputs:
            if value.id not in made:
                raise _broken(stage, equation, f"reads {value}, which nothing before it makes")
        for value in equation.outputs:
            if value.id in made:
                raise _broken(stage, equation, f"makes {value} a second time")
            made.add(value.id)
    for name, value in (*graph.outputs, *graph.updates):
        if value.id not in made:
            raise VerifyError(f"after {stage}: nothing makes the result {name!r}")


def _broken(stage: str, equation: Equation, what: str) -> VerifyError:
    return VerifyError(
        f"after {stage}: {equation.op} of {'/'.join(equation.scope.path) or 'the step'} {what}"
    )
