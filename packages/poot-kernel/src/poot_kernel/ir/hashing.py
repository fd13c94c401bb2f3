"""Structural identity of kernels: what cache keys are made of."""

from __future__ import annotations

import hashlib

from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.printer import print_kernel

__all__ = ["IR_VERSION", "structural_hash", "structurally_equal"]

# Raise when the meaning of an opcode changes, so that cached code is not reused.
IR_VERSION = 1


def structural_hash(kernel: KernelFunction) -> str:
    """Return 64 hex digits of everything that decides generated code; not locations or hints."""
    text = f"poot-kernel-ir {IR_VERSION}\n{print_kernel(kernel)}"
    return hashlib.sha256(text.encode()).hexdigest()


def structurally_equal(a: KernelFunction, b: KernelFunction) -> bool:
    """Return whether two kernels are the same up to value names and locations."""
    return print_kernel(a) == print_kernel(b)
