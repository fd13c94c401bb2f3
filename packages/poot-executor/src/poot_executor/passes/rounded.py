"""Products and attention whose results are read rounded alone store them rounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from poot_core import bf16
from poot_executor._rewrite import fresh_values
from poot_graph_ir import Equation, Graph, TensorType, Value

__all__ = ["StoreRounded"]

_MAKERS = frozenset({"contract", "attend"})


@dataclass(frozen=True, slots=True)
class StoreRounded:
    """Let an equation whose only reader rounds it to bf16 store bf16: the same bits, read once.

    A reshape may stand between the two.
    """

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph in which such roundings are part of what makes the value."""
        uses = Counter(value.id for equation in graph.equations for value in equation.inputs)
        uses.update(value.id for _, value in (*graph.outputs, *graph.updates))
        makers = {e.outputs[0].id: e for e in graph.equations if e.outputs}
        fresh = fresh_values(graph)
        stored: dict[int, Value] = {}  # by the value in f32: what is stored in its place
        dropped: set[int] = set()
        for equation in graph.equations:
            if equation.op != "quantise" or equation.attributes["kind"] != "bf16":
                continue
            source = equation.inputs[0]
            maker, reshaped = makers.get(source.id), None
            if maker is not None and maker.op == "reshape":
                reshaped, source = source, maker.inputs[0]
                maker = makers.get(source.id)
            inner = [source] if reshaped is None else [source, reshaped]
            if maker is None or maker.op not in _MAKERS or any(uses[v.id] != 1 for v in inner):
                continue
            (result,) = equation.outputs
            dropped.add(id(equation))
            if reshaped is None:
                stored[source.id] = result
            else:
                stored[reshaped.id] = result
                stored[source.id] = fresh(TensorType(source.shape, bf16))
        equations = [_with(e, stored) for e in graph.equations if id(e) not in dropped]
        return replace(graph, equations=tuple(equations))


def _with(equation: Equation, stored: dict[int, Value]) -> Equation:
    """Return an equation that makes, and reads, values as they are stored."""
    values = (*equation.inputs, *equation.outputs)
    if not any(value.id in stored for value in values):
        return equation
    return replace(
        equation,
        inputs=tuple(stored.get(value.id, value) for value in equation.inputs),
        outputs=tuple(stored.get(value.id, value) for value in equation.outputs),
    )
