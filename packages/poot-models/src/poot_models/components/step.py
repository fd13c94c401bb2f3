"""One step of a model while it is traced: its slots, its weights by name, its KV states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from poot_graph_ir import Builder, ElementType, TraceOptions, Tracer, ops
from poot_models._decoder import Decoder
from poot_models.components.rope_config import Rope
from poot_models.components.rotary import Rotation

__all__ = ["Step", "StoredWeight"]


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A tensor as it lies in the checkpoint.

    Attributes:
        name: Its name there, which may lack the prefix that the family's table has.
        shape: Logical shape.
        dtype: Dense dtype or packed format.
    """

    name: str
    shape: tuple[int, ...]
    dtype: ElementType


class Step:
    """What a family's tracer function computes with.

    Args:
        builder: Where equations go.
        decoder: The model's sizes.
        weights: Each tensor of the family's table, by the name in the table.
        options: Sizes of the KV pools.
        context_tokens: Longest sequence of the engine.
    """

    def __init__(
        self,
        builder: Builder,
        decoder: Decoder,
        weights: Mapping[str, StoredWeight],
        options: TraceOptions,
        context_tokens: int,
    ) -> None:
        self.builder = builder
        self.decoder = decoder
        self.options = options
        self.slots = builder.step_slots(options.max_blocks_per_row)
        self._weights = weights
        self._context_tokens = context_tokens
        self._embedding = ""

    # --- weights ---

    def weight(self, name: str) -> Tracer:
        """Return a tensor by its full name in the family's table."""
        stored = self._weights[name]
        return self.builder.const(stored.name, stored.shape, stored.dtype)

    def optional(self, name: str) -> Tracer | None:
        """Return a tensor, or None where the family's table lacks it."""
        return self.weight(name) if name in self._weights else None

    def linear(self, x: Tracer, name: str, *, transposed: bool = False) -> Tracer:
        """Return x times ``name.weight``, plus ``name.bias`` if there is one.

        The weight is stored as (outputs, inputs), or as (inputs, outputs) if transposed.
        """
        weight, bias = self.weight(f"{name}.weight"), self.optional(f"{name}.bias")
        if not transposed:
            return ops.linear(x, weight, bias)
        y = ops.dot_general(x, ops.to_f32(weight), contract=(-1, 0))
        return y if bias is None else y + ops.to_f32(bias)

    def rms_norm(
        self, x: Tracer, name: str, *, eps: float | None = None, offset: float = 0.0
    ) -> Tracer:
        """Return x over its root mean square, times ``name.weight`` plus ``offset``."""
        eps = self.decoder.norm_eps if eps is None else eps
        return ops.rms_norm(x, self.weight(f"{name}.weight"), eps, offset)

    def layer_norm(self, x: Tracer, name: str) -> Tracer:
        """Return x less its mean over its deviation, with weight and, if there, bias."""
        weight, bias = self.weight(f"{name}.weight"), self.optional(f"{name}.bias")
        return ops.layer_norm(x, weight, bias, self.decoder.norm_eps)

    # --- ends of the model ---

    def embed(self, name: str) -> Tracer:
        """Return the embedding of this step's tokens, (T, hidden_size)."""
        self._embedding = name
        return ops.embedding(self.weight(f"{name}.weight"), self.slots.token_ids)

    def wanted(self, x: Tracer) -> Tracer:
        """Return the rows of x whose logits are wanted, (L, hidden_size)."""
        return ops.gather(x, self.slots.logit_positions)

    def logits(self, x: Tracer, *, head: str = "lm_head", softcap: float | None = None) -> Tracer:
        """Return x times the output projection, (L, vocab_size); the embedding where it is tied."""
        y = self.linear(x, self._embedding if self.decoder.tied else head)
        return y if softcap is None else ops.softcap(y, softcap)

    # --- layers ---

    def layer(self, index: int) -> AbstractContextManager[None]:
        """Mark what is traced inside as layer ``index``."""
        return self.builder.layer(index)

    def rotation(self, rope: Rope) -> Rotation:
        """Return the rotation at this step's positions; call it outside of the layers."""
        made = rope.frequencies(self._context_tokens)
        inverse = np.array(made.inverse, np.float32)
        tables = ops.rope_tables(self.slots.positions, inverse, made.scale)
        return Rotation(tables, rope.interleaved)

    def project(
        self, x: Tracer, name: str, parts: Sequence[str] = ("q_proj", "k_proj", "v_proj")
    ) -> tuple[Tracer, Tracer, Tracer]:
        """Return queries (T, num_heads, head_dim), keys and values (T, num_kv_heads, head_dim)."""
        q, k, v = (self.linear(x, f"{name}.{part}") for part in parts)
        return self.heads(q, k, v)

    def heads(self, q: Tracer, k: Tracer, v: Tracer) -> tuple[Tracer, Tracer, Tracer]:
        """Return flat queries, keys and values split into heads."""
        d = self.decoder
        return (
            ops.split_heads(q, d.num_heads),
            ops.split_heads(k, d.num_kv_heads),
            ops.split_heads(v, d.num_kv_heads),
        )

    def fused_heads(self, qkv: Tracer, *, by_part: bool) -> tuple[Tracer, Tracer, Tracer]:
        """Return queries, keys and values, (T, num_heads, head_dim) each, of a fused projection.

        Args:
            qkv: (T, 3 * hidden_size).
            by_part: Whether the elements are all queries, all keys and all values; otherwise the
                query, key and value of the first head come first, then those of the second.
        """
        d = self.decoder
        if by_part:
            return self.heads(*ops.split(qkv, (d.num_heads * d.head_dim,) * 3))
        by_head = ops.split_heads(qkv, d.num_heads)  # (T, num_heads, 3 * head_dim)
        q, k, v = ops.split(by_head, (d.head_dim,) * 3)
        return q, k, v

    def attend(
        self,
        index: int,
        q: Tracer,
        k: Tracer,
        v: Tracer,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        alibi_slopes: Tracer | None = None,
    ) -> Tracer:
        """Write this step's keys and values, and return what each token gathers.

        Args:
            index: Number of the layer whose pools are used.
            q: (T, num_heads, head_dim), rotated.
            k: (T, num_kv_heads, head_dim), rotated.
            v: (T, num_kv_heads, head_dim).
            scale: Factor on the scores; by default 1 / sqrt(head_dim).
            window: Tokens that a token sees, itself included, or None for all.
            softcap: Bound of the scores, or None.
            alibi_slopes: (num_heads,) slopes of the distance, or None.

        Returns:
            (T, num_heads * head_dim).
        """
        d, slots = self.decoder, self.slots
        states = self.builder.kv_states(index, d.num_kv_heads, d.head_dim, self.options)
        keys, values = (
            ops.kv_write(state, new, slots.slot_mapping)
            for state, new in zip(states, (k, v), strict=True)
        )
        for state, pool in zip(states, (keys, values), strict=True):
            self.builder.update_state(state, pool)
        gathered = ops.attend(
            q,
            keys,
            values,
            slots.positions,
            slots.rows,
            slots.block_tables,
            scale=1 / math.sqrt(d.head_dim) if scale is None else scale,
            window=window,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
        )
        return ops.merge_heads(gathered)
