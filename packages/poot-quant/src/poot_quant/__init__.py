"""Packed weight formats: one descriptor per format, its exact affine form and a NumPy decode."""

from poot_quant._decode import decode, unpack
from poot_quant._encode import encode, random_blocks
from poot_quant._format import Field, QuantFormat, Role, Unpacked
from poot_quant._registry import FORMATS, format_by_ggml_type, format_by_name
from poot_quant._tables import grid_words

__all__ = [
    "FORMATS",
    "Field",
    "QuantFormat",
    "Role",
    "Unpacked",
    "decode",
    "encode",
    "format_by_ggml_type",
    "format_by_name",
    "grid_words",
    "random_blocks",
    "unpack",
]
