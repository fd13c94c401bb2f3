"""Contractions, packing and gathering for GPUs: rows of planes, lanes that split K."""

from poot_kernelgen.contraction.gpu._layout import RowLayout
from poot_kernelgen.contraction.gpu._requests import (
    generate_contraction,
    generate_gather,
    generate_pack,
)

__all__ = ["RowLayout", "generate_contraction", "generate_gather", "generate_pack"]
