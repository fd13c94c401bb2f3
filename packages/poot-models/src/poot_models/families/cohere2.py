"""Cohere 2 (Command R7B): attention and MLP side by side, rotation only under windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, Keys, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import gated_mlp
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable
from poot_models.components.windows import read_windows

__all__ = ["Cohere2Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohere2Config:
    """A Cohere 2 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding of layers with a window.
        attention_bias: Whether the four attention projections have biases.
        logit_scale: Factor on the logits.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    attention_bias: bool
    logit_scale: float

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Cohere2Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="cohere2")
        decoder = read_decoder(
            reader, Keys(norm_eps="layer_norm_eps"), norm_eps=1e-5, tied=True, max_context=8192
        )
        decoder, rope = read_rope(reader, decoder, interleaved=True, share_key="rotary_pct")
        pattern = reader.integer("sliding_window_pattern", raw.get("_sliding_window_pattern") or 4)
        reader.ignore("_sliding_window_pattern")
        types = [
            "sliding_attention" if (index + 1) % pattern else "full_attention"
            for index in range(decoder.num_layers)
        ]
        # What the published configurations say of other variants.
        reader.fixed("layer_switch", pattern)
        reader.fixed("order_of_interleaved_layers", "local_attn_first")
        reader.fixed("position_embedding_type", "rope_gptj")
        reader.fixed("use_embedding_sharing", decoder.tied)
        reader.fixed("use_gated_activation", True)
        reader.fixed("use_parallel_block", True)
        reader.fixed("use_parallel_embedding", False)
        reader.fixed("use_qk_norm", False)
        config = cls(
            decoder=decoder,
            windows=read_windows(reader, types, window=reader.integer("sliding_window", 4096)),
            rope=rope,
            attention_bias=reader.flag("attention_bias", False),
            logit_scale=reader.number("logit_scale", 0.0625),
        )
        reader.finish()
        return config


def weights(config: Cohere2Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, bias = config.decoder, config.attention_bias

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size),
            **tables.attention(f"{name}.self_attn", d, qkv_bias=bias, output_bias=bias),
            **tables.gated_mlp(f"{name}.mlp", d),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: Cohere2Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        with step.layer(index):
            h = step.layer_norm(x, f"{name}.input_layernorm")
            q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
            if window is not None:
                q, k = rope(q), rope(k)
            attended = step.attend(index, q, k, v, window=window)
            x = x + step.linear(attended, f"{name}.self_attn.o_proj")
            x = x + gated_mlp(step, h, f"{name}.mlp")
    return step.logits(step.layer_norm(step.wanted(x), "model.norm")) * config.logit_scale
