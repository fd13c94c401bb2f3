"""ERNIE 4.5 (dense): Llama that rotates neighbouring pairs."""

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

__all__ = ["Ernie45Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ernie45Config:
    """A dense ERNIE 4.5 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees: None, all.
        rope: Rotary embedding.
        use_bias: Whether all projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    use_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Ernie45Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="ernie4_5")
        decoder = read_decoder(reader, head_dim=128, norm_eps=1e-5, tied=True, max_context=131072)
        rope = read_rope(
            reader, head_dim=decoder.head_dim, max_context=decoder.max_context,
            theta=5e5, interleaved=True,
        )  # fmt: skip
        reader.fixed("compression_ratio", 1.0)
        config = cls(
            decoder=replace(decoder, max_context=rope.max_context),
            windows=(None,) * decoder.num_layers,
            rope=rope,
            use_bias=reader.flag("use_bias", False),
        )
        reader.finish()
        return config


def weights(config: Ernie45Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, bias = config.decoder, config.use_bias

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size),
            **tables.attention(f"{name}.self_attn", d, qkv_bias=bias, output_bias=bias),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.gated_mlp(f"{name}.mlp", d, bias=bias),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: Ernie45Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        with step.layer(index):
            x = pre_norm_layer(step, x, index, rope, window=window)
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
