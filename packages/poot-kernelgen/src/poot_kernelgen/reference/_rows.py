"""Meaning of a row program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_kernelgen.reference._activation import (
    QuantisedActivation,
    quantise_activation,
    round_to_bf16,
)
from poot_kernelgen.reference._kv import kv_write
from poot_kernelgen.reference._nodes import evaluate_node
from poot_kernelgen.requests import EIGHT_BIT, RowProgram

__all__ = ["run_row_program"]

Array = NDArray[Any]


def run_row_program(
    program: RowProgram,
    inputs: Sequence[Array],
    rows: int,
    *,
    pools: Mapping[int, Array] | None = None,
    status: NDArray[np.int32] | None = None,
) -> list[Array | QuantisedActivation | None]:
    """Return the outputs of a row program over ``rows`` rows.

    Args:
        program: What to compute.
        inputs: For each input its array: (rows, *shape) if ``per_row``, (n, *shape) if ``indexed_by``
            is given, otherwise (*shape).
        rows: Rows of the domain.
        pools: Pool that each ``kv`` output (by its index) writes into.
        status: (rows,) flags, for programs with an index or a ``kv`` output.

    Returns:
        For each output an array (rows, *shape); the bits (uint16) for ``bf16``; codes, scales and sums
        for ``i8``; None for ``kv``.
    """
    flags = np.zeros(rows, np.int32) if status is None else status
    values: list[Array] = []
    for spec, array in zip(program.inputs, inputs, strict=True):
        if spec.indexed_by is not None:
            wanted = inputs[spec.indexed_by][:rows].astype(np.int64)
            clamped = np.clip(wanted, 0, len(array) - 1)
            flags[:rows] |= wanted != clamped
            values.append(np.ascontiguousarray(array[clamped]))
        elif spec.per_row:
            values.append(array[:rows])
        else:
            values.append(array[None])
    for node in program.nodes:
        values.append(evaluate_node(node, [values[i] for i in node.operands], rows))
    return [
        _store(program, index, values, rows, pools or {}, flags)
        for index in range(len(program.outputs))
    ]


def _store(
    program: RowProgram,
    index: int,
    values: list[Array],
    rows: int,
    pools: Mapping[int, Array],
    flags: NDArray[np.int32],
) -> Array | QuantisedActivation | None:
    output = program.outputs[index]
    value = values[output.value]
    full = np.ascontiguousarray(np.broadcast_to(value, (rows, *value.shape[1:])))
    if output.kind == "plain":
        return full
    if output.kind in EIGHT_BIT:
        return quantise_activation(
            _flat(full), outlier=output.outlier if output.kind != "i8" else None
        )
    if output.kind == "bf16":
        return round_to_bf16(_flat(full))
    assert output.layout is not None
    assert output.slot_input is not None
    slots = values[output.slot_input].reshape(-1).astype(np.int64)
    kv_write(output.layout, pools[index], full, slots, flags)
    return None


def _flat(x: Array) -> Array:
    return x.reshape(len(x), prod(x.shape[1:]))
