"""Which kernel answers a row program or a write into a paged pool."""

from __future__ import annotations

from typing import cast

from poot_core import DeviceCaps, Target
from poot_kernelgen._answers import answer, entry_name
from poot_kernelgen._generate import GeneratedKernel
from poot_kernelgen.requests import KvWriteRequest, Request, RowProgram
from poot_kernelgen.rows._generate import row_kernel
from poot_kernelgen.rows._kv_write import kv_write_kernel

__all__ = ["generate_kv_write", "generate_rows"]


def generate_rows(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernel of a row program.

    Raises:
        UnsupportedError: If an operation is unknown or an output's kind does not fit.
    """
    _ = caps
    found = cast("RowProgram", request)
    return (answer(row_kernel(found, target, entry_name("rows", found, target)), grain=4),)


def generate_kv_write(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernel of a write into a pool."""
    _ = caps
    found = cast("KvWriteRequest", request)
    kernel = kv_write_kernel(found, target, entry_name("kv_write", found, target))
    return (answer(kernel, grain=4),)
