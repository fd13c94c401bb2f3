"""Weights, and what is computed from weights and literals alone: made on demand, kept under a cap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from poot_core import SymbolicDim
from poot_eval._interpreter import Interpreter
from poot_eval._packed import Array, Packed, Tensor, weight_array
from poot_graph_ir import Equation, Graph, Storage, Value

__all__ = ["StaticValues", "Weights"]

Weights = Callable[[str], Array]
"""A weight by checkpoint name: the dense array, or its bytes as stored (uint8, any shape)."""


class StaticValues:
    """The values of a graph that no step changes.

    Attributes:
        dynamic: The equations that depend on slots, states or symbolic extents.
    """

    def __init__(
        self, graph: Graph, weights: Weights, interpreter: Interpreter, cap_bytes: int
    ) -> None:
        self.dynamic, self._makers = _split(graph)
        self._weights = weights
        self._interpreter = interpreter
        self._cap_bytes = cap_bytes
        self._kept: OrderedDict[int, Tensor] = OrderedDict()
        self._kept_bytes = 0

    def resolve(self, value: Value) -> Tensor:
        """Return a weight or a static value, computed now unless it is still kept."""
        found = self._kept.get(value.id)
        if found is not None:
            self._kept.move_to_end(value.id)
            return found
        if value.storage is Storage.CONST:
            return weight_array(value.name, value.type, self._weights(value.name))
        equation = self._makers[value.id]
        environment: dict[int, Tensor] = {}
        self._interpreter.run(
            equation, (equation,), environment, equation.outputs, {}, set(), self.resolve
        )
        for output in equation.outputs:
            self._keep(output.id, environment[output.id])
        return environment[value.id]

    def _keep(self, identity: int, tensor: Tensor) -> None:
        size = _owned_bytes(tensor)
        if size > self._cap_bytes:
            return
        self._kept[identity] = tensor
        self._kept_bytes += size
        while self._kept_bytes > self._cap_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= _owned_bytes(dropped)


def _owned_bytes(tensor: Tensor) -> int:
    array = tensor.data if isinstance(tensor, Packed) else tensor
    return 0 if isinstance(array.base, np.ndarray) else array.nbytes


def _split(graph: Graph) -> tuple[tuple[Equation, ...], dict[int, Equation]]:
    static = {value.id for value in graph.consts.values()}
    dynamic: list[Equation] = []
    makers: dict[int, Equation] = {}
    for equation in graph.equations:
        fixed = all(value.id in static for value in equation.inputs) and not any(
            isinstance(dim, SymbolicDim) for value in equation.outputs for dim in value.shape
        )
        if fixed:
            static.update(value.id for value in equation.outputs)
            makers.update((value.id, equation) for value in equation.outputs)
        else:
            dynamic.append(equation)
    return tuple(dynamic), makers
