"""What goes wrong while a kernel runs in the interpreter."""

from __future__ import annotations

from poot_core import PootError

__all__ = ["BoundsFault", "KernelFault", "RaceFault", "UninitialisedFault"]


class KernelFault(PootError, RuntimeError):
    """A kernel did what it must not; names the kernel, the operation and its place."""


class BoundsFault(KernelFault, IndexError):
    """An access outside of an array."""


class RaceFault(KernelFault):
    """Two invocations touched one element, one of them writing, with no barrier between."""


class UninitialisedFault(KernelFault):
    """A read of workgroup memory that nobody wrote."""
