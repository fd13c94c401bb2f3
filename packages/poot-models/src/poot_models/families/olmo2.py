"""OLMo 2 and OLMo 3: norms after each part instead of before, whole projections normed.

OLMo 3 adds windows in three of four layers, and a rotation of its own for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import gated_mlp
from poot_models.components.rope_config import Rope, read_rope, read_rope_by_layer_type
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable
from poot_models.components.windows import read_windows

__all__ = ["OlmoConfig", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoConfig:
    """An OLMo 2 or OLMo 3 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        full_rope: Rotary embedding of layers that see everything.
        sliding_rope: Rotary embedding of layers with a window.
        attention_bias: Whether the four attention projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    full_rope: Rope
    sliding_rope: Rope
    attention_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> OlmoConfig:
        """Read an OLMo 2 configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="olmo2")
        decoder = read_decoder(reader, norm_eps=1e-5)
        decoder, rope = read_rope(reader, decoder)
        return cls._finish(reader, decoder, (None,) * decoder.num_layers, rope, rope)

    @classmethod
    def from_olmo3_config(cls, raw: Mapping[str, Any]) -> OlmoConfig:
        """Read an OLMo 3 configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="olmo3")
        decoder = read_decoder(reader, norm_eps=1e-5)
        types = [
            "full_attention" if index % 4 == 3 else "sliding_attention"
            for index in range(decoder.num_layers)
        ]
        windows = read_windows(reader, types, window=reader.integer("sliding_window", 4096))
        ropes = read_rope_by_layer_type(
            reader,
            head_dim=decoder.head_dim,
            max_context=decoder.max_context,
            theta={"full_attention": 5e5, "sliding_attention": 5e5},
        )
        return cls._finish(
            reader, decoder, windows, ropes["full_attention"], ropes["sliding_attention"]
        )

    @classmethod
    def _finish(
        cls,
        reader: ConfigReader,
        decoder: Decoder,
        windows: tuple[int | None, ...],
        full: Rope,
        sliding: Rope,
    ) -> OlmoConfig:
        reader.fixed("mlp_bias", False)
        config = cls(
            decoder=replace(decoder, max_context=full.max_context),
            windows=windows,
            full_rope=full,
            sliding_rope=sliding,
            attention_bias=reader.flag("attention_bias", False),
        )
        reader.finish()
        return config


def weights(config: OlmoConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, bias = config.decoder, config.attention_bias

    def layer(name: str) -> WeightTable:
        return {
            **tables.attention(f"{name}.self_attn", d, qkv_bias=bias, output_bias=bias),
            **tables.norm(f"{name}.self_attn.q_norm", d.num_heads * d.head_dim),
            **tables.norm(f"{name}.self_attn.k_norm", d.num_kv_heads * d.head_dim),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.gated_mlp(f"{name}.mlp", d),
            **tables.norm(f"{name}.post_feedforward_layernorm", d.hidden_size),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: OlmoConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    full = step.rotation(config.full_rope)
    sliding = full
    if config.sliding_rope != config.full_rope:
        sliding = step.rotation(config.sliding_rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name, rope = f"model.layers.{index}", full if window is None else sliding
        with step.layer(index):
            attention = f"{name}.self_attn"
            q = step.rms_norm(step.linear(x, f"{attention}.q_proj"), f"{attention}.q_norm")
            k = step.rms_norm(step.linear(x, f"{attention}.k_proj"), f"{attention}.k_norm")
            q, k, v = step.heads(q, k, step.linear(x, f"{attention}.v_proj"))
            h = step.attend(index, rope(q), rope(k), v, window=window)
            h = step.linear(h, f"{attention}.o_proj")
            x = x + step.rms_norm(h, f"{name}.post_attention_layernorm")
            h = gated_mlp(step, x, f"{name}.mlp")
            x = x + step.rms_norm(h, f"{name}.post_feedforward_layernorm")
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
