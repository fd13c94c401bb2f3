"""A graph with its weights and states: the oracle as a program that runs step after step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poot_core import DType, bind_shape
from poot_eval._evaluate import run_graph
from poot_eval._interpreter import Interpreter
from poot_eval._packed import Array
from poot_eval._static import StaticValues, Weights
from poot_graph_ir import Graph

__all__ = ["OracleProgram"]

_CAP_BYTES = 2 << 30


class OracleProgram:
    """Holds the states of a graph between steps, and decoded weights up to a cap of bytes.

    Args:
        graph: What each step computes.
        weights: Consts by name; called again for a weight whose decoded values were dropped.
        check: Whether each result's shape and dtype are compared with its type.
        cache_bytes: Most bytes of decoded weights to keep; the least recently used go first.
        sizes: Extents of symbolic dimensions of states, if there are any.

    Attributes:
        graph: As given.
        states: By name; zeros at first. Steps overwrite the arrays.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        *,
        check: bool = False,
        cache_bytes: int = _CAP_BYTES,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.graph = graph
        self._sizes = dict(sizes or {})
        self._interpreter = Interpreter(check)
        self._static = StaticValues(graph, weights, self._interpreter, cache_bytes)
        self.states: dict[str, Array] = {}
        self.reset()

    def reset(self) -> None:
        """Set every state to zero."""
        self.states = {}
        for name, value in self.graph.states.items():
            assert isinstance(value.dtype, DType)
            shape = bind_shape(value.shape, self._sizes)
            self.states[name] = np.zeros(shape, value.dtype.numpy)

    def step(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step and return its outputs by name; the states are changed.

        Raises:
            ShapeError: If an input or a weight is missing or has another shape.
            DTypeError: If one has another dtype.
            VerifyError: If ``check`` finds a difference.
        """
        result = run_graph(self.graph, inputs, self.states, self._static, self._interpreter)
        self.states = result.states
        return result.outputs
