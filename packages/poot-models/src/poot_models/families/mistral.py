"""Mistral: Llama without biases, with one window in all layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import pre_norm_layer
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
        rope = read_rope(reader, head_dim=decoder.head_dim, max_context=decoder.max_context)
        reader.fixed("attention_bias", False)
        reader.fixed("mlp_bias", False)
        config = cls(
            decoder=replace(decoder, max_context=rope.max_context),
            windows=(reader.optional_integer("sliding_window"),) * decoder.num_layers,
            rope=rope,
        )
        reader.finish()
        return config


def weights(config: MistralConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    d = config.decoder

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size),
            **tables.attention(f"{name}.self_attn", d),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.gated_mlp(f"{name}.mlp", d),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: MistralConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        with step.layer(index):
            x = pre_norm_layer(step, x, index, rope, window=window)
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
