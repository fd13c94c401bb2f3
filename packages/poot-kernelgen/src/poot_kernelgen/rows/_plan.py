"""Which values of a row program are stored in scratch, and what they cost to compute again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

from poot_core import UnsupportedError
from poot_kernelgen.requests import EIGHT_BIT, RowNode, RowProgram
from poot_kernelgen.rows._views import VIEWS

__all__ = ["RowPlan"]

_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
_COSTS = {"exp": 15, "log": 18, "sin": 22, "cos": 22, "tanh": 30, "erf": 35, "pow": 60, "div": 4,
          "sqrt": 6, "rsqrt": 8}  # fmt: skip
_RECOMPUTE = 8
"""A value that several passes read is computed again if it costs at most this many operations."""


class RowPlan:
    """Facts about a program's values, by number: inputs first, then nodes."""

    def __init__(self, program: RowProgram) -> None:
        self.program = program
        self.num_inputs = len(program.inputs)

    def node(self, value: int) -> RowNode | None:
        """Return the node that gives a value; None for an input."""
        return None if value < self.num_inputs else self.program.nodes[value - self.num_inputs]

    def shape(self, value: int) -> tuple[int, ...]:
        """Return a value's row-local shape."""
        node = self.node(value)
        return self.program.inputs[value].shape if node is None else node.shape

    def size(self, value: int) -> int:
        """Return the elements of a row of a value."""
        return math.prod(self.shape(value))

    def dtype(self, value: int) -> str:
        """Return a value's element type."""
        node = self.node(value)
        return self.program.inputs[value].dtype if node is None else node.dtype

    def is_reduction(self, value: int) -> bool:
        """Whether a value is a sum, maximum or minimum over axes."""
        node = self.node(value)
        return node is not None and node.op in _REDUCTIONS

    @cached_property
    def stored(self) -> frozenset[int]:
        """Values kept in scratch: reductions, and what several passes would pay for again."""
        reductions = {v for v in range(self.num_inputs, self._count) if self.is_reduction(v)}
        passes: dict[int, int] = {}
        for root in [*(o.value for o in self.program.outputs), *self._reduced(reductions)]:
            for value in self._reached(root, reductions):
                passes[value] = passes.get(value, 0) + 1
        expensive = {
            value
            for value, count in passes.items()
            if count > 1 and self._keeps(value) and self._cost(value, reductions) > _RECOMPUTE
        }
        return frozenset(reductions | expensive)

    def _keeps(self, value: int) -> bool:
        node = self.node(value)
        return node is not None and node.op not in VIEWS and self.size(value) > 1

    @property
    def _count(self) -> int:
        return self.num_inputs + len(self.program.nodes)

    def _reduced(self, reductions: Iterable[int]) -> list[int]:
        nodes = (self.node(value) for value in reductions)
        return [node.operands[0] for node in nodes if node is not None]

    def _reached(self, root: int, stops: set[int]) -> set[int]:
        found: set[int] = set()
        waiting = [root]
        while waiting:
            value = waiting.pop()
            node = self.node(value)
            if value in found or node is None or value in stops:
                continue
            found.add(value)
            waiting += node.operands
        return found

    def _cost(self, value: int, stops: set[int]) -> int:
        """Return operations and loads of computing one element."""
        total = 0
        for number in self._reached(value, stops):
            node = self.node(number)
            assert node is not None
            total += 0 if node.op in VIEWS else _COSTS.get(node.op, 1)
            total += sum(self.size(o) > 1 and self.node(o) is None for o in node.operands)
        return total

    def check(self) -> None:
        """Refuse what cannot be generated.

        Raises:
            UnsupportedError: If an output's kind does not fit its value.
        """
        for index, output in enumerate(self.program.outputs):
            size = self.size(output.value)
            if output.kind in EIGHT_BIT and size % 32:
                raise UnsupportedError(
                    f"output {index} of a row program is quantised in blocks of 32, "
                    f"its rows have {size} elements"
                )
            if output.kind == "kv" and (output.layout is None or output.slot_input is None):
                raise UnsupportedError(f"kv output {index} of a row program needs layout and slot")
