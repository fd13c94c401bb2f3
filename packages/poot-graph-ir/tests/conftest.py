"""A small decoder that uses most of the API, traced at the size a test asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from poot_core import bf16, f32
from poot_graph_ir import Builder, Graph, TraceOptions, ops
from poot_quant import format_by_name


def trace_decoder(num_layers: int, *, window: int | None = None, name: str = "decoder") -> Graph:
    options = TraceOptions(block_size=8, num_blocks=6, max_blocks_per_row=3)
    b = Builder(name)
    step = b.step_slots(options.max_blocks_per_row)
    table = b.const("embed", (40, 64), format_by_name("Q8_0"))
    x = ops.embedding(table, step.token_ids)
    rope = ops.rope_tables(step.positions, 1e4 ** (-np.arange(8) / 8))
    for i in range(num_layers):
        with b.layer(i):
            key, value = b.kv_states(i, 2, 16, options)
            with b.scope("attention"):
                h = ops.rms_norm(x, b.const(f"blk.{i}.norm", (64,), f32), 1e-5)
                q, k, v = (
                    ops.split_heads(ops.linear(h, b.const(f"blk.{i}.{n}", (m, 64), bf16)), m // 16)
                    for n, m in (("q", 64), ("k", 32), ("v", 32))
                )
                new_key = ops.kv_write(key, ops.apply_rope(k, rope), step.slot_mapping)
                new_value = ops.kv_write(value, v, step.slot_mapping)
                b.update_state(key, new_key)
                b.update_state(value, new_value)
                y = ops.attend(
                    ops.apply_rope(q, rope),
                    new_key,
                    new_value,
                    step.positions,
                    step.rows,
                    step.block_tables,
                    scale=0.25,
                    window=window if i == 0 else None,
                )
                x = x + ops.merge_heads(y)
    b.output("logits", ops.linear(ops.gather(x, step.logit_positions), table))
    return b.finish()


@pytest.fixture
def decoder() -> Callable[..., Graph]:
    return trace_decoder
