"""Formats of 32 elements with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0."""

from __future__ import annotations

import numpy as np

from poot_quant._bits import Bytes, bits, half, planes
from poot_quant._format import QuantFormat, Unpacked

__all__ = ["unpack_four_bit", "unpack_q8_0"]


def unpack_four_bit(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack four bits a code, a fifth in ``qh`` and an offset in ``m`` where the format has them.

    Formats without an offset centre the code instead.
    """
    codes = planes(fmt.slice(blocks, "qs"), 4, 16)
    if fmt.code_bits == 5:
        codes |= bits(fmt.slice(blocks, "qh")) << np.uint8(4)
    mins = half(fmt.slice(blocks, "m")) if fmt.has_min else None
    signed = codes.view(np.int8)
    signed += np.int8(fmt.code_min)
    return Unpacked(signed, half(fmt.slice(blocks, "d")), mins)


def unpack_q8_0(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack plain signed bytes."""
    return Unpacked(fmt.slice(blocks, "qs").view(np.int8), half(fmt.slice(blocks, "d")), None)
