"""Loaded kernels, and the error for one that the driver refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from poot_core import CompileError, Target
from poot_executor.stream_device._driver import DriverError
from poot_kernel.compile import KernelCache, KernelPackage

__all__ = ["StreamKernel", "refused_kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamKernel:
    """A loaded kernel; implements ``poot_executor.KernelHandle``.

    Attributes:
        entry: Name of the function.
        function: The driver's handle.
        package: What a launch must know.
    """

    entry: str
    function: Any = field(repr=False)
    package: KernelPackage = field(repr=False)


def refused_kernel(
    cache: KernelCache,
    target: Target,
    package: KernelPackage,
    error: DriverError,
    *,
    vendor: str,
    file: tuple[str, str],
    said: str = "",
) -> CompileError:
    """Return the error for a kernel that the driver refuses; its code is kept.

    Args:
        cache: Where it is kept.
        target: What it was compiled for.
        package: The kernel.
        error: What the driver answered.
        vendor: The driver, as the message begins.
        file: Name of the file and text to keep.
        said: What the driver's log says.
    """
    path = cache.keep_failed(*file)
    where = "could not be kept" if path is None else f"is kept at {path}"
    return CompileError(
        f"{vendor} refuses kernel {package.name!r} for {target.arch} ({error.call} answered "
        f"{error.code}){': ' + said[:2000] if said else ''}; its code {where}",
        target=str(target),
        path=None if path is None else str(path),
    )
