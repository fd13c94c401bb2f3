"""Loops; all but static_range are read by the statement importer."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, cast

from poot_core import PootError
from poot_kernel.language._values import (
    Intrinsic,
    intrinsic,
)

if TYPE_CHECKING:
    from poot_kernel.language._calls import CallImporter

__all__ = [
    "foreach",
    "load_part",
    "loop",
    "pipeline",
    "static_range",
]


def _loop_only(name: str, form: str) -> Intrinsic:
    def handler(k: CallImporter, node: ast.Call, *items: object, **named: object) -> object:
        raise PootError(f"{name}() stands only in '{form}'")

    return Intrinsic(name, handler)


loop = _loop_only("loop", "for i in loop(lower, upper, step, unroll=, static=)")
foreach = _loop_only("foreach", "for i in foreach(lower, upper, scope=, unroll=)")
pipeline = _loop_only("pipeline", "for k in pipeline(lower, upper, step, stages=)")
load_part = _loop_only("load_part", "with load_part():' first in a pipeline loop, '")


@intrinsic
def static_range(k: CallImporter, node: ast.Call, *bounds: object) -> object:
    """A range that is unrolled at import."""
    if not all(isinstance(bound, int) for bound in bounds):
        raise PootError("static_range() needs bounds that are known at import time")
    return range(*cast("tuple[int, ...]", bounds))
