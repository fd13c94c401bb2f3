"""One step of an encoder while it is traced: attention over whole texts, and pooling.

An encoder keeps nothing between steps. Keys and values of a step go into paged pools all the same, so
that attention is the one that decoders have; all layers write the same pair of pools, one after another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from poot_core import T, f32, i32
from poot_graph_ir import Builder, TraceOptions, Tracer, ops
from poot_load import PoolingKind
from poot_models._decoder import Decoder
from poot_models.components.step import Step, StoredWeight

__all__ = ["EncoderStep"]

_POOLING_LAYER = 1
_NORMAL_EPS = 1e-24  # the square of what transformers bounds the length by


class EncoderStep(Step):
    """What an encoder's tracer function computes with; see ``Step``."""

    def __init__(
        self,
        builder: Builder,
        decoder: Decoder,
        weights: Mapping[str, StoredWeight],
        options: TraceOptions,
        context_tokens: int,
    ) -> None:
        super().__init__(builder, decoder, weights, options, context_tokens)
        self._pools = builder.kv_states(0, decoder.num_kv_heads, decoder.head_dim, options)
        self._written = self._pools

    @property
    def token_types(self) -> Tracer:
        """Segment of each token, (T,) i32."""
        return self.builder.slot("token_types", (T,), i32)

    def attend_all(self, q: Tracer, k: Tracer, v: Tracer, *, window: int | None = None) -> Tracer:
        """Return what each token gathers of its text's tokens, (T, num_heads * head_dim).

        Args:
            q: (T, num_heads, head_dim), rotated.
            k: (T, num_kv_heads, head_dim), rotated.
            v: (T, num_kv_heads, head_dim).
            window: Tokens at a distance below this are seen, on both sides, or None for all.
        """
        keys, values = (
            ops.kv_write(pool, new, self.slots.slot_mapping)
            for pool, new in zip(self._written, (k, v), strict=True)
        )
        self._written = keys, values
        scale = 1 / math.sqrt(self.decoder.head_dim)
        return ops.merge_heads(self._gather(q, keys, values, scale=scale, window=window))

    def finish_layers(self) -> None:
        """Hand the pools back once all layers have written them."""
        for state, pool in zip(self._pools, self._written, strict=True):
            self.builder.update_state(state, pool)

    def pool(self, x: Tracer, kind: PoolingKind, *, normalize: bool) -> Tracer:
        """Return one vector for each wanted text, (L, hidden_size).

        The position that is wanted of a text is that of its first token (``cls``), of its last, or
        of any (``mean``).

        Args:
            x: (T, hidden_size) states of the tokens.
            kind: How.
            normalize: Whether vectors are scaled to unit length.
        """
        y = self.wanted(self._mean(x) if kind == "mean" else x)
        return ops.l2_norm(y, _NORMAL_EPS) if normalize else y

    def _mean(self, x: Tracer) -> Tracer:
        """Return the mean of each token's text, (T, hidden_size).

        A mean is attention whose scores are all 0, over states that are kept in f32.
        """
        d = self.decoder
        options = replace(self.options, kv_dtype=f32)
        states = self.builder.kv_states(_POOLING_LAYER, d.num_heads, d.head_dim, options)
        heads = ops.split_heads(x, d.num_heads)
        keys, values = (ops.kv_write(pool, heads, self.slots.slot_mapping) for pool in states)
        for state, pool in zip(states, (keys, values), strict=True):
            self.builder.update_state(state, pool)
        return ops.merge_heads(self._gather(heads, keys, values, scale=0.0, window=None))

    def _gather(
        self, q: Tracer, keys: Tracer, values: Tracer, *, scale: float, window: int | None
    ) -> Tracer:
        slots = self.slots
        return ops.attend(
            q,
            keys,
            values,
            slots.positions,
            slots.rows,
            slots.block_tables,
            scale=scale,
            window=window,
            causal=False,
            sequence_lengths=slots.sequence_lengths,
        )
