"""ERNIE 4.5 (dense): Llama that rotates neighbouring pairs."""

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
        decoder, rope = read_rope(reader, decoder, theta=5e5, interleaved=True)
        reader.fixed("compression_ratio", 1.0)
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            rope=rope,
            use_bias=reader.flag("use_bias", False),
        )
        reader.finish()
        return config


def weights(config: Ernie45Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    bias = config.use_bias
    return pre_norm_weights(config.decoder, qkv_bias=bias, output_bias=bias, mlp_bias=bias)


def trace(step: Step, config: Ernie45Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    return pre_norm_logits(step, config.rope, config.windows)
