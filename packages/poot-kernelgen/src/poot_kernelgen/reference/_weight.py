"""A matrix in logical form: dense values, or the exact affine form of a packed format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DTYPES, dtype_by_name
from poot_quant import format_by_name, unpack

__all__ = ["LogicalWeight", "stack_weights"]

_DTYPE_NAMES = {dtype.name for dtype in DTYPES}


@dataclass(frozen=True, slots=True)
class LogicalWeight:
    """One matrix (N, K).

    Attributes:
        codes: (N, K): f32 values of a dense matrix, int8 codes of a packed one.
        scales: (N, K / group) f32 of a packed matrix, else None.
        mins: (N, K / group) f32 of a packed matrix whose format has offsets, else None.
    """

    codes: NDArray[Any]
    scales: NDArray[np.float32] | None = None
    mins: NDArray[np.float32] | None = None

    @classmethod
    def from_stored(cls, source: str, raw: NDArray[np.uint8], n: int, k: int) -> LogicalWeight:
        """Return the logical form of stored bytes.

        Args:
            source: A dtype's or a packed format's name.
            raw: Bytes of N rows, any shape.
            n: Rows.
            k: Elements of a row.
        """
        flat = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
        if source in _DTYPE_NAMES:
            values = flat.view(dtype_by_name(source).numpy).reshape(n, k)
            return cls(values.astype(np.float32))
        unpacked = unpack(format_by_name(source), flat.reshape(n, -1))
        return cls(unpacked.codes, unpacked.scales, unpacked.mins)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and elements of a row."""
        return self.codes.shape[0], self.codes.shape[1]

    def values(self) -> NDArray[np.float32]:
        """Return the f32 values, (N, K)."""
        if self.scales is None:
            return self.codes
        group = self.codes.shape[1] // self.scales.shape[1]
        values = np.repeat(self.scales, group, axis=1) * self.codes.astype(np.float32)
        return values if self.mins is None else values + np.repeat(self.mins, group, axis=1)

    def rows(self, start: int, end: int) -> LogicalWeight:
        """Return rows start..end."""
        return LogicalWeight(
            self.codes[start:end],
            None if self.scales is None else self.scales[start:end],
            None if self.mins is None else self.mins[start:end],
        )


def stack_weights(parts: Sequence[LogicalWeight]) -> LogicalWeight:
    """Return the matrix whose rows are those of the parts, in order."""
    scales = [part.scales for part in parts if part.scales is not None]
    mins = [part.mins for part in parts if part.mins is not None]
    return LogicalWeight(
        np.concatenate([part.codes for part in parts]),
        np.concatenate(scales) if scales else None,
        np.concatenate(mins) if mins else None,
    )
