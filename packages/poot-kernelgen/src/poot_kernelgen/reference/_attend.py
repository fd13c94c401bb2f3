"""Meaning of attention over a work list: partial results at fixed splits, merged in order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import bf16
from poot_kernelgen.reference._kv import kv_read
from poot_kernelgen.requests import AttendRequest

__all__ = ["attend", "attend_partials", "merge_partials"]

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Array = NDArray[Any]


def attend(
    request: AttendRequest,
    queries: Float32,
    pools: tuple[Array, Array],
    positions: Int32,
    rows: Int32,
    block_tables: Int32,
    *,
    sinks: Float32 | None = None,
    slopes: Float32 | None = None,
    lengths: Int32 | None = None,
) -> Float32:
    """Return (T, heads, value_dim): attention computed without a work list.

    Args:
        request: Heads, layouts and masks.
        queries: (T, heads, key_dim).
        pools: Key pool and value pool.
        positions: (T,).
        rows: (T,).
        block_tables: (R, B).
        sinks: (heads,) if the request has sinks.
        slopes: (heads,) if the request has ALiBi slopes.
        lengths: (R,) if the request is not causal.
    """
    result = np.empty((len(queries), request.num_heads, request.value.head_dim), np.float32)
    for token, position in enumerate(positions.tolist()):
        lowest = 0 if request.window is None else max(0, position - request.window + 1)
        last_key = _last_key(request, position, rows[token], lengths)
        parts = [
            _part(
                request, queries, pools, positions, block_tables[rows[token]], slopes, token, k0, k1
            )
            for k0, k1 in _splits(lowest, last_key + 1, request.split)
        ]
        result[token] = _merge(np.stack(parts), sinks)
    return result


def _last_key(request: AttendRequest, position: int, row: int, lengths: Int32 | None) -> int:
    """Return the last key that a token sees."""
    if request.causal:
        return position
    assert lengths is not None
    last = int(lengths[row]) - 1
    return last if request.window is None else min(last, position + request.window - 1)


def _splits(first: int, end: int, split: int) -> list[tuple[int, int]]:
    return [
        (max(first, s * split), min(end, (s + 1) * split))
        for s in range(first // split, (end - 1) // split + 1)
    ]


def attend_partials(
    request: AttendRequest,
    queries: Float32,
    pools: tuple[Array, Array],
    positions: Int32,
    rows: Int32,
    block_tables: Int32,
    work: Int32,
    partials: Float32,
    result: Float32,
    *,
    sinks: Float32 | None = None,
    slopes: Float32 | None = None,
    lengths: Int32 | None = None,
) -> None:
    """Run a work list (items, 4) as the main kernel does, into ``partials`` and ``result``.

    Args:
        request: Heads, layouts and masks.
        queries: (T, heads, key_dim).
        pools: Key pool and value pool.
        positions: (T,).
        rows: (T,).
        block_tables: (R, B).
        work: (items, 4): first token, tokens, first key, end key.
        partials: (T, P, heads, value_dim + 2).
        result: (T, heads, value_dim).
        sinks: (heads,) if the request has sinks.
        slopes: (heads,) if the request has ALiBi slopes.
        lengths: (R,) if the request is not causal.
    """
    for start, count, first_key, end_key in work.tolist():
        for token in range(start, start + count):
            position = int(positions[token])
            lowest = 0 if request.window is None else max(0, position - request.window + 1)
            last_key = _last_key(request, position, rows[token], lengths)
            k0, k1 = max(first_key, lowest), min(end_key, last_key + 1)
            if k0 >= k1:
                continue
            table = block_tables[rows[token]]
            part = _part(request, queries, pools, positions, table, slopes, token, k0, k1)
            first, last = lowest // request.split, last_key // request.split
            if first == last:
                result[token] = _merge(part[None], sinks)
            else:
                partials[token, k0 // request.split - first] = part


def merge_partials(
    request: AttendRequest,
    partials: Float32,
    positions: Int32,
    result: Float32,
    *,
    sinks: Float32 | None = None,
    rows: Int32 | None = None,
    lengths: Int32 | None = None,
) -> None:
    """Combine the partial results of the tokens that have several splits, in place.

    ``rows`` (T,) and ``lengths`` (R,) are there if the request is not causal.
    """
    for token, position in enumerate(positions.tolist()):
        lowest = 0 if request.window is None else max(0, position - request.window + 1)
        row = 0 if rows is None else int(rows[token])
        last_key = _last_key(request, position, row, lengths)
        first, last = lowest // request.split, last_key // request.split
        if first != last:
            result[token] = _merge(partials[token, : last - first + 1], sinks)


def _part(
    request: AttendRequest,
    queries: Float32,
    pools: tuple[Array, Array],
    positions: Int32,
    table: Int32,
    slopes: Float32 | None,
    token: int,
    k0: int,
    k1: int,
) -> Float32:
    """Return (heads, value_dim + 2): max, sum of exponentials, weighted values of keys k0..k1."""
    group = request.num_heads // request.key.num_kv_heads
    keys = np.repeat(kv_read(request.key, pools[0], table, k0, k1), group, axis=1)
    values = np.repeat(kv_read(request.value, pools[1], table, k0, k1), group, axis=1)
    query = queries[token] if not request.key.pairs else _rounded(request, queries[token])
    scores = np.einsum("hd,khd->hk", query, keys, optimize=False) * np.float32(request.scale)
    if request.softcap is not None:
        cap = np.float32(request.softcap)
        scores = cap * np.tanh(scores / cap)
    if slopes is not None:
        distance = np.arange(k0, k1, dtype=np.float32) - np.float32(positions[token])
        scores = scores + slopes[:, None] * distance
    largest = scores.max(axis=-1)
    weights = np.exp(scores - largest[:, None])
    if request.value.pairs:
        weights = (weights.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    mixed = np.einsum("hk,khd->hd", weights, values, optimize=False)
    return np.concatenate([largest[:, None], weights.sum(axis=-1)[:, None], mixed], axis=1)


def _rounded(request: AttendRequest, query: Float32) -> Float32:
    """Return queries as products of pairs take them: scaled to the scores' unit, then bf16."""
    unit = 1 / request.softcap if request.softcap is not None else math.log2(math.e)
    factor = np.float32(request.scale * unit)
    return (query * factor).astype(bf16.numpy).astype(np.float32) / factor


def _merge(parts: Float32, sinks: Float32 | None) -> Float32:
    """Return (heads, value_dim) from (splits, heads, value_dim + 2), in ascending order."""
    largest = parts[:, :, 0].max(axis=0)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    total = np.zeros_like(largest)
    mixed = np.zeros_like(parts[0, :, 2:])
    for part in parts:
        factor = np.exp(part[:, 0] - largest)
        total = total + part[:, 1] * factor
        mixed = mixed + part[:, 2:] * factor[:, None]
    if sinks is not None:
        total = total + np.exp(sinks - largest)
    return (mixed / total[:, None]).astype(np.float32)
