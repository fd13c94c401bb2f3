"""GLM-4 (0414): norms before and after each part, half of each head rotated by neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import fused_gated_mlp
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable

__all__ = ["Glm4Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4Config:
    """A GLM-4 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees: None, all.
        rope: Rotary embedding.
        attention_bias: Whether query, key and value projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    attention_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Glm4Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="glm4")
        decoder = read_decoder(reader, head_dim=128, norm_eps=1.5625e-7, max_context=131072)
        decoder, rope = read_rope(reader, decoder, rotary_share=0.5, interleaved=True)
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            rope=rope,
            attention_bias=reader.flag("attention_bias", False),
        )
        reader.finish()
        return config


def weights(config: Glm4Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d = config.decoder

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size),
            **tables.attention(f"{name}.self_attn", d, qkv_bias=config.attention_bias),
            **tables.norm(f"{name}.post_self_attn_layernorm", d.hidden_size),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.fused_gated_mlp(f"{name}.mlp", d),
            **tables.norm(f"{name}.post_mlp_layernorm", d.hidden_size),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: Glm4Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        with step.layer(index):
            h = step.rms_norm(x, f"{name}.input_layernorm")
            q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
            h = step.attend(index, rope(q), rope(k), v, window=window)
            h = step.linear(h, f"{name}.self_attn.o_proj")
            x = x + step.rms_norm(h, f"{name}.post_self_attn_layernorm")
            h = step.rms_norm(x, f"{name}.post_attention_layernorm")
            h = fused_gated_mlp(step, h, f"{name}.mlp")
            x = x + step.rms_norm(h, f"{name}.post_mlp_layernorm")
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
