"""Makers of packed data: round-to-nearest encoding, and random blocks of sane values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from poot_core import ShapeError, UnsupportedError
from poot_quant._format import Bytes, QuantFormat, Role

__all__ = ["encode", "random_blocks"]

Floats = NDArray[np.float32]


def encode(fmt: QuantFormat, values: NDArray[np.floating]) -> Bytes:
    """Return values rounded to the nearest code under a per-block scale.

    Good enough for test data and 8-bit copies; a quantiser that searches for scales does better.

    Args:
        fmt: Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0.
        values: (..., K), any float dtype; K a whole number of blocks.

    Returns:
        (..., bytes), uint8.

    Raises:
        UnsupportedError: If poot has no encoder for the format.
        ShapeError: If K is no whole number of blocks.
    """
    if (encoder := _ENCODERS.get(fmt.name)) is None:
        raise UnsupportedError(f"no encoder for {fmt.name}; there is one for {sorted(_ENCODERS)}")
    if values.ndim < 1 or values.shape[-1] % fmt.block_elements:
        raise ShapeError(
            f"{fmt.name} packs {fmt.block_elements} elements to a block, "
            f"got an array of shape {values.shape}"
        )
    blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, fmt.block_elements)
    return encoder(fmt, blocks).reshape(*values.shape[:-1], -1)


def random_blocks(
    fmt: QuantFormat, shape: tuple[int, ...], rng: np.random.Generator, *, scale: float = 0.02
) -> Bytes:
    """Return random packed rows: any bit pattern as codes, scales that make the values finite.

    Args:
        fmt: Any format.
        shape: (..., K), elements; K a whole number of blocks.
        rng: Source of randomness.
        scale: Roughly the root mean square of the decoded values.

    Returns:
        (..., bytes), uint8.
    """
    row_bytes = fmt.num_bytes(shape[-1])
    raw = rng.integers(0, 256, (*shape[:-1], row_bytes), dtype=np.uint8)
    blocks = raw.reshape(-1, fmt.block_bytes)
    spread = rng.uniform(0.5, 1.5, (len(blocks), 2)).astype(np.float32)
    _write_scales(fmt, blocks, spread)
    # One measured correction makes the size right without a formula per format.
    codes, scales, mins = fmt.unpacker(fmt, blocks)
    values = codes.reshape(len(blocks), -1, fmt.group) * scales[..., None]
    if mins is not None:
        values = values + mins[..., None]
    factor = np.float32(scale) / np.sqrt(np.mean(np.square(values)))
    _write_scales(fmt, blocks, spread * factor)
    return raw


def _write_scales(fmt: QuantFormat, blocks: Bytes, factors: Floats) -> None:
    """Overwrite each block's scale (and offset, negated at random in half of the blocks)."""
    if fmt.name == "MXFP4":
        exponent = np.rint(np.log2(factors[:, 0])) + 128
        fmt.slice(blocks, "e")[:, 0] = exponent.clip(0, 254).astype(np.uint8)
    elif fmt.name == "NVFP4":
        field = fmt.slice(blocks, "d")  # e4m3: 8 steps to the power of two, 1.0 is 0x38
        steps = np.rint(8 * np.log2(2 * factors[:, :1])) + 0x38 + (field & 7)
        field[...] = steps.clip(1, 0x7E).astype(np.uint8)
    elif fmt.name == "IQ1_M":
        pattern = factors[:, 0].astype("<f2").view(np.uint16)
        control = fmt.slice(blocks, "scales").view("<u2")  # (n, 4)
        nibbles = pattern[:, None] >> np.array([0, 4, 8, 12], dtype=np.uint16) & 15
        control[...] = (control & 0x0FFF) | nibbles << 12
    else:
        for field in fmt.fields:
            if field.role in {Role.SCALE, Role.MIN}:
                column = factors[:, 1 if field.role is Role.MIN else 0].copy()
                column[::2] *= -1 if field.role is Role.MIN else 1
                fmt.slice(blocks, field.name)[...] = (
                    column.astype("<f2").view(np.uint8).reshape(-1, 2)
                )


def _inverse(scale: Floats) -> Floats:
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def _as_half(values: Floats) -> Bytes:
    return values.astype("<f2").view(np.uint8)  # (n, 1) -> (n, 2)


def _encode_q8_0(fmt: QuantFormat, blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(blocks * _inverse(scale)).clip(-127, 127).astype(np.int8)
    return np.concatenate([_as_half(scale), codes.view(np.uint8)], axis=1)


def _encode_centred(fmt: QuantFormat, blocks: Floats) -> Bytes:
    # The element of largest magnitude maps to the most negative code, which has the wider range.
    largest = np.abs(blocks).argmax(axis=1)[:, None]
    scale = np.take_along_axis(blocks, largest, axis=1) / np.float32(fmt.code_min)
    codes = np.rint(blocks * _inverse(scale)).clip(fmt.code_min, fmt.code_max) - fmt.code_min
    return np.concatenate([_as_half(scale), *_pack_codes(fmt, codes.astype(np.uint8))], axis=1)


def _encode_offset(fmt: QuantFormat, blocks: Floats) -> Bytes:
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / np.float32(fmt.code_max)
    codes = np.rint((blocks - low) * _inverse(scale)).clip(0, fmt.code_max)
    packed = _pack_codes(fmt, codes.astype(np.uint8))
    return np.concatenate([_as_half(scale), _as_half(low), *packed], axis=1)


def _pack_codes(fmt: QuantFormat, codes: Bytes) -> list[Bytes]:
    low: Bytes = (codes[:, :16] & np.uint8(15)) | codes[:, 16:] << np.uint8(4)
    if fmt.code_bits == 4:
        return [low]
    return [np.packbits(codes >> np.uint8(4), axis=1, bitorder="little"), low]


_ENCODERS: dict[str, Callable[[QuantFormat, Floats], Bytes]] = {
    "Q4_0": _encode_centred,
    "Q4_1": _encode_offset,
    "Q5_0": _encode_centred,
    "Q5_1": _encode_offset,
    "Q8_0": _encode_q8_0,
}
