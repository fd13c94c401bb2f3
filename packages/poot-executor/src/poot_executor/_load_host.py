"""Reading stored weights on the host: rows of matrices as bytes, vectors as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DTYPES, dtype_by_name
from poot_executor._engine import WeightSource
from poot_executor._weights import Matrix, MatrixPart, Vector
from poot_quant import format_by_name

__all__ = ["load_vector", "row_bytes", "stored_rows"]

_DENSE = {dtype.name for dtype in DTYPES}


def row_bytes(source: str, k: int) -> int:
    """Return the bytes of one stored row of ``k`` elements."""
    if source in _DENSE:
        return k * dtype_by_name(source).itemsize
    return format_by_name(source).num_bytes(k)


def stored_rows(weights: WeightSource, matrix: Matrix, part: MatrixPart) -> NDArray[np.uint8]:
    """Return the bytes of a part's rows, (num_rows, bytes): a view unless stored transposed."""
    raw = np.asarray(weights.raw(part.name)).reshape(-1).view(np.uint8)
    if part.transposed:
        dtype = dtype_by_name(matrix.source).numpy
        turned = raw.view(dtype).reshape(matrix.k, -1).T
        rows = turned[part.first_row : part.first_row + part.num_rows]
        return np.ascontiguousarray(rows).view(np.uint8).reshape(part.num_rows, -1)
    stride = row_bytes(matrix.source, matrix.k)
    start = part.first_row * stride
    return raw[start : start + part.num_rows * stride].reshape(part.num_rows, stride)


def load_vector(weights: WeightSource, vector: Vector) -> NDArray[Any]:
    """Return a small weight in the dtype that kernels read."""
    raw = np.ascontiguousarray(weights.raw(vector.name)).reshape(-1).view(np.uint8)
    stored = raw.view(dtype_by_name(vector.source).numpy).reshape(vector.shape)
    return np.array(stored, dtype=dtype_by_name(vector.dtype).numpy)
