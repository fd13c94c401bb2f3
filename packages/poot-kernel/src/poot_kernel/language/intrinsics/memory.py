"""Memory, element by element, and the status word."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from poot_core import DType
from poot_kernel.ir import Layout, SizeLike, Value
from poot_kernel.language._values import (
    intrinsic,
    on_places,
)

if TYPE_CHECKING:
    from poot_kernel.language._calls import CallImporter

__all__ = [
    "atomic",
    "clamp_index",
    "load",
    "prefetch",
    "shared",
    "status_set",
    "store",
]


@on_places
def load(
    k: CallImporter,
    node: ast.Call,
    place: object,
    *,
    mask: object = None,
    other: object = None,
    count: int = 1,
    dtype: DType | None = None,
    alignment: int = 0,
) -> object:
    """x[i] with a mask, as a vector of count elements, or as a dtype out of raw bytes."""
    at = k.place(place)
    chosen = None
    if other is not None:
        found = dtype or getattr(at.memory.type, "dtype", None)
        chosen = k.value(other, found)
    return k.b.load(
        at.memory,
        at.starts(),
        mask=None if mask is None else k.value(mask),
        other=chosen,
        count=count,
        dtype=dtype,
        alignment=alignment,
    )


@on_places
def store(
    k: CallImporter,
    node: ast.Call,
    place: object,
    value: object,
    *,
    mask: object = None,
    masked: bool = False,
    layout: Layout | None = None,
    strides: Sequence[object] = (),
    alignment: int = 0,
) -> None:
    """Write an element or vector (with a mask), or a tile (masked at the array's edges)."""
    k.write(
        k.place(place),
        value,
        mask=mask,
        masked=masked,
        layout=layout,
        strides=strides,
        alignment=alignment,
    )


@on_places
def prefetch(k: CallImporter, node: ast.Call, place: object) -> None:
    """Ask for a cache line; may address past the end."""
    at = k.place(place)
    k.b.prefetch(at.memory, at.starts())


@on_places
def atomic(
    k: CallImporter, node: ast.Call, kind: str, place: object, value: object, *, mask: object = None
) -> object:
    """Combine a value into memory; returns the old value."""
    at = k.place(place)
    dtype = getattr(at.memory.type, "dtype", None)
    return k.b.atomic(
        kind,
        at.memory,
        at.starts(),
        k.value(value, dtype),
        mask=None if mask is None else k.value(mask),
    )


@intrinsic
def shared(k: CallImporter, node: ast.Call, dtype: DType, *shape: SizeLike) -> object:
    """Uninitialised memory of the workgroup."""
    return k.b.shared_alloc(dtype, [k.size(size) for size in shape])


@intrinsic
def clamp_index(
    k: CallImporter, node: ast.Call, status: Value, index: Any, extent: Any, row: Any, *, bit: int
) -> object:
    """Index inside of [0, extent); out of range marks row in the status word."""
    return k.b.clamp_index(status, index, extent, row, bit=bit)


@intrinsic
def status_set(
    k: CallImporter, node: ast.Call, status: Value, row: Any, *, bit: int, mask: Any = None
) -> None:
    """Mark row in the status word."""
    k.b.status_set(status, row, bit=bit, mask=mask)
