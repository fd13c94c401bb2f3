"""Elementwise rules; floats narrower than f32 are computed in f32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from poot_eval._packed import Array
from poot_eval.rules._context import Call, Rule, compute_dtype

__all__ = ["ELEMENTWISE"]

Function = Callable[..., Any]


def _widened(function: Function) -> Rule:
    def rule(call: Call) -> tuple[Array, ...]:
        dtype = call.array(0).dtype
        wide = compute_dtype(dtype)
        if wide == dtype:
            return (np.asarray(function(*call.operands), dtype),)
        operands = [call.array(i).astype(wide) for i in range(len(call.operands))]
        return (np.asarray(function(*operands)).astype(dtype),)

    return rule


def _plain(function: Function) -> Rule:
    def rule(call: Call) -> tuple[Array, ...]:
        return (np.asarray(function(*call.operands)),)

    return rule


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _erf(x: Array) -> Array:
    # The C library's erf in f64, rounded once: NumPy has none.
    values = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
    return values.reshape(x.shape).astype(x.dtype)


def _convert(call: Call) -> tuple[Array, ...]:
    (x,) = call.operands
    assert isinstance(x, np.ndarray)
    return (convert(x, call.attributes["dtype"].numpy),)


def convert(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return x in another dtype: nearest even among floats, truncated and saturated to integers.

    >>> convert(np.array([1.9, -1.9, 300.0, np.nan]), np.dtype(np.int8))
    array([  1,  -1, 127,   0], dtype=int8)
    """
    if dtype.kind in "iu" and x.dtype.kind not in "iub":
        info = np.iinfo(dtype)
        wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
        result = np.clip(wide, float(info.min), float(info.max)).astype(dtype)
        # float(max) of a 64-bit integer rounds up to a value outside of the type.
        return np.where(wide >= float(info.max), np.asarray(info.max, dtype), result)
    if dtype.kind == "b":
        return x != 0
    return x.astype(dtype)


ELEMENTWISE: dict[str, Rule] = {
    "neg": _plain(np.negative),
    "abs": _plain(np.abs),
    "sign": _widened(np.sign),
    "exp": _widened(np.exp),
    "log": _widened(np.log),
    "sqrt": _widened(np.sqrt),
    "rsqrt": _widened(_rsqrt),
    "sin": _widened(np.sin),
    "cos": _widened(np.cos),
    "tanh": _widened(np.tanh),
    "erf": _widened(_erf),
    "floor": _widened(np.floor),
    "logical_not": _plain(np.logical_not),
    "add": _widened(np.add),
    "sub": _widened(np.subtract),
    "mul": _widened(np.multiply),
    "div": _widened(np.divide),
    "pow": _widened(np.power),
    "maximum": _widened(np.maximum),
    "minimum": _widened(np.minimum),
    "logical_and": _plain(np.logical_and),
    "logical_or": _plain(np.logical_or),
    "equal": _plain(np.equal),
    "not_equal": _plain(np.not_equal),
    "less": _plain(np.less),
    "less_equal": _plain(np.less_equal),
    "greater": _plain(np.greater),
    "greater_equal": _plain(np.greater_equal),
    "select": _plain(np.where),
    "convert": _convert,
}
