"""Cutting block tables to what a step reads, so that the oracle's cost follows the real lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poot_eval._packed import Array

__all__ = ["trim_block_tables"]


def trim_block_tables(inputs: Mapping[str, Array], block_size: int) -> dict[str, Array]:
    """Return the slots of a step with no more block-table columns than its longest row fills.

    Made for graphs traced with ``max_blocks_per_row=None``, which bind the width at each step; the
    results are the same up to the order of sums.

    Args:
        inputs: Slots of a ragged step by name.
        block_size: Tokens of one KV block.

    >>> tables = np.arange(8, dtype=np.int32).reshape(2, 4)
    >>> lengths = np.array([5, 9], np.int32)
    >>> step = {"block_tables": tables, "sequence_lengths": lengths}
    >>> trim_block_tables(step, block_size=4)["block_tables"].tolist()
    [[0, 1, 2], [4, 5, 6]]
    """
    longest = int(inputs["sequence_lengths"].max(initial=1))
    width = max(1, -(-longest // block_size))
    return {**inputs, "block_tables": np.ascontiguousarray(inputs["block_tables"][:, :width])}
