"""Meaning of a contraction, its epilogue, and a gather from a packed matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from poot_kernelgen.reference._activation import (
    BLOCK,
    QuantisedActivation,
    dequantise_activation,
)
from poot_kernelgen.reference._nodes import evaluate_node
from poot_kernelgen.reference._weight import LogicalWeight
from poot_kernelgen.requests import ContractionRequest, Epilogue

__all__ = ["apply_epilogue", "contract", "gather"]

Array = NDArray[Any]
Float32 = NDArray[np.float32]


def contract(
    request: ContractionRequest,
    weight: LogicalWeight,
    activation: Float32 | NDArray[np.uint16] | QuantisedActivation,
    epilogue_inputs: Sequence[Array] = (),
) -> Float32:
    """Return epilogue(x @ w.T), (rows, N).

    The products of a row are summed without regard to how many rows there are. An ``i8`` contraction
    sums codes exactly per group and combines groups as ``w_scale * x_scale * dot + w_min * x_sum``.

    Args:
        request: Epilogue, activation and gating.
        weight: (N, K), or (2N, K) for a gated contraction: the first half above the second.
        activation: (rows, K) f32, bf16 bits (uint16), or quantised rows.
        epilogue_inputs: (N,) for ``column``, (rows, N) for ``full``.
    """
    if isinstance(activation, QuantisedActivation):
        product = _contract_i8(weight, activation)
    else:
        x = (
            activation.view(ml_dtypes.bfloat16).astype(np.float32)
            if activation.dtype == np.uint16
            else activation
        )
        product = _rowwise(x, weight.values())
    accumulators: list[Array] = [product]
    if request.gated:
        half = product.shape[1] // 2
        accumulators = [product[:, :half], product[:, half:]]
    result = apply_epilogue(request.epilogue, accumulators, epilogue_inputs)
    return np.ascontiguousarray(result, np.float32)


def _rowwise(x: Array, w: Array) -> Float32:
    # One row at a time in double: BLAS sums differently for different numbers of rows.
    wide = w.astype(np.float64)
    rows = [wide @ row.astype(np.float64) for row in x]
    return np.array(rows, np.float64).reshape(len(x), len(w)).astype(np.float32)


def _contract_i8(weight: LogicalWeight, x: QuantisedActivation) -> Float32:
    if weight.scales is None:
        return _rowwise(dequantise_activation(x), weight.codes)
    product = _plane(weight, x.codes, x.scales)
    if x.residual_codes is None or x.residual_scales is None:
        return product
    return product + _plane(weight, x.residual_codes, x.residual_scales)


def _plane(weight: LogicalWeight, codes: NDArray[np.int8], block_scales: Float32) -> Float32:
    assert weight.scales is not None
    rows, width = codes.shape
    groups = weight.scales.shape[1]
    group = width // groups
    w = weight.codes.reshape(len(weight.codes), groups, group).astype(np.int32)
    a = codes.reshape(rows, groups, group).astype(np.int32)
    scales = np.repeat(block_scales, BLOCK // group, axis=1)  # (rows, groups)
    result = np.empty((rows, len(w)), np.float32)
    for row in range(rows):
        dots = np.einsum("ngk,gk->ng", w, a[row]).astype(np.float32)
        terms = weight.scales * scales[row] * dots
        if weight.mins is not None:
            sums = scales[row] * a[row].sum(axis=-1).astype(np.float32)
            terms = terms + weight.mins * sums
        result[row] = terms.astype(np.float64).sum(axis=-1)
    return result


def apply_epilogue(
    epilogue: Epilogue, accumulators: Sequence[Array], inputs: Sequence[Array]
) -> Array:
    """Return the result of an epilogue over whole matrices.

    Args:
        epilogue: The nodes.
        accumulators: One (rows, N) matrix, two for a gated contraction.
        inputs: (N,) for ``column``, (rows, N) for ``full``.
    """
    rows = len(accumulators[0])
    values: list[Array] = list(accumulators)
    for kind, array in zip(epilogue.inputs, inputs, strict=True):
        values.append(array[None, :] if kind == "column" else array)
    for node in epilogue.nodes:
        value = evaluate_node(node, [values[i] for i in node.operands], rows)
        values.append(value.reshape(len(value), -1))  # a literal is (1, 1)
    return np.broadcast_to(values[-1], accumulators[0].shape) if epilogue.nodes else values[0]


def gather(
    weight: LogicalWeight, ids: NDArray[np.int32], scale: float, status: NDArray[np.int32]
) -> Float32:
    """Return ``w[ids] * scale``, (T, K); an id out of range is clamped and flagged in ``status``."""
    clamped = np.clip(ids, 0, len(weight.codes) - 1)
    status[: len(ids)] |= clamped != ids
    picked = LogicalWeight(
        weight.codes[clamped],
        None if weight.scales is None else weight.scales[clamped],
        None if weight.mins is None else weight.mins[clamped],
    )
    return picked.values() * np.float32(scale)
