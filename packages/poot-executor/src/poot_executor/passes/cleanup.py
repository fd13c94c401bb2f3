"""Regions that no kernel covers, common subexpressions, dead equations: the graph's own rewrites."""

from __future__ import annotations

from dataclasses import dataclass

from poot_graph_ir import (
    Graph,
    eliminate_common_subexpressions,
    eliminate_dead_code,
    inline_regions,
)

__all__ = ["InlineRegions", "MergeEqual", "RemoveDead"]


@dataclass(frozen=True, slots=True)
class InlineRegions:
    """Replace regions, inner ones too, by their bodies.

    Attributes:
        keep: Regions that a kernel covers.
    """

    keep: tuple[str, ...] = ("attend", "kv_write")

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph whose regions are those of ``keep`` alone."""
        return inline_regions(graph, lambda equation: equation.op not in self.keep)


@dataclass(frozen=True, slots=True)
class MergeEqual:
    """Compute equal equations once."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph without repeated equations."""
        return eliminate_common_subexpressions(graph)


@dataclass(frozen=True, slots=True)
class RemoveDead:
    """Drop equations whose results nothing reads."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph of the equations that the outputs and updates need."""
        return eliminate_dead_code(graph)
