"""Choosing the next token: argmax."""

from poot_kernelgen.sampling._requests import generate_argmax

__all__ = ["generate_argmax"]
