"""Llama 1 to 3.x and its many namesakes: pre-norm, rotary attention with grouped keys, SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components.pre_norm import pre_norm_logits, pre_norm_weights
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable

__all__ = ["LlamaConfig", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """A Llama model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
        attention_bias: Whether the four attention projections have biases.
        mlp_bias: Whether the three MLP projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    attention_bias: bool
    mlp_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> LlamaConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="llama")
        decoder = read_decoder(reader)
        decoder, rope = read_rope(reader, decoder)
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            rope=rope,
            attention_bias=reader.flag("attention_bias", False),
            mlp_bias=reader.flag("mlp_bias", False),
        )
        reader.finish()
        return config


def weights(config: LlamaConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    bias = config.attention_bias
    return pre_norm_weights(
        config.decoder, qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias
    )


def trace(step: Step, config: LlamaConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    return pre_norm_logits(step, config.rope, config.windows)
