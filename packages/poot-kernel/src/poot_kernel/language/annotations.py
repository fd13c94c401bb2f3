"""What may stand in the annotations of a kernel's parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from poot_core import DType, u8
from poot_kernel.ir import Size, SizeLike, as_size
from poot_kernel.ir.types import Access

__all__ = [
    "Aligned",
    "Array",
    "ArrayAnnotation",
    "Const",
    "ConstAnnotation",
    "InOut",
    "Out",
    "Raw",
    "RawInOut",
    "RawOut",
    "Strided",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayAnnotation:
    """An array parameter; sizes may name scalar and compile-time parameters.

    Attributes:
        dtype: Element type.
        shape: Extents; None for an unknown first one.
        access: What the kernel does with it.
        strides: Strides in elements; None is row-major.
        alignment: Bytes by which the base is aligned; None is the element's size.
    """

    dtype: DType
    shape: tuple[Size | None, ...]
    access: Access
    strides: tuple[Size, ...] | None = None
    alignment: int | None = None


@dataclass(frozen=True, slots=True)
class ConstAnnotation:
    """A compile-time parameter, of a Python type or of any."""

    type: Any = object


@dataclass(frozen=True, slots=True)
class _ArrayMaker:
    access: Access

    def __getitem__(self, items: tuple[DType, *tuple[SizeLike | None, ...]]) -> ArrayAnnotation:
        dtype, *shape = items
        sizes = tuple(None if size is None else as_size(size) for size in shape)
        return ArrayAnnotation(dtype=dtype, shape=sizes, access=self.access)


class _StridedMaker:
    def __getitem__(self, items: tuple[ArrayAnnotation, *tuple[SizeLike, ...]]) -> ArrayAnnotation:
        array, *strides = items
        return replace(array, strides=tuple(as_size(size) for size in strides))


class _AlignedMaker:
    def __getitem__(self, items: tuple[ArrayAnnotation, int]) -> ArrayAnnotation:
        array, alignment = items
        return replace(array, alignment=alignment)


class _ConstMaker:
    def __getitem__(self, kind: Any) -> ConstAnnotation:
        return ConstAnnotation(kind)


Array = _ArrayMaker("r")
"""``Array[f32, "M", "K"]``: an array that the kernel reads."""
Out = _ArrayMaker("w")
"""``Out[f32, "M", "N"]``: an array that the kernel writes."""
InOut = _ArrayMaker("rw")
"""``InOut[f32, "M"]``: an array that the kernel reads and writes."""
Strided = _StridedMaker()
"""``Strided[Array[f32, "M", "K"], "ld", 1]``: with strides in elements."""
Aligned = _AlignedMaker()
"""``Aligned[Array[f32, "M"], 64]``: with a base aligned to that many bytes."""
Const = _ConstMaker()
"""``Const[int]``: a compile-time parameter."""

Raw = ArrayAnnotation(dtype=u8, shape=(None,), access="r", alignment=64)
"""Bytes of unknown length, such as packed weights."""
RawOut = replace(Raw, access="w")
"""Bytes that the kernel writes."""
RawInOut = replace(Raw, access="rw")
"""Bytes that the kernel reads and writes."""
