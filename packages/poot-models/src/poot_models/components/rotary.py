"""Rotating queries and keys by tables that are made once a step."""

from __future__ import annotations

from dataclasses import dataclass

from poot_graph_ir import Tracer, ops

__all__ = ["Rotation"]


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rotary embedding at the positions of one step.

    Attributes:
        tables: Cosines and sines, (T, rotary_dim / 2) each.
        interleaved: Whether pairs are neighbours rather than halves.
    """

    tables: tuple[Tracer, Tracer]
    interleaved: bool

    def __call__(self, x: Tracer) -> Tracer:
        """Return (T, heads, head_dim) with its leading elements rotated."""
        return ops.apply_rope(x, self.tables, interleaved=self.interleaved)
