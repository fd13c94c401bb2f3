"""The graph of primitive tensor equations: builder, compositions, regions, verifier, printer."""

from poot_graph_ir import ops
from poot_graph_ir._analysis import Use, donated_inputs, live_ranges, uses
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
from poot_graph_ir._hash import graph_hash
from poot_graph_ir._layers import Layer, split_layers
from poot_graph_ir._options import StepSlots, TraceOptions
from poot_graph_ir._parser import GraphSyntaxError, parse
from poot_graph_ir._passes import (
    eliminate_common_subexpressions,
    eliminate_dead_code,
    fold_constants,
    inline_regions,
)
from poot_graph_ir._printer import format_equation, print_graph
from poot_graph_ir._trace import Trace
from poot_graph_ir._tracer import Tracer
from poot_graph_ir._types import ElementType, Storage, TensorType, is_packed
from poot_graph_ir._verify import verify
from poot_graph_ir.primitives import PRIMITIVES, Primitive

__all__ = [
    "PRIMITIVES",
    "Attribute",
    "Body",
    "Builder",
    "ElementType",
    "Equation",
    "Graph",
    "GraphSyntaxError",
    "Layer",
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
    "Use",
    "Value",
    "donated_inputs",
    "eliminate_common_subexpressions",
    "eliminate_dead_code",
    "fold_constants",
    "format_equation",
    "graph_hash",
    "inline_regions",
    "is_packed",
    "live_ranges",
    "ops",
    "parse",
    "print_graph",
    "split_layers",
    "uses",
    "verify",
]
