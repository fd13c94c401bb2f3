"""Mistral: Llama without biases, with one window in all layers."""

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

__all__ = ["MistralConfig", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralConfig:
    """A Mistral model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> MistralConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="mistral")
        decoder = read_decoder(reader, max_context=131072)
        decoder, rope = read_rope(reader, decoder)
        reader.fixed("attention_bias", False)
        reader.fixed("mlp_bias", False)
        config = cls(
            decoder=decoder,
            windows=(reader.optional_integer("sliding_window"),) * decoder.num_layers,
            rope=rope,
        )
        reader.finish()
        return config


def weights(config: MistralConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    return pre_norm_weights(config.decoder)


def trace(step: Step, config: MistralConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    return pre_norm_logits(step, config.rope, config.windows)
