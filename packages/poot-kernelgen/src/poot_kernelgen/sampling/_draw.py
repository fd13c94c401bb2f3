# ruff: noqa: F821, UP037 -- array extents in annotations name the kernel's parameters
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportCallIssue=false, reportGeneralTypeIssues=false
"""Drawing a token: sums of weights by block of columns, then the place of a random number among them.

The random number is Philox 4x32-10 (Salmon et al., SC 2011) keyed by the request's seed and counted by
position and choice: 64 bits r choose the first token, by id, at which the sum of weights so far is more
than ``r * total / 2**64``, rounded down.
"""

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
    local_id,
    minimum,
    mul_high,
    static_range,
    where,
    workgroup_id,
    workgroup_reduce,
)
from poot_kernelgen.requests import SAMPLE_FIELDS
from poot_kernelgen.sampling._weights import (
    FAULT,
    LIMIT,
    STATS,
    TIES,
    TOKEN,
    TOP,
    add_pair,
    at_least_pair,
    key_of,
    multiply_add_pair,
    sum_pair,
    weight_of,
)

__all__ = ["counted_draw", "draw", "masses"]

ROW = SAMPLE_FIELDS.index("logits_row")
SLOT = SAMPLE_FIELDS.index("slot")
FLAGS = SAMPLE_FIELDS.index("flags")
SCALE = SAMPLE_FIELDS.index("scale")
MIN_WEIGHT = SAMPLE_FIELDS.index("min_weight")
SEED_LOW = SAMPLE_FIELDS.index("seed_low")
SEED_HIGH = SAMPLE_FIELDS.index("seed_high")
CHOICE = SAMPLE_FIELDS.index("choice")
POSITION = SAMPLE_FIELDS.index("position")
FIELDS = len(SAMPLE_FIELDS)


@inline
def philox(position, choice, key_low, key_high):
    """Return the first two words of the block that draws a token."""
    a = position
    b = choice
    c = u32(0)
    d = u32(0)
    for _ in static_range(10):
        left_high = mul_high(u32(0xD2511F53), a)
        left_low = u32(0xD2511F53) * a
        right_high = mul_high(u32(0xCD9E8D57), c)
        right_low = u32(0xCD9E8D57) * c
        a = right_high ^ b ^ key_low
        b = right_low
        c = left_high ^ d ^ key_high
        d = left_low
        key_low = key_low + u32(0x9E3779B9)
        key_high = key_high + u32(0xBB67AE85)
    return a, b


@inline
def scaled_pair(r_high, r_low, high, low):
    """Return the upper 64 bits of the product of two 64-bit numbers."""
    # low parts, then each cross product with what it carries over
    a_high, a_low = multiply_add_pair(r_low, high, u32(0), mul_high(r_low, low))
    b_high, _ = multiply_add_pair(r_high, low, u32(0), a_low)
    c_high, c_low = add_pair(u32(0), a_high, u32(0), b_high)
    return multiply_add_pair(r_high, high, c_high, c_low)


@kernel(
    level="lane",
    grid=["ceildiv(columns, BLOCK)", "samples"],
    workgroup_size="THREADS",
)
def masses(
    logits: Array[f32, "rows", "columns"],
    params: Array[u32, "samples", "FIELDS"],
    stats: Array[u32, "samples", "STATS"],
    sums: Out[u32, "samples", "ceildiv(columns, BLOCK)", "4"],
    rows: i64,
    columns: i64,
    samples: i64,
    BLOCK: Const[int],
    THREADS: Const[object],
    FIELDS: Const[int] = FIELDS,
    STATS: Const[int] = STATS,
):
    """Store for each block three parts of the sum of weights below the limit, and how many are at it."""
    block = workgroup_id(0)
    sample = workgroup_id(1)
    if ((params[sample, FLAGS] & u32(1)) != u32(0)) & (stats[sample, FAULT] == u32(0)):
        row = i64(params[sample, ROW])
        top = bitcast(stats[sample, TOP], f32)
        limit = stats[sample, LIMIT]
        scale = bitcast(params[sample, SCALE], f32)
        least = params[sample, MIN_WEIGHT]
        first = u32(0)
        second = u32(0)
        third = u32(0)
        ties = u32(0)
        start = block * BLOCK
        for i in foreach(start, minimum(start + BLOCK, columns)):
            key = key_of(top, logits[row, i])
            weight = weight_of(key, scale)
            stays = weight >= least
            weight = where(stays & (key < limit), weight, u32(0))
            first += weight & u32(0x7FF)
            second += (weight >> u32(11)) & u32(0x7FF)
            third += weight >> u32(22)
            ties += where(stays & (key == limit), u32(1), u32(0))
        sums[sample, block, 0] = workgroup_reduce(first, "add")
        sums[sample, block, 1] = workgroup_reduce(second, "add")
        sums[sample, block, 2] = workgroup_reduce(third, "add")
        sums[sample, block, 3] = workgroup_reduce(ties, "add")


@inline
def mass_of_blocks(sums, sample, end, most_ties, each):
    """Return what the first blocks keep, as a 64-bit sum, and how many are at the limit there."""
    first = u32(0)
    second = u32(0)
    third = u32(0)
    ties = u32(0)
    for i in foreach(end):
        first += sums[sample, i, 0]
        second += sums[sample, i, 1]
        third += sums[sample, i, 2]
        ties += sums[sample, i, 3]
    high, low = sum_pair(first, second, third)
    ties = workgroup_reduce(ties, "add")
    high, low = multiply_add_pair(minimum(ties, most_ties), each, high, low)
    return high, low, ties


