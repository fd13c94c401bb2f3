"""Phi-3 and Phi-4 mini: Llama with fused projections, partial rotation and LongRoPE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer, ops
from poot_models._decoder import Decoder, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import fused_gated_mlp
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable

__all__ = ["Phi3Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3Config:
    """A Phi-3 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Phi3Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="phi3")
        decoder = read_decoder(reader, norm_eps=1e-5, max_context=4096)
        decoder, rope = read_rope(reader, decoder)
        reader.fixed("attention_bias", False)
        reader.fixed("mlp_bias", False)
        reader.fixed("lm_head_bias", False)
        reader.ignore("full_attn_mod", "interpolate_factor")  # Phi-4 mini writes them, unused
        config = cls(
            decoder=decoder,
            windows=(reader.optional_integer("sliding_window"),) * decoder.num_layers,
            rope=rope,
        )
        reader.finish()
        return config


def weights(config: Phi3Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d = config.decoder
    q, kv = d.num_heads * d.head_dim, d.num_kv_heads * d.head_dim

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size),
            **tables.linear(f"{name}.self_attn.qkv_proj", q + 2 * kv, d.hidden_size),
            **tables.linear(f"{name}.self_attn.o_proj", d.hidden_size, q),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.fused_gated_mlp(f"{name}.mlp", d),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: Phi3Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    d, rope = config.decoder, step.rotation(config.rope)
    kv = d.num_kv_heads * d.head_dim
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        with step.layer(index):
            h = step.rms_norm(x, f"{name}.input_layernorm")
            qkv = step.linear(h, f"{name}.self_attn.qkv_proj")
            q, k, v = step.heads(*ops.split(qkv, (d.num_heads * d.head_dim, kv, kv)))
            h = step.attend(index, rope(q), rope(k), v, window=window)
            x = x + step.linear(h, f"{name}.self_attn.o_proj")
            h = step.rms_norm(x, f"{name}.post_attention_layernorm")
            x = x + fused_gated_mlp(step, h, f"{name}.mlp")
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
