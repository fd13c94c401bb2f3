"""Row programs: everything pointwise, normalising, rotary and quantising, one kernel a program."""

from poot_kernelgen.rows._requests import generate_rows

__all__ = ["generate_rows"]
