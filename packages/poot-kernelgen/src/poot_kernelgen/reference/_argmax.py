"""Lowest id of the largest logit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["argmax"]


def argmax(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return (L,) ids of the largest logits of (L, N), the lowest on a tie; a NaN never wins."""
    return np.where(np.isnan(logits), -np.inf, logits).argmax(axis=-1).astype(np.int32)
