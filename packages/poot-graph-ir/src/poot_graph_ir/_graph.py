"""The graph: a flat list of typed equations in single-assignment form, with shared region bodies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from poot_core import DType, Shape, SymbolicDim, dtype_of
from poot_graph_ir._types import ElementType, Storage, TensorType

__all__ = ["Attribute", "Body", "Equation", "Graph", "Literal", "Location", "Scope", "Value"]


class Literal:
    """An array known at trace time; equal to another when type and bytes are.

    Attributes:
        array: The values, C-contiguous and read-only.
        digest: First 32 hexadecimal digits of the SHA-256 of dtype, shape and bytes.
    """

    __slots__ = ("array", "digest", "type")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = np.array(array, order="C", copy=True)
        self.array.setflags(write=False)
        self.type = TensorType(self.array.shape, dtype_of(self.array))
        header = str(self.type).encode()
        self.digest = hashlib.sha256(header + self.array.tobytes()).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Literal({self.type}, {self.digest})"


# ``Any`` in the tuple keeps the alias non-recursive; the printer refuses what it cannot print.
Attribute = bool | int | float | str | DType | SymbolicDim | Literal | tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Location:
    """The line of model code that asked for an equation."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Where in the model an equation stands.

    Attributes:
        path: Names of the open ``Builder.scope`` contexts, outermost first.
        layer: Index of the repeated layer, or None outside of all layers.
    """

    path: tuple[str, ...] = ()
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """One SSA result.

    Attributes:
        id: Unique within its graph or body.
        type: Shape and element type.
        storage: Where it lives.
        name: Checkpoint, slot or state name; empty for computed values and arguments.
    """

    id: int
    type: TensorType
    storage: Storage = Storage.COMPUTED
    name: str = ""

    @property
    def shape(self) -> Shape:
        """Extents in elements."""
        return self.type.shape

    @property
    def dtype(self) -> ElementType:
        """Dense dtype or packed format."""
        return self.type.dtype

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True, slots=True)
class Equation:
    """One application of a primitive, or of a region when there is a body.

    Attributes:
        op: Name of the primitive in ``PRIMITIVES``, or of the region.
        inputs: Operands.
        outputs: Results.
        attributes: Static parameters; treat as read-only.
        body: What a region means; None for a primitive. Layers of equal types share one body.
        scope: Place in the model; no part of the meaning.
        location: Model line; ignored by comparison.
    """

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Attribute]
    body: Body | None = None
    scope: Scope = Scope()
    location: Location | None = field(default=None, compare=False)

    @property
    def output(self) -> Value:
        """The only result."""
        (value,) = self.outputs
        return value

    @property
    def is_region(self) -> bool:
        """Whether this is a region: a name and attributes whose meaning is the body."""
        return self.body is not None


@dataclass(frozen=True)
class Body:
    """A closed list of equations with its own value ids: the only meaning of a region.

    Attributes:
        inputs: Arguments in the order of the region's inputs.
        equations: In dependency order.
        outputs: In the order of the region's outputs.
    """

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True)
class Graph:
    """A traced step.

    Attributes:
        name: What the model is called.
        inputs: Consts, slots and states in the order of their declaration.
        equations: In dependency order.
        outputs: Name and value of each result.
        updates: Name of each state that changes and the value it has after the step.
    """

    name: str
    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[tuple[str, Value], ...]
    updates: tuple[tuple[str, Value], ...] = ()

    def _of(self, storage: Storage) -> dict[str, Value]:
        return {v.name: v for v in self.inputs if v.storage is storage}

    @cached_property
    def consts(self) -> dict[str, Value]:
        """Weights by checkpoint name."""
        return self._of(Storage.CONST)

    @cached_property
    def slots(self) -> dict[str, Value]:
        """Per-step inputs by name."""
        return self._of(Storage.SLOT)

    @cached_property
    def states(self) -> dict[str, Value]:
        """States by name, as they enter the step."""
        return self._of(Storage.STATE)

    def __iter__(self) -> Iterator[Equation]:
        return iter(self.equations)

    def __str__(self) -> str:
        from poot_graph_ir._printer import print_graph

        return print_graph(self)
