"""Gather and scatter."""

from __future__ import annotations

from math import prod

import numpy as np

from poot_eval._packed import Array, Packed, Tensor
from poot_eval.rules._context import Call, Rule

__all__ = ["INDEX"]


def _gather(call: Call) -> tuple[Tensor, ...]:
    operand, indices, axis = call.operands[0], call.array(1), call.attributes["axis"]
    data = operand.data if isinstance(operand, Packed) else operand
    taken = np.take(data, np.clip(indices, 0, data.shape[axis] - 1), axis=axis)
    return (Packed(taken, operand.format) if isinstance(operand, Packed) else taken,)


def _scatter(call: Call) -> tuple[Array, ...]:
    operand, indices, updates = call.array(0), call.array(1), call.array(2)
    leading: int = call.attributes["leading"]
    overwrite = call.donated and operand.flags.writeable and operand.flags.c_contiguous
    result = operand if overwrite else np.array(operand, order="C")
    num_rows = prod(operand.shape[:leading])
    rows = result.reshape(num_rows, *operand.shape[leading:])
    inside = (indices >= 0) & (indices < num_rows)
    # NumPy's assignment leaves the winner among equal indices open: keep the last of each.
    positions = np.flatnonzero(inside)
    _, last = np.unique(indices[positions][::-1], return_index=True)
    kept = positions[::-1][last]
    rows[indices[kept]] = updates[kept]
    return (result,)


INDEX: dict[str, Rule] = {"gather": _gather, "scatter": _scatter}
