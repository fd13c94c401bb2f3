"""The kernel language: typed Python functions that are imported into kernel IR."""

from poot_kernel.language.annotations import (
    Aligned,
    Array,
    Const,
    InOut,
    Out,
    Raw,
    RawInOut,
    RawOut,
    Strided,
)
from poot_kernel.language.intrinsics import *  # noqa: F403 -- the operations, listed there
from poot_kernel.language.intrinsics import __all__ as _operations
from poot_kernel.language.kernel import Kernel, inline, kernel

__all__ = [
    "Aligned",
    "Array",
    "Const",
    "InOut",
    "Kernel",
    "Out",
    "Raw",
    "RawInOut",
    "RawOut",
    "Strided",
    "inline",
    "kernel",
]
__all__ += _operations
