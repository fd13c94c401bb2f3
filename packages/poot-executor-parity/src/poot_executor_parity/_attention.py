"""Cases of attention over paged keys and values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poot_core import T, f32
from poot_executor_parity._case import Case, Context
from poot_graph_ir import Tracer, ops

__all__ = ["ATTENTION_CASES"]

# Chunks that end inside and on blocks and splits, decode steps between them, several rows.
_STEPS = ((1,), (7, 3, 1), (1, 1, 1), (30, 1, 260), (1, 2, 1), (1, 1, 260), (1, 1, 1))


def _attention(
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    alibi: bool = False,
    rope: bool = False,
    interleaved: bool = False,
) -> Callable[[Context], Tracer]:
    def build(c: Context) -> Tracer:
        def project(name: str, count: int) -> Tracer:
            weight = c.declare(name, (count * dim, 64), f32)
            return ops.linear(c.x, weight).reshape(T, count, dim)

        q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
        if rope:
            inverse = 100.0 ** -(np.arange(0, dim, 2) / dim)
            tables = ops.rope_tables(c.slots.positions, inverse)
            q, k = (ops.apply_rope(each, tables, interleaved=interleaved) for each in (q, k))
        states = c.builder.kv_states(0, kv_heads, dim, c.options)
        pools: list[Tracer] = []
        for state, new in zip(states, (k, v), strict=True):
            pool = ops.kv_write(state, new, c.slots.slot_mapping)
            c.builder.update_state(state, pool)
            pools.append(pool)
        mixed = ops.attend(
            q, pools[0], pools[1], c.slots.positions, c.slots.rows, c.slots.block_tables,
            scale=dim**-0.5, window=window, softcap=softcap,
            sinks=c.declare("sinks", (heads,), f32) if sinks else None,
            alibi_slopes=c.builder.literal(ops.alibi_slopes(heads)) if alibi else None,
        )  # fmt: skip
        return ops.merge_heads(mixed)

    return build


_BUILDS: dict[str, Callable[[Context], Tracer]] = {
    "plain": _attention(),
    "every head its own": _attention(kv_heads=4),
    "one kv head": _attention(heads=4, kv_heads=1, dim=32),
    "groups of 3": _attention(heads=9, kv_heads=3, dim=64),
    "dim 80": _attention(dim=80),
    "dim 128": _attention(heads=2, kv_heads=1, dim=128),
    "dim 256": _attention(heads=4, kv_heads=1, dim=256),
    "window": _attention(window=40),
    "window of one": _attention(window=1),
    "softcap": _attention(softcap=2.0),
    "sinks": _attention(sinks=True, window=100),
    "alibi": _attention(alibi=True),
    "rotary": _attention(rope=True),
    "rotary interleaved": _attention(rope=True, interleaved=True),
}

# A score is a sum of up to 256 f32 products of size 1 and enters an exponential: its rounding, about
# sqrt(256) * 2**-24, is the relative error of a weight, and keys, values and outputs are such sums too.
_SUMMED = 2e-5

ATTENTION_CASES: tuple[Case, ...] = (
    *(
        Case(name=f"attention/{name}", build=build, steps=_STEPS, tolerance=_SUMMED)
        for name, build in _BUILDS.items()
    ),
    # Keys and values are stored in 16 bits on both sides. Where matrix instructions (or pairs) multiply
    # them, scaled queries and softmax weights are rounded to the same type, as every flash attention
    # does: a score moves by up to 2**-11 of its terms, and its weight relatively by as much. Done in
    # NumPy with exact sums, that rounding alone gives 1.6e-3 to 4.1e-3 in these cases (queries alone up
    # to 3.9e-3, in "rotary"); half as much again is allowed for the order of sums. Devices that round
    # neither stay below 5e-4.
    *(
        Case(
            name=f"attention f16/{name}",
            build=_BUILDS[name],
            steps=_STEPS,
            precision="auto",
            tolerance=6e-3,
        )
        for name in ("plain", "rotary", "groups of 3", "window")
    ),
)
