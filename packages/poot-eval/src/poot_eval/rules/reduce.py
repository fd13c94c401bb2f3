"""Reductions, argmax, top-k and running sums; narrow floats accumulate in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poot_eval._packed import Array
from poot_eval.rules._context import Call, Rule, compute_dtype

__all__ = ["REDUCE"]


def _reduce(function: Callable[..., Any]) -> Rule:
    def rule(call: Call) -> tuple[Array, ...]:
        x = call.array(0)
        wide = x.astype(compute_dtype(x.dtype), copy=False)
        result = function(wide, axis=call.attributes["axes"])
        return (np.asarray(result).astype(x.dtype, copy=False),)

    return rule


def _sum(x: Array, axis: tuple[int, ...]) -> Array:
    # NOTE: NumPy would widen narrow integers; here they wrap. Floats are summed pairwise.
    return np.sum(x, axis=axis, dtype=x.dtype)


def _argmax(call: Call) -> tuple[Array, ...]:
    # NumPy has no argmax of the 8-bit floats; widening keeps the order.
    x = call.array(0)
    wide = x.astype(compute_dtype(x.dtype), copy=False)
    return (np.asarray(np.argmax(wide, axis=call.attributes["axis"])).astype(np.int32),)


def _top_k(call: Call) -> tuple[Array, ...]:
    x = call.array(0)
    wide = x.astype(compute_dtype(x.dtype), copy=False)
    # Sorting the reversed axis stably and reversing the order puts the lower index first on a tie.
    reversed_order = np.argsort(wide[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    order = (x.shape[-1] - 1 - reversed_order)[..., : call.attributes["k"]]
    return np.take_along_axis(x, order, axis=-1), order.astype(np.int32)


def _cumsum(call: Call) -> tuple[Array, ...]:
    x = call.array(0)
    wide = compute_dtype(x.dtype)
    result = np.cumsum(x.astype(wide, copy=False), axis=call.attributes["axis"], dtype=wide)
    return (result.astype(x.dtype, copy=False),)


REDUCE: dict[str, Rule] = {
    "reduce_sum": _reduce(_sum),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "argmax": _argmax,
    "top_k": _top_k,
    "cumsum": _cumsum,
}
