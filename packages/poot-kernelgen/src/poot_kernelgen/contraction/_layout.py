"""Weight layouts as a planner sees them: which one, and how many bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceCaps, ShapeError, Target
from poot_kernelgen.contraction._codec import ROWS, codec_of, dense_bytes, is_dense
from poot_kernelgen.contraction._grids import table_words
from poot_kernelgen.contraction.gpu._layout import RowLayout
from poot_kernelgen.requests import WeightLayout

__all__ = ["pack_table", "packed_bytes", "weight_layout_for"]


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


def pack_table(layout: WeightLayout) -> NDArray[np.uint16] | None:
    """Return what a packing kernel reads besides the stored rows, or None if nothing.

    Formats that index a table of vectors keep it in the code of a host's kernels, and in memory for
    GPUs: an argument of its own, see ``PackRequest``.
    """
    words = table_words(layout.source) if layout.order == "rows" else None
    return None if words is None else np.array(words, np.uint16)


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
