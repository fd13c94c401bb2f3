"""Choosing the next token: argmax, the sampler and the tables that it keeps."""

from poot_kernelgen.sampling._requests import (
    generate_argmax,
    generate_counts,
    generate_feed,
    generate_sample,
)

__all__ = ["generate_argmax", "generate_counts", "generate_feed", "generate_sample"]
