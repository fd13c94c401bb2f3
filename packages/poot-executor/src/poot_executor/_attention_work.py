"""The attention work list of one step: tiles of tokens times splits of keys, made on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from poot_executor._program import AttentionClass

__all__ = ["Work", "fill_work", "work_capacity"]

_FILLING = 12  # tiles of equal length that, over all kv heads, occupy a device

Int32 = NDArray[np.int32]


class Work(NamedTuple):
    """Facts of a filled work list.

    Attributes:
        num_items: Items of 4 i32: first token, tokens, first key, end key.
        max_splits: Most splits that one token's keys span; a merge is needed if it is over 1.
    """

    num_items: int
    max_splits: int


def work_capacity(attention: AttentionClass, max_tokens: int, max_sequences: int) -> int:
    """Return the most items of a step."""
    tile = attention.query_tiles[1]
    tiles = max(max_sequences, -(-max_tokens // tile) + max_sequences)
    return tiles * attention.max_splits


def fill_work(
    attention: AttentionClass,
    positions: Int32,
    rows: Int32,
    lengths: Int32,
    *,
    is_decode: bool,
    out: Int32,
) -> Work:
    """Fill ``out`` with the items of a step.

    Args:
        attention: Window, split and tiles.
        positions: (T,).
        rows: (T,), not decreasing.
        lengths: (R,), tokens of each row.
        is_decode: Whether each row has one token.
        out: (capacity, 4), overwritten from the start.
    """
    window, split = attention.window, attention.split
    if len(positions) == 1:
        last = int(_last_keys(attention, positions, rows, lengths)[0])
        return _fill_one(int(positions[0]), last, window, split, out)
    last_keys = _last_keys(attention, positions, rows, lengths)
    lowest = positions * 0 if window is None else np.maximum(positions - (window - 1), 0)
    last_split = last_keys // split
    splits = last_split - lowest // split + 1
    max_splits = int(splits.max())
    if is_decode:
        starts = np.arange(len(positions), dtype=np.int32)
        counts, low, end, first_split = 1, lowest, last_keys + 1, lowest // split
    else:
        starts, counts = _tiles(rows, attention.query_tiles[1])
        low = lowest[starts]
        end = last_keys[starts + counts - 1] + 1
        first_split = low // split
        splits = (end - 1) // split - first_split + 1
        keys = end - low
        # Splits cost memory where they bring nothing; a tile much longer than the others needs them.
        if attention.may_join and int(keys.max()) * _FILLING <= int(keys.sum()):
            splits, max_splits = np.ones_like(starts), 1
    total = int(splits.sum())
    items = out[:total]
    if total == len(starts):
        items[:, 0], items[:, 1], items[:, 2], items[:, 3] = starts, counts, low, end
        return Work(total, max_splits)
    tile = np.repeat(np.arange(len(starts)), splits)
    before = np.cumsum(splits) - splits
    number = np.arange(total) - before[tile] + first_split[tile]
    items[:, 0] = starts[tile]
    items[:, 1] = counts if is_decode else np.asarray(counts)[tile]
    items[:, 2] = np.maximum(low[tile], number * split)
    items[:, 3] = np.minimum(end[tile], (number + 1) * split)
    return Work(total, max_splits)


def _last_keys(attention: AttentionClass, positions: Int32, rows: Int32, lengths: Int32) -> Int32:
    """Return the last key that each token sees."""
    if attention.causal:
        return positions
    last = lengths[rows] - 1
    if attention.window is None:
        return last
    return np.minimum(last, positions + (attention.window - 1))


def _fill_one(position: int, last_key: int, window: int | None, split: int, out: Int32) -> Work:
    low = 0 if window is None else max(0, position - window + 1)
    first, last = low // split, last_key // split
    for item, number in enumerate(range(first, last + 1)):
        row = (0, 1, max(low, number * split), min(last_key + 1, (number + 1) * split))
        out[item] = row
    return Work(last - first + 1, last - first + 1)


def _tiles(rows: Int32, tile: int) -> tuple[Int32, Int32]:
    """Return first token and number of tokens of runs of at most ``tile`` tokens of one row."""
    index = np.arange(len(rows), dtype=np.int32)
    is_first = np.empty(len(rows), bool)
    is_first[0] = True
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    row_start = index[is_first][np.cumsum(is_first) - 1]
    starts = index[(index - row_start) % tile == 0]
    return starts, np.diff(starts, append=np.int32(len(rows))).astype(np.int32)
