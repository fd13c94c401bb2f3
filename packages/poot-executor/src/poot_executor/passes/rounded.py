"""Products whose results are read rounded alone store them rounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from poot_graph_ir import Equation, Graph

__all__ = ["StoreRounded"]


@dataclass(frozen=True, slots=True)
class StoreRounded:
    """Let a contraction whose only reader rounds it to bf16 store bf16: the same bits, read once."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph in which such roundings are part of the contraction."""
        uses = Counter(value.id for equation in graph.equations for value in equation.inputs)
        uses.update(value.id for _, value in (*graph.outputs, *graph.updates))
        makers = {e.outputs[0].id: e for e in graph.equations if e.op == "contract"}
        rounded: dict[int, Equation] = {}
        for equation in graph.equations:
            if equation.op != "quantise" or equation.attributes["kind"] != "bf16":
                continue
            source = equation.inputs[0]
            if source.id in makers and uses[source.id] == 1:
                rounded[source.id] = equation
        dropped = {id(equation) for equation in rounded.values()}
        equations = [
            replace(e, outputs=rounded[e.outputs[0].id].outputs)
            if e.op == "contract" and e.outputs[0].id in rounded
            else e
            for e in graph.equations
            if id(e) not in dropped
        ]
        return replace(graph, equations=tuple(equations))
