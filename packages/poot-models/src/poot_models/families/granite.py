"""Granite 3 (dense): Llama with four fixed multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components.blocks import gated_mlp
from poot_models.components.pre_norm import pre_norm_weights
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable

__all__ = ["GraniteConfig", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteConfig:
    """A Granite model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
        attention_bias: Whether the four attention projections have biases.
        mlp_bias: Whether the three MLP projections have biases.
        embedding_multiplier: Factor on the embedding.
        attention_multiplier: Factor on the scores.
        residual_multiplier: Factor on what attention and MLP add to the residual stream.
        logits_scaling: Divisor of the logits.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    attention_bias: bool
    mlp_bias: bool
    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> GraniteConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="granite")
        decoder = read_decoder(reader)
        decoder, rope = read_rope(reader, decoder)
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            rope=rope,
            attention_bias=reader.flag("attention_bias", False),
            mlp_bias=reader.flag("mlp_bias", False),
            embedding_multiplier=reader.number("embedding_multiplier", 1.0),
            attention_multiplier=reader.number("attention_multiplier", 1.0),
            residual_multiplier=reader.number("residual_multiplier", 1.0),
            logits_scaling=reader.number("logits_scaling", 1.0),
        )
        reader.finish()
        return config


def weights(config: GraniteConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    bias = config.attention_bias
    return pre_norm_weights(
        config.decoder, qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias
    )


def trace(step: Step, config: GraniteConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope, residual = step.rotation(config.rope), config.residual_multiplier
    x = step.embed("model.embed_tokens") * config.embedding_multiplier  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        with step.layer(index):
            h = step.rms_norm(x, f"{name}.input_layernorm")
            q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
            h = step.attend(
                index, rope(q), rope(k), v, window=window, scale=config.attention_multiplier
            )
            x = x + step.linear(h, f"{name}.self_attn.o_proj") * residual
            h = step.rms_norm(x, f"{name}.post_attention_layernorm")
            x = x + gated_mlp(step, h, f"{name}.mlp") * residual
    return step.logits(step.rms_norm(step.wanted(x), "model.norm")) / config.logits_scaling
