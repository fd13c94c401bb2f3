"""The graph of primitive tensor equations: builder, compositions, regions, verifier, printer."""

from poot_graph_ir import ops
from poot_graph_ir._builder import Builder
from poot_graph_ir._graph import (
    Attribute,
    Body,
    Equation,
    Graph,
    Literal,
    Location,
    Scope,
    Value,
)
from poot_graph_ir._options import StepSlots, TraceOptions
from poot_graph_ir._trace import Trace
from poot_graph_ir._tracer import Tracer
from poot_graph_ir._types import ElementType, Storage, TensorType, is_packed
from poot_graph_ir.primitives import PRIMITIVES, Primitive

__all__ = [
    "PRIMITIVES",
    "Attribute",
    "Body",
    "Builder",
    "ElementType",
    "Equation",
    "Graph",
    "Literal",
    "Location",
    "Primitive",
    "Scope",
    "StepSlots",
    "Storage",
    "TensorType",
    "Trace",
    "TraceOptions",
    "Tracer",
    "Value",
    "is_packed",
    "ops",
]
