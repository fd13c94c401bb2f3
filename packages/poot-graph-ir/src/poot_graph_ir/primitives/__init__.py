"""The primitives: few and general, one row each in ``PRIMITIVES``."""

from __future__ import annotations

from poot_graph_ir.primitives._registry import Primitive
from poot_graph_ir.primitives.contract import CONTRACT
from poot_graph_ir.primitives.create import CREATE
from poot_graph_ir.primitives.elementwise import ELEMENTWISE
from poot_graph_ir.primitives.index import INDEX
from poot_graph_ir.primitives.reduce import REDUCE
from poot_graph_ir.primitives.views import VIEWS

__all__ = ["PRIMITIVES", "Primitive"]

PRIMITIVES: dict[str, Primitive] = {
    primitive.name: primitive
    for primitive in (*ELEMENTWISE, *CREATE, *VIEWS, *REDUCE, *CONTRACT, *INDEX)
}
"""Every primitive by name. A new one needs a reason that no composition can meet."""
