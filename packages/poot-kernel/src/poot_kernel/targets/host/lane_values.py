"""How a value of a lane kernel lies in LLVM registers: uniform, varying, or base + stride * lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from poot_core import DType, Target, UnsupportedError
from poot_kernel.ir import ScalarType, Type, VectorType

__all__ = ["Held", "element_type", "lane_count", "memory_type", "vector_type"]

_NAMES = {"f64": "double", "f32": "float", "f16": "half", "bf16": "i16", "boolean": "i1"}


@dataclass(frozen=True, slots=True)
class Held:
    """Where a value is.

    A varying vector of ``count`` elements a lane is one LLVM vector of lanes * count elements, lane
    by lane, so that neighbouring lanes' contiguous accesses are one contiguous access.

    Attributes:
        name: An SSA name or a literal; of an affine value its base, an i64.
        kind: ``uniform``, ``varying``, or ``affine``: the i64 index name + stride * lane.
        stride: Of an affine value.
        literal: The number, if it is known while lowering (uniform values and affine bases).
    """

    name: str
    kind: Literal["uniform", "varying", "affine"] = "uniform"
    stride: int = 0
    literal: int | float | bool | None = None


def lane_count(target: Target) -> int:
    """Return the lanes of a varying value: f32 elements of one vector register.

    Raises:
        UnsupportedError: If the host has neither AVX2 with FMA nor NEON.
    """
    if target.arch == "aarch64":
        return 4
    if "avx512f" in target.features:
        return 16
    if {"avx2", "fma"} <= target.features:
        return 8
    raise UnsupportedError(
        f"kernels need AVX2 with FMA and F16C on x86-64, {target} has neither", target=str(target)
    )


def element_type(dtype: DType) -> str:
    """Return the LLVM type of one element in a register; bf16 is held as its bits."""
    if dtype.name in _NAMES:
        return _NAMES[dtype.name]
    if dtype.is_integer:
        return f"i{dtype.bits}"
    raise UnsupportedError(f"the host has no {dtype.name} values at lane level", dtype=dtype.name)


def memory_type(dtype: DType) -> str:
    """Return the LLVM type of one element in memory; a boolean is a byte."""
    return "i8" if dtype.name == "boolean" else element_type(dtype)


def element_count(found: Type) -> int:
    """Return the elements that each invocation holds."""
    assert isinstance(found, ScalarType | VectorType)
    return found.count if isinstance(found, VectorType) else 1


def vector_type(element: str, count: int) -> str:
    """Return the LLVM type of ``count`` elements."""
    return element if count == 1 else f"<{count} x {element}>"
