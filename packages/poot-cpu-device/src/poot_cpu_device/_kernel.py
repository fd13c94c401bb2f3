"""Kernels in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from poot_kernel.compile import LoadedCode

__all__ = ["CpuKernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernel:
    """A loaded kernel: ``void (ptr arguments, i64 tile_begin, i64 tile_end, ptr scratch)``.

    Attributes:
        entry: Name of the function.
        address: Where it starts.
        code: Keeps the code mapped.
    """

    entry: str
    address: int
    code: LoadedCode = field(repr=False)
