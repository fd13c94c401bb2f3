"""One NumPy rule per primitive: what the primitive means."""

from __future__ import annotations

from poot_eval.rules._context import Call, Rule
from poot_eval.rules.contract import CONTRACT
from poot_eval.rules.elementwise import ELEMENTWISE
from poot_eval.rules.index import INDEX
from poot_eval.rules.reduce import REDUCE
from poot_eval.rules.views import VIEWS

__all__ = ["RULES", "Call", "Rule"]

RULES: dict[str, Rule] = {**ELEMENTWISE, **VIEWS, **REDUCE, **CONTRACT, **INDEX}
"""The rule of every primitive of ``poot_graph_ir.PRIMITIVES``, by name."""
