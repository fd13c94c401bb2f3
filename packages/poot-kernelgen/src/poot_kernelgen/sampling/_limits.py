# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportCallIssue=false
"""What top-k and top-p keep of a row: a threshold, found by counting what several of them would keep.

A key is the distance from the largest logit as bits. The threshold lies between two keys, ``low`` and
``high``. Each pass over the row counts, or weighs, what three candidates between them keep, and finds
the least and the largest key that lies between them at all; the search ends when both are one. Two
candidates part the distance evenly, which is fast; one parts the bits evenly, which bounds the passes by
31. The search decides nothing: what is found is the one key that fits.
"""

from __future__ import annotations

from poot_core import f32, i32, i64, u32
from poot_kernel.language import (
    Array,
    Const,
    Out,
    bitcast,
    foreach,
    inline,
    kernel,
    maximum,
    minimum,
    mul_high,
    where,
    workgroup_id,
    workgroup_reduce,
)
from poot_kernelgen.requests import SAMPLE_FIELDS
from poot_kernelgen.sampling._best import largest
from poot_kernelgen.sampling._weights import (
    FAULT,
    LIMIT,
    NO_BOUND,
    STATS,
    TIES,
    TOKEN,
    TOP,
    at_least_pair,
    key_of,
    multiply_add_pair,
    sum_pair,
    weight_of,
)

__all__ = ["limits"]

ROW = SAMPLE_FIELDS.index("logits_row")
FLAGS = SAMPLE_FIELDS.index("flags")
SCALE = SAMPLE_FIELDS.index("scale")
REACH = SAMPLE_FIELDS.index("reach")
TOP_K = SAMPLE_FIELDS.index("top_k")
TOP_P = SAMPLE_FIELDS.index("top_p")
FIELDS = len(SAMPLE_FIELDS)
INFINITY = float("inf")


@inline
def between(low, high, share):
    """Return a key in [low, high) at a share of the distance; high is more than low."""
    start = bitcast(low, f32)
    key = bitcast(start + (bitcast(high, f32) - start) * share, u32)
    return maximum(low, minimum(key, high - u32(1)))


@inline
def narrowed(low, high, candidate, is_enough):
    """Return the bounds after a candidate was found to keep enough, or not."""
    return (
        where(is_enough, low, maximum(low, candidate + u32(1))),
        where(is_enough, minimum(high, candidate), high),
    )


