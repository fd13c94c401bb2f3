"""Weight layouts as a planner sees them: which one, and how many bytes."""

from __future__ import annotations

from poot_core import DeviceCaps, ShapeError, Target
from poot_kernelgen.contraction._codec import ROWS, codec_of, dense_bytes, is_dense
from poot_kernelgen.contraction.gpu._layout import RowLayout
from poot_kernelgen.requests import WeightLayout

__all__ = ["packed_bytes", "weight_layout_for"]


def weight_layout_for(source: str, target: Target, caps: DeviceCaps) -> WeightLayout:
    """Return the layout of a stored type on a device; it serves every number of rows.

    Raises:
        UnsupportedError: If there is none for the type.
    """
    _ = target  # one layout fits 512, 256 and 128-bit hosts
    if not is_dense(source):
        codec_of(source)
    order = "rows" if caps.max_workgroup > 1 else "lanes"
    return WeightLayout(source=source, interleave=ROWS, order=order)


def packed_bytes(layout: WeightLayout, n: int, k: int) -> int:
    """Return the bytes of a matrix of n rows (of both halves, where gated) of k elements.

    Raises:
        ShapeError: If rows of k elements are no whole number of blocks.
    """
    if layout.order == "rows":
        return RowLayout(layout.source).packed_bytes(n, k)
    groups = -(-n // ROWS)
    if is_dense(layout.source):
        width = -(-k // 2) * 2 if layout.source == "bf16" else k
        return groups * ROWS * width * dense_bytes(layout.source)
    codec = codec_of(layout.source)
    elements = codec.format.block_elements
    if k % elements:
        raise ShapeError(f"{layout.source} rows hold multiples of {elements} elements, got {k}")
    steps = k // 32
    return groups * (steps // codec.steps * codec.block_bytes)
