"""Row programs: everything pointwise, normalising, rotary and quantising, one kernel a program."""

from poot_kernelgen.rows._generate import row_kernel

__all__ = ["row_kernel"]