@kernel(level="lane", grid=["samples"], workgroup_size="THREADS")
def limits(
    logits: Array[f32, "rows", "columns"],
    params: Array[u32, "samples", "FIELDS"],
    values: Array[f32, "samples", "chunks"],
    ids: Array[i32, "samples", "chunks"],
    stats: Out[u32, "samples", "STATS"],
    rows: i64,
    columns: i64,
    samples: i64,
    chunks: i64,
    THREADS: Const[object],
    FIELDS: Const[int] = FIELDS,
    STATS: Const[int] = STATS,
):
    """Store the statistics of each row."""
    sample = workgroup_id(0)
    top = f32(-INFINITY)
    token = ids[sample, 0]
    for i in foreach(chunks):
        wins = values[sample, i] > top
        token = where(wins, ids[sample, i], token)
        top = where(wins, values[sample, i], top)
    top, token = largest(top, token)
    is_finite = (bitcast(top, u32) & u32(0x7F800000)) != u32(0x7F800000)
    draws = ((params[sample, FLAGS] & u32(1)) != u32(0)) & is_finite
    row = i64(params[sample, ROW])
    scale = bitcast(params[sample, SCALE], f32)
    limit = params[sample, REACH]
    ties = u32(NO_BOUND)

    top_k = params[sample, TOP_K]
    if draws & (top_k > u32(0)):
        # No key counts that weighs nothing, so that the search stays where the likely tokens are.
        count = u32(0)
        for i in foreach(columns):
            count += where(key_of(top, logits[row, i]) <= limit, u32(1), u32(0))
        found = workgroup_reduce(count, "add")
        low = u32(0)
        high = limit
        is_open = found > top_k
        while is_open:
            a = between(low, high, f32(0.25))
            b = between(low, high, f32(0.5))
            c = low + ((high - low) >> u32(1))
            count_a = u32(0)
            count_b = u32(0)
            count_c = u32(0)
            least = u32(NO_BOUND)
            most = u32(0)
            for i in foreach(columns):
                key = key_of(top, logits[row, i])
                count_a += where(key <= a, u32(1), u32(0))
                count_b += where(key <= b, u32(1), u32(0))
                count_c += where(key <= c, u32(1), u32(0))
                inside = (key >= low) & (key <= high)
                least = where(inside, minimum(least, key), least)
                most = where(inside, maximum(most, key), most)
            count_a = workgroup_reduce(count_a, "add")
            count_b = workgroup_reduce(count_b, "add")
            count_c = workgroup_reduce(count_c, "add")
            low = maximum(low, workgroup_reduce(least, "min"))
            high = minimum(high, workgroup_reduce(most, "max"))
            is_open = low < high
            low, high = narrowed(low, high, a, count_a >= top_k)
            low, high = narrowed(low, high, b, count_b >= top_k)
            low, high = narrowed(low, high, c, count_c >= top_k)
            is_open = is_open & (low < high)
            # One that keeps just as many as are wanted keeps the same as the key that fits.
            exact = where(count_a == top_k, a, where(count_b == top_k, b, c))
            is_exact = (count_a == top_k) | (count_b == top_k) | (count_c == top_k)
            high = where(is_exact, exact, high)
            is_open = is_open & (is_exact == False)  # noqa: E712 -- an element operation
        limit = high

    top_p = params[sample, TOP_P]
    if draws & (top_p > u32(0)):
        low_part = u32(0)
        middle_part = u32(0)
        high_part = u32(0)
        for i in foreach(columns):
            key = key_of(top, logits[row, i])
            weight = where(key <= limit, weight_of(key, scale), u32(0))
            low_part += weight & u32(0x7FF)
            middle_part += (weight >> u32(11)) & u32(0x7FF)
            high_part += weight >> u32(22)
        total_high, total_low = sum_pair(low_part, middle_part, high_part)
        # share * total / 2**32, at least 1
        need_high, need_low = multiply_add_pair(
            total_high, top_p, u32(0), mul_high(total_low, top_p)
        )
        need_low = where((need_high == u32(0)) & (need_low == u32(0)), u32(1), need_low)
        low = u32(0)
        high = limit
        is_open = low < high
        while is_open:
            a = between(low, high, f32(0.25))
            b = between(low, high, f32(0.5))
            c = low + ((high - low) >> u32(1))
            parts_a = [u32(0), u32(0), u32(0)]
            parts_b = [u32(0), u32(0), u32(0)]
            parts_c = [u32(0), u32(0), u32(0)]
            least = u32(NO_BOUND)
            most = u32(0)
            for i in foreach(columns):
                key = key_of(top, logits[row, i])
                weight = weight_of(key, scale)
                first = weight & u32(0x7FF)
                second = (weight >> u32(11)) & u32(0x7FF)
                third = weight >> u32(22)
                parts_a = added(parts_a, key <= a, first, second, third)
                parts_b = added(parts_b, key <= b, first, second, third)
                parts_c = added(parts_c, key <= c, first, second, third)
                inside = (key >= low) & (key <= high)
                least = where(inside, minimum(least, key), least)
                most = where(inside, maximum(most, key), most)
            enough_a = reaches(parts_a, need_high, need_low)
            enough_b = reaches(parts_b, need_high, need_low)
            enough_c = reaches(parts_c, need_high, need_low)
            low = maximum(low, workgroup_reduce(least, "min"))
            high = minimum(high, workgroup_reduce(most, "max"))
            is_open = low < high
            low, high = narrowed(low, high, a, enough_a)
            low, high = narrowed(low, high, b, enough_b)
            low, high = narrowed(low, high, c, enough_c)
            is_open = is_open & (low < high)
        limit = high
        # Of equal ones at the threshold the first stay, as many as are needed.
        low_part = u32(0)
        middle_part = u32(0)
        high_part = u32(0)
        for i in foreach(columns):
            key = key_of(top, logits[row, i])
            weight = where(key < limit, weight_of(key, scale), u32(0))
            low_part += weight & u32(0x7FF)
            middle_part += (weight >> u32(11)) & u32(0x7FF)
            high_part += weight >> u32(22)
        above_high, above_low = sum_pair(low_part, middle_part, high_part)
        each = weight_of(limit, scale)
        first_count = u32(1)
        last_count = u32(1 << 20)
        while first_count < last_count:
            count = (first_count + last_count) >> u32(1)
            mass_high, mass_low = multiply_add_pair(count, each, above_high, above_low)
            is_enough = at_least_pair(mass_high, mass_low, need_high, need_low)
            first_count = where(is_enough, first_count, count + u32(1))
            last_count = where(is_enough, count, last_count)
        ties = last_count

    stats[sample, FAULT] = where(is_finite, u32(0), u32(1))
    stats[sample, TOP] = bitcast(top, u32)
    stats[sample, TOKEN] = u32(token)
    stats[sample, LIMIT] = limit
    stats[sample, TIES] = ties


@inline
def added(parts, is_kept, first, second, third):
    """Return sums of a weight's three parts with one more weight, if it is kept."""
    return [
        parts[0] + where(is_kept, first, u32(0)),
        parts[1] + where(is_kept, second, u32(0)),
        parts[2] + where(is_kept, third, u32(0)),
    ]


@inline
def reaches(parts, need_high, need_low):
    """Return whether the lanes' sums come to a 64-bit number."""
    high, low = sum_pair(parts[0], parts[1], parts[2])
    return at_least_pair(high, low, need_high, need_low)