@inline
def chosen(logits, params, stats, sums, sample, columns, blocks, BLOCK):
    """Return the id that the random number falls on."""
    row = i64(params[sample, ROW])
    top = bitcast(stats[sample, TOP], f32)
    limit = stats[sample, LIMIT]
    most_ties = stats[sample, TIES]
    scale = bitcast(params[sample, SCALE], f32)
    least = params[sample, MIN_WEIGHT]
    each = weight_of(limit, scale)
    total_high, total_low, _ = mass_of_blocks(sums, sample, blocks, most_ties, each)
    r_high, r_low = philox(
        params[sample, POSITION],
        params[sample, CHOICE],
        params[sample, SEED_LOW],
        params[sample, SEED_HIGH],
    )
    goal_high, goal_low = scaled_pair(r_high, r_low, total_high, total_low)
    first_block = i64(0)
    last_block = blocks - 1
    while first_block < last_block:
        block = (first_block + last_block) // 2
        high, low, _ = mass_of_blocks(sums, sample, block + 1, most_ties, each)
        is_behind = at_least_pair(goal_high, goal_low, high, low)
        first_block = where(is_behind, block + 1, first_block)
        last_block = where(is_behind, last_block, block)
    base_high, base_low, ties_before = mass_of_blocks(sums, sample, first_block, u32(0), each)
    start = first_block * BLOCK
    first_id = start
    last_id = minimum(start + BLOCK, columns) - 1
    while first_id < last_id:
        middle = (first_id + last_id) // 2
        first = u32(0)
        second = u32(0)
        third = u32(0)
        ties = u32(0)
        for i in foreach(start, middle + 1):
            key = key_of(top, logits[row, i])
            weight = weight_of(key, scale)
            stays = weight >= least
            weight = where(stays & (key < limit), weight, u32(0))
            first += weight & u32(0x7FF)
            second += (weight >> u32(11)) & u32(0x7FF)
            third += weight >> u32(22)
            ties += where(stays & (key == limit), u32(1), u32(0))
        high, low = sum_pair(first, second, third)
        high, low = add_pair(high, low, base_high, base_low)
        ties = workgroup_reduce(ties, "add") + ties_before
        high, low = multiply_add_pair(minimum(ties, most_ties), each, high, low)
        is_behind = at_least_pair(goal_high, goal_low, high, low)
        first_id = where(is_behind, middle + 1, first_id)
        last_id = where(is_behind, last_id, middle)
    return i32(first_id)


@kernel(level="lane", grid=["samples"], workgroup_size="THREADS")
def draw(
    logits: Array[f32, "rows", "columns"],
    params: Array[u32, "samples", "FIELDS"],
    stats: Array[u32, "samples", "STATS"],
    sums: Array[u32, "samples", "blocks", "4"],
    last: InOut[i32, "slots"],
    result: Out[i32, "samples"],
    faults: Out[i32, "samples"],
    rows: i64,
    columns: i64,
    samples: i64,
    slots: i64,
    blocks: i64,
    BLOCK: Const[int],
    THREADS: Const[object],
    FIELDS: Const[int] = FIELDS,
    STATS: Const[int] = STATS,
):
    """Store each row's token, in the results and as the last of its slot."""
    sample = workgroup_id(0)
    token = i32(stats[sample, TOKEN])
    if ((params[sample, FLAGS] & u32(1)) != u32(0)) & (stats[sample, FAULT] == u32(0)):
        token = chosen(logits, params, stats, sums, sample, columns, blocks, BLOCK)
    result[sample] = token
    faults[sample] = i32(stats[sample, FAULT])
    last[i64(params[sample, SLOT])] = token


@kernel(level="lane", grid=["samples"], workgroup_size="THREADS")
def counted_draw(
    logits: Array[f32, "rows", "columns"],
    params: Array[u32, "samples", "FIELDS"],
    stats: Array[u32, "samples", "STATS"],
    sums: Array[u32, "samples", "blocks", "4"],
    last: InOut[i32, "slots"],
    counts: InOut[u32, "slots", "columns"],
    result: Out[i32, "samples"],
    faults: Out[i32, "samples"],
    rows: i64,
    columns: i64,
    samples: i64,
    slots: i64,
    blocks: i64,
    BLOCK: Const[int],
    THREADS: Const[object],
    FIELDS: Const[int] = FIELDS,
    STATS: Const[int] = STATS,
):
    """Do what ``draw`` does, and count the token where the row asks for it."""
    sample = workgroup_id(0)
    token = i32(stats[sample, TOKEN])
    if ((params[sample, FLAGS] & u32(1)) != u32(0)) & (stats[sample, FAULT] == u32(0)):
        token = chosen(logits, params, stats, sums, sample, columns, blocks, BLOCK)
    result[sample] = token
    faults[sample] = i32(stats[sample, FAULT])
    slot = i64(params[sample, SLOT])
    last[slot] = token
    if (params[sample, FLAGS] & u32(2)) != u32(0) and local_id() == 0:
        counts[slot, i64(token)] = (counts[slot, i64(token)] | u32(1)) + u32(2)
