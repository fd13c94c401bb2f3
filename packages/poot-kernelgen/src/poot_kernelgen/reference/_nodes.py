"""Meaning of one node of a row program or of an epilogue, for all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import UnsupportedError, dtype_by_name
from poot_kernelgen.requests import RowNode

__all__ = ["evaluate_node"]

Array = NDArray[Any]


def _erf(x: Array) -> Array:
    """Abramowitz and Stegun's definition through the series and continued fraction, in double."""
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    return x.dtype.type(1) / np.sqrt(x)


_ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": _erf,
    "floor": np.floor,
    "logical_not": np.logical_not,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "select": np.where,
}

_REDUCE: dict[str, Callable[..., Array]] = {
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
}


def evaluate_node(node: RowNode, operands: list[Array], rows: int) -> Array:
    """Return the node's value for all rows.

    Args:
        node: What to compute.
        operands: Each of shape (rows or 1, *row-local shape).
        rows: Rows of the domain.

    Returns:
        (rows or 1, *node.shape); 1 where every operand is shared by the rows.

    Raises:
        UnsupportedError: If the operation is unknown.
    """
    attributes: Mapping[str, Any] = dict(node.attributes)
    dtype = dtype_by_name(node.dtype).numpy
    if node.op in _ELEMENTWISE:
        result = np.asarray(_ELEMENTWISE[node.op](*_aligned(operands)))
    elif node.op in _REDUCE:
        result = _reduce(node.op, operands[0], attributes["axes"])
    elif node.op == "literal":
        result = np.full((1, *node.shape), attributes["value"], dtype)
    elif node.op == "iota":
        result = _iota(node.shape, attributes["axis"], dtype)
    elif node.op == "convert":
        result = _convert(operands[0], dtype)
    else:
        result = _view(node, operands, attributes, rows)
    return np.ascontiguousarray(result.astype(dtype, copy=False))


def _aligned(operands: list[Array]) -> list[Array]:
    # Every loop then sees the same contiguous operands whether or not a value is shared by the rows.
    lengths = {len(x) for x in operands}
    rows = max(lengths) if lengths != {0, 1} else 0
    return [np.ascontiguousarray(np.broadcast_to(x, (rows, *x.shape[1:]))) for x in operands]


def _reduce(op: str, x: Array, axes: tuple[int, ...]) -> Array:
    kept = [axis for axis in range(x.ndim - 1) if axis not in axes]
    moved = np.ascontiguousarray(x.transpose(0, *(a + 1 for a in kept), *(a + 1 for a in axes)))
    reduced = prod(x.shape[axis + 1] for axis in axes)
    flat = moved.reshape(len(x), *(x.shape[axis + 1] for axis in kept), reduced)
    return np.asarray(_REDUCE[op](flat, axis=-1))


def _iota(shape: tuple[int, ...], axis: int, dtype: np.dtype[Any]) -> Array:
    extents = [1] * (len(shape) + 1)
    extents[axis + 1] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).reshape(extents), (1, *shape)).astype(dtype)


def _convert(x: Array, dtype: np.dtype[Any]) -> Array:
    if x.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        return np.clip(np.trunc(wide), limits.min, limits.max).astype(dtype)
    return x.astype(dtype)


def _view(node: RowNode, operands: list[Array], attributes: Mapping[str, Any], rows: int) -> Array:
    x = operands[0]
    if node.op == "reshape":
        return x.reshape(len(x), *node.shape)
    if node.op == "transpose":
        return x.transpose(0, *(axis + 1 for axis in attributes["permutation"]))
    if node.op == "broadcast":
        extents = [1] * len(node.shape)
        for size, axis in zip(x.shape[1:], attributes["dimensions"], strict=True):
            extents[axis] = size
        return np.broadcast_to(x.reshape(len(x), *extents), (len(x), *node.shape))
    if node.op == "slice":
        starts, limits = attributes["starts"], attributes["limits"]
        strides = attributes.get("strides") or (1,) * len(starts)
        cuts = [slice(*cut) for cut in zip(starts, limits, strides, strict=True)]
        return x[(slice(None), *cuts)]
    if node.op == "concatenate":
        return np.concatenate(_aligned(operands), axis=attributes["axis"] + 1)
    raise UnsupportedError(f"a row program has no operation {node.op!r}", op=node.op)
