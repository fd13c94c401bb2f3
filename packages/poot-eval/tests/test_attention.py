"""Paged attention against dense attention, one query and one head at a time, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest

from poot_core import DType, R, T, bf16, f16, f32, i32
from poot_eval import OracleProgram, evaluate, trim_block_tables
from poot_graph_ir import Builder, TraceOptions, ops

HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 4, 2, 6, 5
BLOCK, NUM_BLOCKS, WIDTH = 4, 12, 4


def dense_attention(q, keys, values, positions, length, rule) -> np.ndarray:
    """Return (T, HEADS, VALUE_DIM) for one sequence whose keys and values lie in order."""
    result = np.zeros((len(q), HEADS, VALUE_DIM))
    for t in range(len(q)):
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            scores, indices = [], []
            for j in range(length):
                if rule.get("causal", True) and j > positions[t]:
                    continue
                if rule.get("window") is not None and abs(positions[t] - j) >= rule["window"]:
                    continue
                score = float(q[t, h] @ keys[j, kv]) * rule["scale"]
                if rule.get("softcap") is not None:
                    score = rule["softcap"] * np.tanh(score / rule["softcap"])
                if rule.get("alibi") is not None:
                    score += rule["alibi"][h] * (j - positions[t])
                scores.append(score)
                indices.append(j)
            weights = np.exp(np.array(scores) - max(scores))
            total = weights.sum()
            if rule.get("sinks") is not None:
                total += np.exp(rule["sinks"][h] - max(scores))
            result[t, h] = (weights / total) @ values[indices, kv]
    return result


@dataclass
class Cache:
    """Block tables and slots of some sequences, with blocks in scrambled order."""

    lengths: list[int]
    tables: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        blocks = iter(np.random.default_rng(3).permutation(NUM_BLOCKS))
        self.tables = np.zeros((len(self.lengths), WIDTH), np.int32)
        for row, length in enumerate(self.lengths):
            for index in range(-(-length // BLOCK)):
                self.tables[row, index] = next(blocks)

    def slots(self, row: int, positions: range) -> list[int]:
        return [int(self.tables[row, p // BLOCK]) * BLOCK + p % BLOCK for p in positions]


RULES = {
    "plain": {},
    "window": {"window": 3},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": np.array([0.5, -1.0, 3.0, 20.0], np.float32)},
    "alibi": {"alibi": ops.alibi_slopes(HEADS)},
    "all": {
        "window": 5,
        "softcap": 4.0,
        "sinks": np.array([1.0, 0.0, -2.0, 0.5], np.float32),
        "alibi": ops.alibi_slopes(HEADS),
    },
    "whole": {"causal": False},
    "both sides": {"causal": False, "window": 3},
}


def trace(rule: dict, dtype: DType, num_blocks: int = NUM_BLOCKS, width: int | None = WIDTH):
    options = TraceOptions(
        kv_dtype=dtype, block_size=BLOCK, num_blocks=num_blocks, max_blocks_per_row=width
    )
    b = Builder("attention")
    step = b.step_slots(options.max_blocks_per_row)
    key, value = b.kv_states(0, KV_HEADS, KEY_DIM, options, value_dim=VALUE_DIM)
    q = b.slot("q", (T, HEADS, KEY_DIM), f32)
    k = b.slot("k", (T, KV_HEADS, KEY_DIM), f32)
    v = b.slot("v", (T, KV_HEADS, VALUE_DIM), f32)
    new_key, new_value = (
        ops.kv_write(pool, new, step.slot_mapping) for pool, new in ((key, k), (value, v))
    )
    b.update_state(key, new_key)
    b.update_state(value, new_value)
    consts = {n: b.const(n, (HEADS,), f32) for n in ("sinks", "alibi") if n in rule}
    causal = rule.get("causal", True)
    y = ops.attend(
        q,
        new_key,
        new_value,
        step.positions,
        step.rows,
        step.block_tables,
        scale=0.4,
        window=rule.get("window"),
        softcap=rule.get("softcap"),
        sinks=consts.get("sinks"),
        alibi_slopes=consts.get("alibi"),
        causal=causal,
        sequence_lengths=None if causal else step.sequence_lengths,
    )
    b.output("y", y)
    return b.finish()


def step_inputs(cache: Cache, chunks: list[tuple[int, range]], data: dict) -> dict:
    """Return slots for one step: each chunk is a row and the positions of its tokens."""
    rows = [row for row, positions in chunks for _ in positions]
    positions = [p for _, chunk in chunks for p in chunk]
    lengths = np.zeros(len(cache.lengths), np.int32)
    for row, chunk in chunks:
        lengths[row] = chunk.stop
    inputs = {
        name: np.concatenate([data[row][name][list(chunk)] for row, chunk in chunks])
        for name in ("q", "k", "v")
    }
    slots = [s for row, chunk in chunks for s in cache.slots(row, chunk)]
    numbers = {"rows": rows, "positions": positions, "slot_mapping": slots}
    inputs |= {name: np.array(v, np.int32) for name, v in numbers.items()}
    inputs["sequence_lengths"] = lengths
    inputs["block_tables"] = cache.tables
    inputs["token_ids"] = np.zeros(len(rows), np.int32)
    inputs["logit_positions"] = np.zeros(0, np.int32)
    return inputs


def make_data(lengths: list[int], dtype: DType) -> dict:
    rng = np.random.default_rng(11)
    data = {}
    for row, length in enumerate(lengths):
        shapes = {
            "q": (length, HEADS, KEY_DIM),
            "k": (length, KV_HEADS, KEY_DIM),
            "v": (length, KV_HEADS, VALUE_DIM),
        }
        data[row] = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        for name in ("k", "v"):  # what the pool can hold, so that the reference sees the same
            data[row][name] = data[row][name].astype(dtype.numpy).astype(np.float32)
    return data


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_attend_matches_dense_attention_over_mixed_steps(name: str, dtype: DType) -> None:
    rule = {"scale": 0.4, **RULES[name]}
    lengths = [13, 1, 7]
    cache, data = Cache(lengths), make_data(lengths, dtype)
    weights = {n: rule[n] for n in ("sinks", "alibi") if n in rule}
    program = OracleProgram(trace(rule, dtype), weights.__getitem__, check=True)
    # A prompt, then another prompt's chunk beside decode tokens; causal alone may be chunked.
    steps = [[(0, range(6))], [(0, range(6, 7)), (1, range(1)), (2, range(7))], [(0, range(7, 13))]]
    if name == "whole":
        steps = [[(0, range(13)), (2, range(7))], [(1, range(1))]]
    for chunks in steps:
        got = program.step(step_inputs(cache, chunks, data))["y"]
        offset = 0
        for row, chunk in chunks:
            d = data[row]
            expected = dense_attention(
                d["q"][list(chunk)], d["k"], d["v"], list(chunk), chunk.stop, rule
            )
            part = got[offset : offset + len(chunk)]
            np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-5)
            offset += len(chunk)


def test_an_open_block_table_width_is_bound_at_each_step() -> None:
    cache, data = Cache([9]), make_data([9], f32)
    inputs = step_inputs(cache, [(0, range(9))], data)
    fixed = OracleProgram(trace({}, f32), lambda name: np.zeros(0))
    open_width = OracleProgram(trace({}, f32, width=None), lambda name: np.zeros(0))
    narrow = trim_block_tables(inputs, BLOCK)
    assert narrow["block_tables"].shape == (1, 3)
    np.testing.assert_allclose(
        open_width.step(narrow)["y"], fixed.step(inputs)["y"], rtol=1e-6, atol=1e-6
    )


def test_kv_write_skips_negative_slots_and_keeps_the_rest() -> None:
    b = Builder("t")
    pool = b.state("pool", (3, 2, 1, 2), f16)
    new = b.slot("new", (T, 1, 2), f32)
    b.update_state(pool, ops.kv_write(pool, new, b.slot("slots", (T,), i32)))
    before = np.random.default_rng(1).standard_normal((3, 2, 1, 2)).astype(np.float16)
    values = np.random.default_rng(2).standard_normal((4, 1, 2)).astype(np.float32)
    slots = np.array([5, -1, 0, 6], np.int32)
    inputs = {"new": values, "slots": slots}
    after = evaluate(b.finish(), inputs, lambda name: values, {"pool": before}).states["pool"]
    expected = before.reshape(6, 2).copy()
    expected[5], expected[0] = values[0, 0], values[2, 0]
    np.testing.assert_array_equal(after.reshape(6, 2), expected)


def test_a_token_that_sees_nothing_gives_zeros() -> None:
    b = Builder("t")
    pool = b.state("pool", (2, 2, 1, 2), f32)
    q, positions, rows = (
        b.slot("q", (T, 1, 2), f32), b.slot("positions", (T,), i32), b.slot("rows", (T,), i32),
    )  # fmt: skip
    tables = b.slot("tables", (R, 1), i32)
    b.output("y", ops.attend(q, pool, pool, positions, rows, tables, scale=1.0))
    inputs = {
        "q": np.ones((2, 1, 2), np.float32),
        "positions": np.array([1, -1], np.int32),
        "rows": np.zeros(2, np.int32),
        "tables": np.zeros((1, 1), np.int32),
    }
    states = {"pool": np.full((2, 2, 1, 2), 3.0, np.float32)}
    got = evaluate(b.finish(), inputs, lambda name: q, states).outputs["y"]
    assert got.reshape(2, 2).tolist() == [[3.0, 3.0], [0.0, 0.0]]


def test_bf16_pools_round_to_nearest_even() -> None:
    b = Builder("t")
    pool = b.state("pool", (1, 2, 1, 1), bf16)
    b.update_state(pool, ops.kv_write(pool, b.slot("n", (T, 1, 1), f32), b.slot("s", (T,), i32)))
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32).reshape(2, 1, 1)
    inputs = {"n": values, "s": np.array([0, 1], np.int32)}
    states = {"pool": np.zeros((1, 2, 1, 1), ml_dtypes.bfloat16)}
    after = evaluate(b.finish(), inputs, lambda name: values, states).states["pool"]
    assert after.astype(float).ravel().tolist() == [1.0, 1 + 2**-6]
