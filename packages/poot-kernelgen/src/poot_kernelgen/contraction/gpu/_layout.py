"""How weights lie for GPUs: rows one after the other, each a few planes.

A row of a dense type is its elements, padded with zeros to 16 bytes. A row of a packed format with n
steps of 32 k is

    codes    n items of 32 (8 bits), 16 (4, 5 and 6 bits) or 8 bytes (2 bits)
    high     n items of 4 (5 bits) or 8 bytes (6 bits)
    scales   n items: the step's group scales, then its offsets (f16, e8m0 or small integers)
    heads    n / 8 items: f16 scale, f16 offset of a superblock

each plane starting on 16 bytes, so that neighbouring lanes, which take neighbouring steps, read
neighbouring bytes. Inside an item, bits stand as in the host's layout for one row (``_codec.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import ShapeError
from poot_kernel import IRBuilder, Value
from poot_kernelgen.contraction._codec import ROWS, STEP, Codec, codec_of, dense_bytes, is_dense

__all__ = ["Planes", "RowLayout", "align16"]

_CODES = {2: 8, 4: 16, 5: 16, 6: 16, 8: 32}
_HIGH = {5: 4, 6: 8}


@dataclass(frozen=True, slots=True)
class Planes:
    """Where the planes of a row start, and how long a row is, as index values or numbers."""

    high: Value
    scales: Value
    heads: Value
    row_bytes: Value


@dataclass(frozen=True, slots=True)
class RowLayout:
    """One stored type's rows."""

    source: str

    @property
    def codec(self) -> Codec:
        """Facts of the packed format."""
        return codec_of(self.source)

    @property
    def code_bytes(self) -> int:
        """Bytes of a step's codes, without high bits."""
        return _CODES[self.codec.bits]

    @property
    def high_bytes(self) -> int:
        """Bytes of a step's high bits."""
        return _HIGH.get(self.codec.bits, 0)

    @property
    def scale_item(self) -> int:
        """Bytes of one group scale or offset."""
        kind = self.codec.kind
        if kind == "super":
            return 1 if self.codec.scale_bytes else 0
        return 2 if kind == "f16" else 1

    @property
    def scale_bytes(self) -> int:
        """Bytes of a step's scales and offsets."""
        return self.scale_item * self.codec.groups * (2 if self.codec.has_min else 1)

    @property
    def head_bytes(self) -> int:
        """Bytes of a superblock's scale and offset."""
        return (4 if self.codec.has_min else 2) if self.codec.kind == "super" else 0

    def row_bytes(self, k: int) -> int:
        """Return the bytes of a row of k elements.

        Raises:
            ShapeError: If a packed row is no whole number of blocks.
        """
        if is_dense(self.source):
            return _aligned(k * dense_bytes(self.source))
        elements = self.codec.format.block_elements
        if k % elements:
            raise ShapeError(f"{self.source} rows hold multiples of {elements} elements, got {k}")
        steps = k // STEP
        sizes = (self.code_bytes, self.high_bytes, self.scale_bytes)
        return sum(_aligned(steps * size) for size in sizes) + _aligned(
            steps // 8 * self.head_bytes
        )

    def packed_bytes(self, n: int, k: int) -> int:
        """Return the bytes of a matrix of n rows."""
        return -(-n // ROWS) * ROWS * self.row_bytes(k)

    # ---- the same for kernels

    def dense_row_bytes(self, b: IRBuilder, k: Value) -> Value:
        """Return the bytes of a row of a dense type."""
        return align16(b, b.mul(k, dense_bytes(self.source)))

    def planes(self, b: IRBuilder, k: Value) -> Planes:
        """Return where the planes of a packed row start."""
        steps = b.shr(k, 5)
        high = align16(b, b.mul(steps, self.code_bytes))
        scales = b.add(high, align16(b, b.mul(steps, self.high_bytes)))
        heads = b.add(scales, align16(b, b.mul(steps, self.scale_bytes)))
        end = b.add(heads, align16(b, b.mul(b.shr(steps, 3), self.head_bytes)))
        return Planes(high, scales, heads, end)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def align16(b: IRBuilder, nbytes: Value) -> Value:
    """Return a number of bytes rounded up to 16."""
    return b.and_(b.add(nbytes, 15), -16)
