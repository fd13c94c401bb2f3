"""Attention over paged keys and values: the main kernel over a work list, and the merge."""

from poot_kernelgen.attention._main import attend_kernel
from poot_kernelgen.attention._merge import merge_kernel

__all__ = ["attend_kernel", "merge_kernel"]
