"""Attention over paged keys and values, as regions that a planner lowers by name."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

from poot_core import DType, ShapeError, f32
from poot_graph_ir import _functional as f
from poot_graph_ir._graph import Attribute
from poot_graph_ir._location import model_location
from poot_graph_ir._trace import Trace
from poot_graph_ir._tracer import Tracer
from poot_graph_ir.ops.activations import softcap as cap_scores

__all__ = ["alibi_slopes", "attend", "kv_write"]

_LOWEST = float(np.finfo(np.float32).min)


def kv_write(state: Tracer, values: Tracer, slot_mapping: Tracer) -> Tracer:
    """Record the region ``kv_write`` and return the pool with each token's values written.

    Args:
        state: (num_blocks, block_size, Hkv, D) pool, given up.
        values: (T, Hkv, D) f32, converted to the dtype of the pool.
        slot_mapping: (T,) i32, block * block_size + offset; a negative slot writes nothing.

    Returns:
        The pool; hand it to ``attend`` and to ``Builder.update_state``.
    """

    def body(trace: Trace, pool: Tracer, new: Tracer, slots: Tracer) -> Tracer:
        dtype = pool.dtype
        assert isinstance(dtype, DType)
        return f.scatter(pool, slots, new.astype(dtype), leading=2)

    (result,) = state.trace.region("kv_write", (state, values, slot_mapping), {}, body)
    return result


def attend(
    q: Tracer,
    keys: Tracer,
    values: Tracer,
    positions: Tracer,
    rows: Tracer,
    block_tables: Tracer,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tracer | None = None,
    alibi_slopes: Tracer | None = None,
    causal: bool = True,
    sequence_lengths: Tracer | None = None,
) -> Tracer:
    """Record the region ``attend`` and return each token's weighted sum of values.

    The key of row r at index j lies in block ``block_tables[r, j // block_size]`` at offset
    ``j % block_size`` and has position j. A token sees the keys of its own row at positions up to
    its own (or, if not causal, below the row's length) and, with a window, those nearer than
    ``window``: above position - window and, if not causal, below position + window.
    Query head h reads KV head ``h // (Hq / Hkv)``. The softmax is f32. Pools must be finite: the body
    gives hidden values the weight 0, so that a NaN among them would spread.

    The region's inputs are q, keys, values, positions, rows, block_tables, then sequence_lengths
    (if not causal), sinks and alibi_slopes where given; its attributes are ``scale``, ``window``,
    ``softcap``, ``causal``, ``has_sinks`` and ``has_alibi``.

    Args:
        q: (T, Hq, D) f32, rotated.
        keys: (num_blocks, block_size, Hkv, D) pool that this step's keys were written to.
        values: (num_blocks, block_size, Hkv, Dv) pool.
        positions: (T,) i32.
        rows: (T,) i32.
        block_tables: (R, B) i32; entries beyond a row's length are not used.
        scale: Factor on the scores.
        window: A token sees keys at a distance below this (on both sides if not causal), or None.
        softcap: Scores become softcap * tanh(score / softcap), or None.
        sinks: (Hq,) logits of a key without value, or None (arXiv:2309.17453).
        alibi_slopes: (Hq,) slopes m: m * (key position - query position) is added (arXiv:2108.12409).
        causal: Whether later keys are hidden.
        sequence_lengths: (R,) i32; needed, and only allowed, when not causal.

    Returns:
        (T, Hq, Dv) f32; zeros for a token that sees nothing.

    Raises:
        ShapeError: If heads, head sizes or ranks do not fit.
    """
    _check_heads(q, keys, values)
    if causal != (sequence_lengths is None):
        raise ShapeError(
            f"'attend' takes sequence_lengths exactly when it is not causal, at {model_location()}"
        )
    optional = {"lengths": sequence_lengths, "sinks": sinks, "alibi": alibi_slopes}
    given = {name: tracer for name, tracer in optional.items() if tracer is not None}
    rule = _Rule(scale, window, softcap)

    def body(trace: Trace, *arguments: Tracer) -> Tracer:
        extra = dict(zip(given, arguments[6:], strict=True))
        return _attend_body(trace, _Operands(*arguments[:6]), rule, extra)

    attributes: dict[str, Attribute] = {
        "scale": float(scale),
        "window": window,
        "softcap": None if softcap is None else float(softcap),
        "causal": causal,
        "has_sinks": sinks is not None,
        "has_alibi": alibi_slopes is not None,
    }
    inputs = (q, keys, values, positions, rows, block_tables, *given.values())
    (result,) = q.trace.region("attend", inputs, attributes, body)
    return result


@dataclass(frozen=True, slots=True)
class _Operands:
    q: Tracer
    keys: Tracer
    values: Tracer
    positions: Tracer
    rows: Tracer
    block_tables: Tracer


@dataclass(frozen=True, slots=True)
class _Rule:
    scale: float
    window: int | None
    softcap: float | None


def _check_heads(q: Tracer, keys: Tracer, values: Tracer) -> None:
    fits = q.rank == 3 and keys.rank == values.rank == 4 and keys.shape[:3] == values.shape[:3]
    if fits:
        num_heads, num_kv_heads = q.shape[1], keys.shape[2]
        fits = (
            isinstance(num_heads, int)
            and isinstance(num_kv_heads, int)
            and num_kv_heads > 0
            and num_heads % num_kv_heads == 0
            and q.shape[2] == keys.shape[3]
        )
    if not fits:
        raise ShapeError(
            f"'attend' takes q (T, Hq, D), keys (N, S, Hkv, D) and values (N, S, Hkv, Dv) with Hq a "
            f"multiple of Hkv, got {q.type}, {keys.type} and {values.type}, at {model_location()}",
            location=model_location(),
        )


def _attend_body(trace: Trace, x: _Operands, rule: _Rule, extra: dict[str, Tracer]) -> Tracer:
    """Return the meaning of the region.

    Every token is scored against the blocks of every row, and other rows are masked: one product
    for all tokens, and no copy of a row's keys per token. Keys stay [R, B, S] to the end, so that
    nothing depends on the extents of R and B.
    """
    tokens, num_heads, key_dim = x.q.shape
    num_kv_heads, value_dim = x.keys.shape[2], x.values.shape[3]
    assert isinstance(num_heads, int)
    assert isinstance(num_kv_heads, int)
    groups = num_heads // num_kv_heads
    heads = (num_kv_heads, groups)
    keys = f.gather(x.keys, x.block_tables).astype(f32)  # (R, B, S, Hkv, D)
    values = f.gather(x.values, x.block_tables).astype(f32)  # (R, B, S, Hkv, Dv)
    domain = keys.shape[:3]
    q = (x.q * rule.scale).reshape(tokens, *heads, key_dim)
    scores = f.dot_general(q, keys, batch=(1, 3), contract=(3, 4))  # (Hkv, T, G, R, B, S)
    if rule.softcap is not None:
        scores = cap_scores(scores, rule.softcap)

    block = trace.iota(domain, 1)
    size = domain[2]
    assert isinstance(size, int)
    key_position = (block * size + trace.iota(domain, 2))[None]  # (1, R, B, S)
    position = x.positions.reshape(tokens, 1, 1, 1)
    if "alibi" in extra:
        slopes = f.to_f32(extra["alibi"]).reshape(num_kv_heads, 1, groups, 1, 1, 1)
        distance = (key_position - position).astype(f32)  # (T, R, B, S)
        scores = scores + slopes * distance[None, :, None]
    visible = x.rows.reshape(tokens, 1, 1, 1) == trace.iota(domain, 0)[None]
    if "lengths" in extra:
        visible = visible & (key_position < extra["lengths"].reshape(1, -1, 1, 1))
    else:
        visible = visible & (key_position <= position)
    if rule.window is not None:
        visible = visible & (key_position > position - rule.window)
        if "lengths" in extra:
            visible = visible & (key_position < position + rule.window)
    scores = f.select(visible[None, :, None], scores, float("-inf"))

    largest = f.maximum(scores.max((3, 4, 5), keepdims=True), _LOWEST)  # (Hkv, T, G, 1, 1, 1)
    sinks = None
    if "sinks" in extra:
        sinks = f.to_f32(extra["sinks"]).reshape(num_kv_heads, 1, groups, 1, 1, 1)
        largest = f.maximum(largest, sinks)
    weights = f.exp(scores - largest)
    total = weights.sum((3, 4, 5), keepdims=True)
    if sinks is not None:
        total = total + f.exp(sinks - largest)
    # The largest weight is exactly 1, so this changes only tokens that see nothing: 0 / 1.
    total = f.maximum(total, 1.0).reshape(num_kv_heads, tokens, groups, 1)
    mixed = f.dot_general(weights, values, batch=(0, 3), contract=((3, 4, 5), (0, 1, 2)))
    return (mixed / total).transpose(1, 0, 2, 3).reshape(tokens, num_heads, value_dim)


def alibi_slopes(num_heads: int, max_bias: float = 8.0) -> np.ndarray[Any, Any]:
    """Return the (num_heads,) f32 slopes of ALiBi for any number of heads (arXiv:2108.12409).

    >>> alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """
    power = 2 ** int(log2(num_heads))
    base = [2.0 ** (-max_bias * (i + 1) / power) for i in range(power)]
    finer = [2.0 ** (-max_bias * (i + 1) / (2 * power)) for i in range(2 * power)]
    return np.array(base + finer[::2][: num_heads - power], np.float32)
