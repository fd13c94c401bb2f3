"""Element types: interned, compared by identity, each with its NumPy counterpart.

Packed weight formats (Q4_K and the like) are not dtypes: they live in poot-quant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

__all__ = [
    "DTYPES",
    "DType",
    "bf16",
    "boolean",
    "dtype_by_name",
    "dtype_of",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
]

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """One element type.

    Attributes:
        name: Short name as it stands in printed IR, such as ``bf16``.
        kind: ``float``, ``int``, ``uint`` or ``bool``.
        bits: Width of one element in memory, in bits.
        numpy: The NumPy dtype of the same bits (``ml_dtypes`` for bf16 and the 8-bit floats).
    """

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type."""
        return self.kind in {"int", "uint"}

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_by_name, (self.name,)


def _dtype(name: str, kind: Kind, bits: int, numpy: Any) -> DType:
    return DType(name, kind, bits, np.dtype(numpy))


f64 = _dtype("f64", "float", 64, np.float64)
f32 = _dtype("f32", "float", 32, np.float32)
f16 = _dtype("f16", "float", 16, np.float16)
bf16 = _dtype("bf16", "float", 16, ml_dtypes.bfloat16)
f8e4m3 = _dtype("f8e4m3", "float", 8, ml_dtypes.float8_e4m3fn)
f8e5m2 = _dtype("f8e5m2", "float", 8, ml_dtypes.float8_e5m2)
i8 = _dtype("i8", "int", 8, np.int8)
i16 = _dtype("i16", "int", 16, np.int16)
i32 = _dtype("i32", "int", 32, np.int32)
i64 = _dtype("i64", "int", 64, np.int64)
u8 = _dtype("u8", "uint", 8, np.uint8)
u16 = _dtype("u16", "uint", 16, np.uint16)
u32 = _dtype("u32", "uint", 32, np.uint32)
u64 = _dtype("u64", "uint", 64, np.uint64)
boolean = _dtype("boolean", "bool", 8, np.bool_)

DTYPES: tuple[DType, ...] = (
    f64, f32, f16, bf16, f8e4m3, f8e5m2, i8, i16, i32, i64, u8, u16, u32, u64, boolean,
)  # fmt: skip

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES}


def dtype_by_name(name: str) -> DType:
    """Return the dtype called ``name``.

    Raises:
        KeyError: If there is none.

    >>> dtype_by_name("bf16").bits
    16
    """
    return _BY_NAME[name]


def dtype_of(array: np.ndarray[Any, Any]) -> DType:
    """Return the dtype of a NumPy array.

    Raises:
        KeyError: If poot has no such dtype.
    """
    return _BY_NUMPY[array.dtype.newbyteorder("=")]
