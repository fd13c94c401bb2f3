# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportCallIssue=false
"""The largest logit of each chunk of columns of a sampled row; penalties are taken on the way."""

from __future__ import annotations

from poot_core import f32, i32, i64, u32
from poot_kernel.language import (
    Array,
    Const,
    InOut,
    Out,
    bitcast,
    foreach,
    inline,
    kernel,
    minimum,
    where,
    workgroup_id,
    workgroup_reduce,
)
from poot_kernelgen.requests import SAMPLE_FIELDS
from poot_kernelgen.sampling._weights import is_nan

__all__ = ["best", "counted_best", "largest"]

ROW = SAMPLE_FIELDS.index("logits_row")
SLOT = SAMPLE_FIELDS.index("slot")
FLAGS = SAMPLE_FIELDS.index("flags")
REPETITION = SAMPLE_FIELDS.index("repetition")
INVERSE = SAMPLE_FIELDS.index("inverse_repetition")
FREQUENCY = SAMPLE_FIELDS.index("frequency")
PRESENCE = SAMPLE_FIELDS.index("presence")
FIELDS = len(SAMPLE_FIELDS)
INFINITY = float("inf")
NO_ID = 2**31 - 1


@inline
def largest(value, index):
    """Return the largest of the lanes' values, and the lowest index among those that have it."""
    top = workgroup_reduce(value, "max")
    return top, workgroup_reduce(where(value == top, index, i32(NO_ID)), "min")


@inline
def better(value, index, best_value, best_index):
    """Return the larger, with infinity for a NaN; a lane's indices ascend."""
    value = where(is_nan(value), f32(INFINITY), value)
    wins = value > best_value
    return where(wins, value, best_value), where(wins, index, best_index)


@inline
def penalised(value, count, params, row):
    """Return a logit after repetition, frequency and presence penalty, in this order."""
    factor = where(
        value > 0.0, bitcast(params[row, INVERSE], f32), bitcast(params[row, REPETITION], f32)
    )
    times = f32(count >> u32(1))
    found = value * factor
    found = found - times * bitcast(params[row, FREQUENCY], f32)
    found = found - where(times > 0.0, bitcast(params[row, PRESENCE], f32), f32(0.0))
    return where(count > u32(0), found, value)


@kernel(
    level="lane",
    grid=["ceildiv(columns, CHUNK)", "samples"],
    workgroup_size="THREADS",
)
def best(
    logits: Array[f32, "rows", "columns"],
    params: Array[u32, "samples", "FIELDS"],
    values: Out[f32, "samples", "ceildiv(columns, CHUNK)"],
    ids: Out[i32, "samples", "ceildiv(columns, CHUNK)"],
    rows: i64,
    columns: i64,
    samples: i64,
    CHUNK: Const[int],
    THREADS: Const[object],
    FIELDS: Const[int] = FIELDS,
):
    """Store each chunk's largest logit and its lowest id; infinity for a NaN."""
    chunk = workgroup_id(0)
    sample = workgroup_id(1)
    row = i64(params[sample, ROW])
    start = chunk * CHUNK
    top = f32(-INFINITY)
    index = i32(start)
    for i in foreach(start, minimum(start + CHUNK, columns)):
        top, index = better(logits[row, i], i32(i), top, index)
    top, index = largest(top, index)
    values[sample, chunk] = top
    ids[sample, chunk] = index


@kernel(
    level="lane",
    grid=["ceildiv(columns, CHUNK)", "samples"],
    workgroup_size="THREADS",
)
def counted_best(
    logits: InOut[f32, "rows", "columns"],
    counts: Array[u32, "slots", "columns"],
    params: Array[u32, "samples", "FIELDS"],
    values: Out[f32, "samples", "ceildiv(columns, CHUNK)"],
    ids: Out[i32, "samples", "ceildiv(columns, CHUNK)"],
    rows: i64,
    columns: i64,
    samples: i64,
    slots: i64,
    CHUNK: Const[int],
    THREADS: Const[object],
    FIELDS: Const[int] = FIELDS,
):
    """Do what ``best`` does, after penalties, which stay in the logits."""
    chunk = workgroup_id(0)
    sample = workgroup_id(1)
    row = i64(params[sample, ROW])
    slot = i64(params[sample, SLOT])
    start = chunk * CHUNK
    end = minimum(start + CHUNK, columns)
    if (params[sample, FLAGS] & u32(2)) != u32(0):
        for i in foreach(start, end):
            logits[row, i] = penalised(logits[row, i], counts[slot, i], params, sample)
    # A lane reads what it has written itself: both loops deal the same indices.
    top = f32(-INFINITY)
    index = i32(start)
    for i in foreach(start, end):
        top, index = better(logits[row, i], i32(i), top, index)
    top, index = largest(top, index)
    values[sample, chunk] = top
    ids[sample, chunk] = index
