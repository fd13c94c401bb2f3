"""Recording equations: one ``Trace`` for the graph and one for each region body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from poot_core import DType, DTypeError, Shape, ShapeError, TraceError, f32, i32
from poot_graph_ir._graph import Attribute, Body, Equation, Literal, Scope, Value
from poot_graph_ir._location import model_location
from poot_graph_ir._tracer import Tracer
from poot_graph_ir._types import Storage, TensorType
from poot_graph_ir.primitives import PRIMITIVES

__all__ = ["BodyFunction", "Trace"]

BodyFunction = Callable[..., Tracer | tuple[Tracer, ...]]
"""``body(trace, *arguments)``: may depend on the types of its arguments and on nothing else."""


class Trace:
    """An open list of equations; ``Builder`` is the one of a whole graph."""

    def __init__(self, bodies: dict[Any, Body] | None = None) -> None:
        self._equations: list[Equation] = []
        self._next_id = 0
        self._scope = Scope()
        self._full: dict[Any, Tracer] = {}
        self._bodies: dict[Any, Body] = {} if bodies is None else bodies

    # --- values without operands ---

    def full(self, shape: Shape, value: bool | int | float, dtype: DType = f32) -> Tracer:
        """Return a tensor that holds one number everywhere; equal ones are recorded once."""
        if dtype.kind == "float" and type(value) is int:
            value = float(value)
        key = (shape, dtype, value, str(value))  # the text keeps 0.0 and -0.0 apart
        found = self._full.get(key)
        if found is None:
            attributes: dict[str, Attribute] = {"shape": shape, "value": value, "dtype": dtype}
            scope, self._scope = self._scope, Scope()
            try:
                found = self._full[key] = self.emit("full", (), attributes)
            finally:
                self._scope = scope
        return found

    def iota(self, shape: Shape, axis: int = 0, dtype: DType = i32) -> Tracer:
        """Return the index along ``axis``."""
        return self.emit("iota", (), {"shape": shape, "axis": axis, "dtype": dtype})

    def literal(self, array: np.ndarray[Any, Any]) -> Tracer:
        """Return an array that is known now; its bytes become part of the graph.

        Raises:
            DTypeError: If poot has no such dtype.
        """
        try:
            literal = Literal(array)
        except KeyError:
            location = model_location()
            raise DTypeError(
                f"a literal of NumPy dtype {array.dtype} has no poot dtype, at {location}",
                location=location,
            ) from None
        return self.emit("literal", (), {"value": literal})

    # --- recording ---

    def emit(
        self, op: str, inputs: Sequence[Tracer], attributes: Mapping[str, Attribute] | None = None
    ) -> Tracer:
        """Record a primitive with one result and return it.

        Raises:
            ShapeError: If the operands' shapes do not fit; names the equation and the model line.
            DTypeError: If their element types do not.
            TraceError: If an operand belongs to another graph or body.
        """
        (result,) = self.emit_many(op, inputs, attributes)
        return result

    def emit_many(
        self, op: str, inputs: Sequence[Tracer], attributes: Mapping[str, Attribute] | None = None
    ) -> tuple[Tracer, ...]:
        """Record a primitive and return all of its results; raises what ``emit`` raises."""
        attributes = attributes or {}
        values = self._values(op, inputs)
        try:
            types = PRIMITIVES[op].infer([value.type for value in values], attributes)
        except (ShapeError, DTypeError) as error:
            raise self._located(error, op, values, attributes) from None
        return self._record(op, values, types, attributes, None)

    def region(
        self,
        name: str,
        inputs: Sequence[Tracer],
        attributes: Mapping[str, Attribute],
        body: BodyFunction,
    ) -> tuple[Tracer, ...]:
        """Record a region: a name and attributes whose only meaning is what ``body`` records.

        Args:
            name: What planners look for; no name of a primitive.
            inputs: Operands of the region.
            attributes: All that the body depends on besides the types of the operands: bodies are
                shared between regions of equal name, types and attributes.
            body: Called as ``body(trace, *arguments)`` on a fresh trace with closed scope.

        Raises:
            TraceError: If the body reaches outside of its arguments.
        """
        assert name not in PRIMITIVES, f"{name!r} is a primitive"
        values = self._values(name, inputs)
        key = (name, tuple(value.type for value in values), tuple(attributes.items()))
        shared = self._bodies.get(key)
        if shared is None:
            shared = self._bodies[key] = self._trace_body(values, body)
        types = tuple(value.type for value in shared.outputs)
        return self._record(name, values, types, attributes, shared)

    def _trace_body(self, values: Sequence[Value], body: BodyFunction) -> Body:
        trace = Trace(self._bodies)
        arguments = [trace._new(value.type, Storage.ARGUMENT) for value in values]
        results = body(trace, *(Tracer(trace, value) for value in arguments))
        results = results if isinstance(results, tuple) else (results,)
        outputs = trace._values("yield", results)
        return Body(tuple(arguments), tuple(trace._equations), outputs)

    def _record(
        self,
        op: str,
        inputs: tuple[Value, ...],
        types: Sequence[TensorType],
        attributes: Mapping[str, Attribute],
        body: Body | None,
    ) -> tuple[Tracer, ...]:
        outputs = tuple(self._new(kind) for kind in types)
        location = model_location()
        self._equations.append(
            Equation(op, inputs, outputs, attributes, body, self._scope, location)
        )
        return tuple(Tracer(self, value) for value in outputs)

    def _new(self, kind: TensorType, storage: Storage = Storage.COMPUTED, name: str = "") -> Value:
        value = Value(self._next_id, kind, storage, name)
        self._next_id += 1
        return value

    def _values(self, op: str, inputs: Sequence[Tracer]) -> tuple[Value, ...]:
        for tracer in inputs:
            if tracer.trace is not self:
                raise TraceError(
                    f"{op!r} mixes tensors of two traces: {tracer} belongs to another graph or "
                    f"lies outside of this region, at {model_location()}; pass it as an argument",
                    location=model_location(),
                )
        return tuple(tracer.value for tracer in inputs)

    def _located(
        self,
        error: ShapeError | DTypeError,
        op: str,
        values: Sequence[Value],
        attributes: Mapping[str, Attribute],
    ) -> ShapeError | DTypeError:
        location = model_location()
        operands = ", ".join(
            f"{value} {value.name or ''}".strip() + f": {value.type}" for value in values
        )
        shown = ", ".join(f"{name}={value!r}" for name, value in attributes.items())
        scope = "/".join(self._scope.path)
        return type(error)(
            f"{error.message}\n  in equation {op}({operands}){' {' + shown + '}' if shown else ''}"
            f"{f' of {scope}' if scope else ''}\n  at {location}",
            op=op,
            location=location,
        )
