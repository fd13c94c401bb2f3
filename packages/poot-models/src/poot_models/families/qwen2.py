"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and optional windows."""

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
from poot_models.components.windows import read_qwen_windows

__all__ = ["Qwen2Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Config:
    """A Qwen2 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Qwen2Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="qwen2")
        decoder = read_decoder(reader, max_context=32768)
        decoder, rope = read_rope(reader, decoder)
        config = cls(
            decoder=decoder,
            windows=read_qwen_windows(reader, decoder.num_layers),
            rope=rope,
        )
        reader.fixed("attention_bias", True)
        reader.fixed("mlp_bias", False)
        reader.fixed("use_mrope", False)
        reader.finish()
        return config


def weights(config: Qwen2Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    return pre_norm_weights(config.decoder, qkv_bias=True)


def trace(step: Step, config: Qwen2Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    return pre_norm_logits(step, config.rope, config.windows)
