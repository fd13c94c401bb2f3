"""Contraction in f32 through NumPy's matmul, and the decoding of packed weights."""

from __future__ import annotations

from math import prod

import numpy as np

from poot_eval._packed import Array, Packed
from poot_eval.rules._context import Call, Rule

__all__ = ["CONTRACT"]


def _dot_general(call: Call) -> tuple[Array, ...]:
    # f64 operands too are multiplied and summed in f32: that is what the primitive says. The order
    # of the sum is the BLAS library's, so devices are compared within a tolerance.
    a = call.array(0).astype(np.float32, copy=False)
    b = call.array(1).astype(np.float32, copy=False)
    names = ("lhs_batch", "lhs_contract", "rhs_batch", "rhs_contract")
    a_batch, a_contract, b_batch, b_contract = (call.attributes[name] for name in names)
    a_free = [i for i in range(a.ndim) if i not in {*a_batch, *a_contract}]
    b_free = [i for i in range(b.ndim) if i not in {*b_batch, *b_contract}]
    batch = [a.shape[i] for i in a_batch]
    rows = [a.shape[i] for i in a_free]
    columns = [b.shape[i] for i in b_free]
    inner = prod(a.shape[i] for i in a_contract)
    lead = [prod(batch)] if batch else []
    left = a.transpose(*a_batch, *a_free, *a_contract).reshape(*lead, prod(rows), inner)
    right = b.transpose(*b_batch, *b_contract, *b_free).reshape(*lead, inner, prod(columns))
    return (np.matmul(left, right).reshape((*batch, *rows, *columns)),)


def _dequantize(call: Call) -> tuple[Array, ...]:
    (x,) = call.operands
    assert isinstance(x, Packed)
    return (x.decode(),)


CONTRACT: dict[str, Rule] = {"dot_general": _dot_general, "dequantize": _dequantize}
