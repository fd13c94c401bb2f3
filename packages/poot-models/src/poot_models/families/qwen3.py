"""Qwen3 (dense): Llama whose queries and keys are normed head by head."""

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
from poot_models.components.windows import read_qwen_windows

__all__ = ["Qwen3Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Config:
    """A dense Qwen3 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
        attention_bias: Whether the four attention projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    attention_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Qwen3Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="qwen3")
        decoder = read_decoder(reader, head_dim=128, max_context=32768)
        decoder, rope = read_rope(reader, decoder)
        reader.fixed("mlp_bias", False)
        config = cls(
            decoder=decoder,
            windows=read_qwen_windows(reader, decoder.num_layers),
            rope=rope,
            attention_bias=reader.flag("attention_bias", False),
        )
        reader.finish()
        return config


def weights(config: Qwen3Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    bias = config.attention_bias
    return pre_norm_weights(
        config.decoder, qkv_bias=bias, output_bias=bias, head_norms=("q_norm", "k_norm")
    )


def trace(step: Step, config: Qwen3Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        with step.layer(index):
            h = step.rms_norm(x, f"{name}.input_layernorm")
            q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
            q = rope(step.rms_norm(q, f"{name}.self_attn.q_norm"))
            k = rope(step.rms_norm(k, f"{name}.self_attn.k_norm"))
            h = step.attend(index, q, k, v, window=window)
            x = x + step.linear(h, f"{name}.self_attn.o_proj")
            h = step.rms_norm(x, f"{name}.post_attention_layernorm")
            x = x + gated_mlp(step, h, f"{name}.mlp")
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
