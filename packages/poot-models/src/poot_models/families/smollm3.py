"""SmolLM3: Llama in which some layers have no rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components.blocks import pre_norm_layer
from poot_models.components.pre_norm import pre_norm_weights
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable
from poot_models.components.windows import read_windows

__all__ = ["SmolLM3Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolLM3Config:
    """A SmolLM3 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
        rotated: For each layer whether queries and keys are rotated.
        attention_bias: Whether the four attention projections have biases.
        mlp_bias: Whether the three MLP projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    rotated: tuple[bool, ...]
    attention_bias: bool
    mlp_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> SmolLM3Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="smollm3")
        decoder = read_decoder(reader, tied=True, max_context=32768)
        decoder, rope = read_rope(reader, decoder, theta=2e6)
        interval = reader.integer("no_rope_layer_interval", 4)
        rotated = tuple((index + 1) % interval != 0 for index in range(decoder.num_layers))
        if "no_rope_layers" in reader:  # which, despite its name, marks those that rotate
            rotated = reader.flags("no_rope_layers", decoder.num_layers)
        window = reader.optional_integer("sliding_window")
        if not reader.flag("use_sliding_window", False):
            window = None
        slides = [window is not None and not rotates for rotates in rotated]
        types = ["sliding_attention" if slide else "full_attention" for slide in slides]
        config = cls(
            decoder=decoder,
            windows=read_windows(reader, types, window=window),
            rope=rope,
            rotated=rotated,
            attention_bias=reader.flag("attention_bias", False),
            mlp_bias=reader.flag("mlp_bias", False),
        )
        reader.ignore("max_window_layers")
        reader.finish()
        return config


def weights(config: SmolLM3Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    bias = config.attention_bias
    return pre_norm_weights(
        config.decoder, qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias
    )


def trace(step: Step, config: SmolLM3Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, (window, rotates) in enumerate(zip(config.windows, config.rotated, strict=True)):
        with step.layer(index):
            x = pre_norm_layer(step, x, index, rope if rotates else None, window=window)
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
