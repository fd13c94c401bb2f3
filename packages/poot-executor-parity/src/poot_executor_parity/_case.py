"""One line of the parity table: a small graph whose planned kernels must equal the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_graph_ir import Builder, ElementType, StepSlots, TraceOptions, Tracer

__all__ = ["Case", "Context", "Declare"]

Declare = Callable[[str, tuple[int, ...], ElementType], Tracer]


@dataclass(frozen=True, slots=True)
class Context:
    """What a case builds with.

    Attributes:
        builder: The open graph.
        slots: Slots of the step.
        options: Sizes of the KV pools.
        x: (T, width) f32, random, different for each token id.
        declare: Returns a weight of random values by name, shape and stored type.
    """

    builder: Builder
    slots: StepSlots
    options: TraceOptions
    x: Tracer
    declare: Declare


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A graph and how it is run.

    Attributes:
        name: Unique; ``group/what``.
        build: Returns (T, N) f32 from a context.
        width: Width of ``x``.
        steps: For each step the numbers of tokens that its rows compute.
        precision: ``f32`` or ``auto``.
        tolerance: Largest difference to the oracle, relative to the root mean square of its results.
    """

    name: str
    build: Callable[[Context], Tracer]
    width: int = 64
    steps: tuple[tuple[int, ...], ...] = ((1,), (5, 1, 3), (1, 1))
    precision: str = "f32"
    tolerance: float = 1e-5


@dataclass(slots=True)
class RandomWeights:
    """Random weights by name, made when they are declared; a weight source."""

    seed: int = 0
    stored: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor as stored."""
        return self.stored[name].reshape(-1).view(np.uint8)

    def release(self, name: str) -> None:
        """Do nothing: nothing is mapped."""
