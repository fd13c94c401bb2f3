"""The tracing context of a model: declares what goes in and out, and records what happens between."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from poot_core import DType, L, R, Shape, ShapeError, T, TraceError, format_shape, i32
from poot_graph_ir._graph import Graph, Scope, Value
from poot_graph_ir._location import model_location
from poot_graph_ir._options import B, StepSlots, TraceOptions
from poot_graph_ir._trace import Trace
from poot_graph_ir._tracer import Tracer
from poot_graph_ir._types import ElementType, Storage, TensorType, is_packed

__all__ = ["Builder"]


class Builder(Trace):
    """Traces one model into a graph.

    >>> from poot_graph_ir import Builder, ops
    >>> from poot_core import T, f32
    >>> b = Builder("double")
    >>> b.output("y", b.slot("x", (T, 4), f32) * 2.0)
    >>> [equation.op for equation in b.finish()]
    ['full', 'mul']
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._inputs: dict[str, Tracer] = {}
        self._outputs: dict[str, Value] = {}
        self._updates: dict[str, Value] = {}
        self._finished = False

    # --- inputs ---

    def const(self, name: str, shape: Shape, dtype: ElementType) -> Tracer:
        """Return a weight by its checkpoint name; asking again returns the same one.

        Args:
            name: Name in the checkpoint.
            shape: Logical shape, that of the decoded values; static.
            dtype: Dense dtype or packed format, as stored.

        Raises:
            TraceError: If the name was declared before with another type or storage class.
            ShapeError: If a packed weight's rows are no whole number of blocks.
        """
        if is_packed(dtype) and (
            not shape or not isinstance(shape[-1], int) or shape[-1] % dtype.block_elements
        ):
            raise ShapeError(
                f"weight {name!r} of {format_shape(shape)} cannot be {dtype.name}: its rows are no "
                f"whole number of blocks of {dtype.block_elements}, at {model_location()}",
                location=model_location(),
            )
        return self._declare(name, TensorType(tuple(shape), dtype), Storage.CONST)

    def slot(self, name: str, shape: Shape, dtype: DType) -> Tracer:
        """Return an input that the host writes before each step."""
        return self._declare(name, TensorType(tuple(shape), dtype), Storage.SLOT)

    def state(self, name: str, shape: Shape, dtype: DType) -> Tracer:
        """Return a tensor that outlives the step; see ``update_state``."""
        return self._declare(name, TensorType(tuple(shape), dtype), Storage.STATE)

    def kv_states(
        self,
        layer: int,
        num_kv_heads: int,
        head_dim: int,
        options: TraceOptions,
        *,
        value_dim: int | None = None,
    ) -> tuple[Tracer, Tracer]:
        """Return the paged pools ``kv.<layer>.key`` and ``kv.<layer>.value`` of a layer.

        Their shape is (num_blocks, block_size, num_kv_heads, head_dim or value_dim).
        """
        lead = (options.num_blocks, options.block_size, num_kv_heads)
        key = self.state(f"kv.{layer}.key", (*lead, head_dim), options.kv_dtype)
        value = self.state(f"kv.{layer}.value", (*lead, value_dim or head_dim), options.kv_dtype)
        return key, value

    def step_slots(self, max_blocks_per_row: int | None = None) -> StepSlots:
        """Return the standard slots of a ragged step, named as in ``StepSlots``.

        Args:
            max_blocks_per_row: Width of a block table; None binds it at each step.
        """
        width = B if max_blocks_per_row is None else max_blocks_per_row
        return StepSlots(
            token_ids=self.slot("token_ids", (T,), i32),
            positions=self.slot("positions", (T,), i32),
            rows=self.slot("rows", (T,), i32),
            sequence_lengths=self.slot("sequence_lengths", (R,), i32),
            block_tables=self.slot("block_tables", (R, width), i32),
            slot_mapping=self.slot("slot_mapping", (T,), i32),
            logit_positions=self.slot("logit_positions", (L,), i32),
        )

    def _declare(self, name: str, kind: TensorType, storage: Storage) -> Tracer:
        found = self._inputs.get(name)
        if found is None:
            found = self._inputs[name] = Tracer(self, self._new(kind, storage, name))
        elif found.type != kind or found.value.storage is not storage:
            raise TraceError(
                f"{name!r} was declared as {found.value.storage.value} {found.type} and now as "
                f"{storage.value} {kind}, at {model_location()}",
                location=model_location(),
            )
        return found

    # --- results ---

    def output(self, name: str, tracer: Tracer) -> None:
        """Name a result of the step.

        Raises:
            TraceError: If there is one of that name.
        """
        if name in self._outputs:
            raise TraceError(f"output {name!r} is set twice, at {model_location()}")
        (self._outputs[name],) = self._values("output", (tracer,))

    def update_state(self, state: Tracer, new: Tracer) -> None:
        """Make ``new`` the value of ``state`` after the step; the old value is given up.

        Raises:
            TraceError: If ``state`` is no state, is updated twice, or ``new`` has another type.
        """
        old, value = self._values("update_state", (state, new))
        if old.storage is not Storage.STATE or old.name in self._updates or old.type != value.type:
            raise TraceError(
                f"cannot update {old.storage.value} {old.name!r} of {old.type} with {value.type}: "
                f"it must be a state, updated once, with its own type, at {model_location()}",
                location=model_location(),
            )
        self._updates[old.name] = value

    # --- structure ---

    @contextmanager
    def scope(self, name: str) -> Generator[None]:
        """Name a part of the model in printed graphs and error messages."""
        outer = self._scope
        self._scope = Scope((*outer.path, name), outer.layer)
        try:
            yield
        finally:
            self._scope = outer

    @contextmanager
    def layer(self, number: int) -> Generator[None]:
        """Mark what is recorded inside as the repeated layer ``number``.

        Layers of equal structure are planned once; values that all layers share (rotary tables,
        masks) are made outside.
        """
        outer = self._scope
        self._scope = Scope((*outer.path, f"layer.{number}"), number)
        try:
            yield
        finally:
            self._scope = outer

    def finish(self) -> Graph:
        """Return the graph; the builder takes no more equations.

        Raises:
            TraceError: If nothing was named as an output or a state's update.
        """
        if self._finished or not (self._outputs or self._updates):
            raise TraceError(
                f"builder {self.name!r} has no outputs or was finished before, "
                f"at {model_location()}"
            )
        self._finished = True
        return Graph(
            name=self.name,
            inputs=tuple(tracer.value for tracer in self._inputs.values()),
            equations=tuple(self._equations),
            outputs=tuple(self._outputs.items()),
            updates=tuple(self._updates.items()),
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}{format_shape(t.shape)}" for n, t in self._inputs.items())
        return f"Builder({self.name!r}: {shown})"
