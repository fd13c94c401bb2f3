"""Contractions of activations with weights, and the packing and gathering of those weights."""

from poot_kernelgen.contraction._codec import takes_lifted
from poot_kernelgen.contraction._layout import pack_table, packed_bytes, weight_layout_for
from poot_kernelgen.contraction._requests import (
    generate_contraction,
    generate_gather,
    generate_pack,
)
from poot_kernelgen.contraction.matrix import flight_of

__all__ = [
    "flight_of",
    "generate_contraction",
    "generate_gather",
    "generate_pack",
    "pack_table",
    "packed_bytes",
    "takes_lifted",
    "weight_layout_for",
]
