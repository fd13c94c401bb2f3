"""Seed-OSS: Llama with biases on queries, keys and values."""

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

__all__ = ["SeedOssConfig", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOssConfig:
    """A Seed-OSS model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees: None, all.
        rope: Rotary embedding.
        attention_bias: Whether query, key and value projections have biases.
        output_bias: Whether the attention's output projection has one.
        mlp_bias: Whether the three MLP projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> SeedOssConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="seed_oss")
        decoder = read_decoder(reader, head_dim=128, max_context=524288)
        decoder, rope = read_rope(reader, decoder)
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            rope=rope,
            attention_bias=reader.flag("attention_bias", True),
            output_bias=reader.flag("attention_out_bias", False),
            mlp_bias=reader.flag("mlp_bias", False),
        )
        reader.finish()
        return config


def weights(config: SeedOssConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    return pre_norm_weights(
        config.decoder,
        qkv_bias=config.attention_bias,
        output_bias=config.output_bias,
        mlp_bias=config.mlp_bias,
    )


def trace(step: Step, config: SeedOssConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    return pre_norm_logits(step, config.rope, config.windows)
