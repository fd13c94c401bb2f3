# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportCallIssue=false, reportGeneralTypeIssues=false
"""Tables that outlive a step: the last token of each slot, and what penalties count."""

from __future__ import annotations

from poot_core import i32, i64, u32
from poot_kernel.language import Array, Const, InOut, foreach, kernel, minimum, workgroup_id

__all__ = ["clear_counts", "feed", "set_counts"]

CHUNK = 4096


@kernel(level="lane", grid=[1], workgroup_size="THREADS")
def feed(
    token_ids: InOut[i32, "tokens"],
    last: Array[i32, "slots"],
    feeds: Array[i32, "count", "2"],
    tokens: i64,
    slots: i64,
    count: i64,
    THREADS: Const[object],
):
    """Put last tokens where a step reads its tokens; the host made places and slots."""
    for i in foreach(count):
        token_ids[i64(feeds[i, 0])] = last[i64(feeds[i, 1])]


@kernel(level="lane", grid=["ceildiv(columns, CHUNK)"], workgroup_size="THREADS")
def clear_counts(
    counts: InOut[u32, "slots", "columns"],
    slots: i64,
    columns: i64,
    slot: i64,
    THREADS: Const[object],
    CHUNK: Const[int] = CHUNK,
):
    """Set a slot's counts to zero."""
    start = workgroup_id(0) * CHUNK
    for i in foreach(start, minimum(start + CHUNK, columns)):
        counts[slot, i] = u32(0)


@kernel(level="lane", grid=[1], workgroup_size="THREADS")
def set_counts(
    counts: InOut[u32, "slots", "columns"],
    entries: Array[u32, "count", "2"],
    slots: i64,
    columns: i64,
    slot: i64,
    count: i64,
    THREADS: Const[object],
):
    """Set the counts of some ids of a slot."""
    for i in foreach(count):
        counts[slot, i64(entries[i, 0])] = entries[i, 1]
