"""Four-bit codes that index a table (IQ4_NL, IQ4_XS, MXFP4, NVFP4) and the ternary formats."""

from __future__ import annotations

import numpy as np

from poot_quant._bits import Bytes, half, planes
from poot_quant._format import QuantFormat, Unpacked

__all__ = [
    "E2M1_DOUBLED",
    "IQ4_VALUES",
    "unpack_iq4_nl",
    "unpack_iq4_xs",
    "unpack_mxfp4",
    "unpack_nvfp4",
    "unpack_tq1_0",
    "unpack_tq2_0",
]

# The non-linear four-bit codebook of ggml's IQ4 types (a fact of the format).
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the e2m1 values of the OCP microscaling formats; the scale is halved to match.
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

_IQ4 = np.array(IQ4_VALUES, dtype=np.int8)
_E2M1 = np.array(E2M1_DOUBLED, dtype=np.int8)


def unpack_iq4_nl(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack table indices under one f16 scale."""
    return Unpacked(
        _IQ4[planes(fmt.slice(blocks, "qs"), 4, 16)], half(fmt.slice(blocks, "d")), None
    )


def unpack_iq4_xs(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack table indices under six-bit signed group scales."""
    low = planes(fmt.slice(blocks, "scales_l"), 4, 1)  # (n, 8)
    high = planes(fmt.slice(blocks, "scales_h"), 2, 1)  # (n, 8)
    groups = (low | high << 4).view(np.int8) - np.int8(32)
    scales = half(fmt.slice(blocks, "d")) * groups.astype(np.float32)
    return Unpacked(_IQ4[planes(fmt.slice(blocks, "qs"), 4, 16)], scales, None)


def unpack_mxfp4(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack e2m1 under one e8m0 scale (2 ** (e - 127), halved here)."""
    exponent = fmt.slice(blocks, "e").astype(np.uint32)
    # Half of 2 ** (e - 127) has the exponent field e - 1; at e = 0 and 1 it is subnormal.
    subnormal = np.uint32(0x00200000) << np.minimum(exponent, 1)
    field = np.where(exponent < 2, subnormal, (exponent - 1) << 23)
    scales = field.astype(np.uint32).view(np.float32)
    return Unpacked(_E2M1[planes(fmt.slice(blocks, "qs"), 4, 16)], scales, None)


def unpack_nvfp4(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack e2m1 under four unsigned e4m3 scales, halved here; 0x7f, a NaN there, reads as 0."""
    code = fmt.slice(blocks, "d")
    mantissa, exponent = (code & 7).astype(np.float32), (code >> 3 & 15).astype(np.int32)
    subnormal = np.ldexp(mantissa, -10)
    normal = np.ldexp(1 + mantissa / 8, exponent - 8)
    scales = np.where(exponent == 0, subnormal, normal).astype(np.float32)
    scales[(code == 0x7F)] = 0
    return Unpacked(_E2M1[planes(fmt.slice(blocks, "qs"), 4, 8)], scales, None)


def unpack_tq1_0(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack five base-3 digits a byte; a digit is the top of the byte times a power of three."""
    qs = fmt.slice(blocks, "qs")
    digits = [
        _ternary_digits(qs[:, :32], 5, 32),
        _ternary_digits(qs[:, 32:], 5, 16),
        _ternary_digits(fmt.slice(blocks, "qh"), 4, 4),
    ]
    codes = np.concatenate(digits, axis=1).view(np.int8) - np.int8(1)  # (n, 160 + 80 + 16)
    return Unpacked(codes, _per_block(fmt, blocks), None)


def unpack_tq2_0(fmt: QuantFormat, blocks: Bytes) -> Unpacked:
    """Unpack two bits a code; the unused fourth pattern decodes to 2, as in ggml."""
    codes = planes(fmt.slice(blocks, "qs"), 2, 32).view(np.int8) - np.int8(1)
    return Unpacked(codes, _per_block(fmt, blocks), None)


def _ternary_digits(data: Bytes, num_digits: int, span: int) -> Bytes:
    powers = np.array([1, 3, 9, 27, 81][:num_digits], dtype=np.uint8)[:, None]
    moved = data.reshape(len(data), -1, 1, span) * powers  # wraps modulo 256 on purpose
    return (moved.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(data), -1)


def _per_block(fmt: QuantFormat, blocks: Bytes) -> np.ndarray:
    return np.repeat(half(fmt.slice(blocks, "d")), fmt.groups_per_block, axis=1)
