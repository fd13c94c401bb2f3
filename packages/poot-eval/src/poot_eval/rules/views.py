"""Rules that make or move data; a packed weight moves by whole rows."""

from __future__ import annotations

import numpy as np

from poot_core import SymbolicDim
from poot_eval._packed import Array, Packed, Tensor
from poot_eval.rules._context import Call, Rule

__all__ = ["VIEWS"]


def _like(operand: Tensor, array: Array) -> Tensor:
    return Packed(array, operand.format) if isinstance(operand, Packed) else array


def _data(operand: Tensor) -> Array:
    return operand.data if isinstance(operand, Packed) else operand


def _full(call: Call) -> tuple[Tensor, ...]:
    value = np.asarray(call.attributes["value"], call.attributes["dtype"].numpy)
    return (np.broadcast_to(value, call.bind(call.attributes["shape"])),)


def _iota(call: Call) -> tuple[Tensor, ...]:
    shape, axis = call.bind(call.attributes["shape"]), call.attributes["axis"]
    index = np.arange(shape[axis]).astype(call.attributes["dtype"].numpy)
    column = (shape[axis], *(1,) * (len(shape) - axis - 1))
    return (np.broadcast_to(index.reshape(column), shape),)


def _literal(call: Call) -> tuple[Tensor, ...]:
    return (call.attributes["value"].array,)


def _broadcast_in_dim(call: Call) -> tuple[Tensor, ...]:
    x = call.array(0)
    shape = call.bind(call.attributes["shape"])
    spread = [1] * len(shape)
    for axis, size in zip(call.attributes["dimensions"], x.shape, strict=True):
        spread[axis] = size
    return (np.broadcast_to(x.reshape(spread), shape),)


def _reshape(call: Call) -> tuple[Tensor, ...]:
    (x,) = call.operands
    shape = call.bind(call.attributes["shape"])
    if isinstance(x, Packed):
        shape = (*shape[:-1], x.data.shape[-1])
    return (_like(x, _data(x).reshape(shape)),)


def _transpose(call: Call) -> tuple[Tensor, ...]:
    (x,) = call.operands
    return (_like(x, _data(x).transpose(call.attributes["permutation"])),)


def _slice(call: Call) -> tuple[Tensor, ...]:
    (x,) = call.operands
    parts: list[slice] = []
    names = ("starts", "limits", "strides")
    for start, limit, stride in zip(*(call.attributes[name] for name in names), strict=True):
        whole = isinstance(limit, SymbolicDim)
        parts.append(slice(None) if whole else slice(start, limit, stride))
    if isinstance(x, Packed):
        parts[-1] = slice(None)
    return (_like(x, _data(x)[tuple(parts)]),)


def _concatenate(call: Call) -> tuple[Tensor, ...]:
    data = np.concatenate([_data(x) for x in call.operands], axis=call.attributes["axis"])
    return (_like(call.operands[0], data),)


def _pad(call: Call) -> tuple[Tensor, ...]:
    x = call.array(0)
    low, high, value = (call.attributes[name] for name in ("low", "high", "value"))
    shape = tuple(a + size + b for a, size, b in zip(low, x.shape, high, strict=True))
    result = np.full(shape, value, x.dtype)
    result[tuple(slice(a, a + size) for a, size in zip(low, x.shape, strict=True))] = x
    return (result,)


VIEWS: dict[str, Rule] = {
    "full": _full,
    "iota": _iota,
    "literal": _literal,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
}
