"""Gemma 2: norms before and after each part, bounded scores and logits, windows in turn.

The norms scale by 1 + weight; a GGUF file stores that sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, Keys, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import gated_mlp
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable
from poot_models.components.windows import read_windows

__all__ = ["Gemma2Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config:
    """A Gemma 2 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
        attention_bias: Whether the four attention projections have biases.
        query_scalar: The scores are divided by its root.
        attention_softcap: Bound of the scores, or None.
        logit_softcap: Bound of the logits, or None.
        norm_offset: Added to each norm's weight: 1, or 0 where the file stores the sum.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    attention_bias: bool
    query_scalar: float
    attention_softcap: float | None
    logit_softcap: float | None
    norm_offset: float

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Gemma2Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="gemma2")
        decoder = read_decoder(
            reader, Keys(activation="hidden_activation"), head_dim=256,
            activation="gelu_pytorch_tanh", tied=True, max_context=8192,
        )  # fmt: skip
        reader.ignore("sliding_window_size")  # a repetition
        reader.ignore("hidden_act")  # the first checkpoints name another one, which nobody uses
        types = [
            "full_attention" if index % 2 else "sliding_attention"
            for index in range(decoder.num_layers)
        ]
        decoder, rope = read_rope(reader, decoder)
        reader.fixed("use_bidirectional_attention", False)
        config = cls(
            decoder=decoder,
            windows=read_windows(reader, types, window=reader.integer("sliding_window", 4096)),
            rope=rope,
            attention_bias=reader.flag("attention_bias", False),
            query_scalar=reader.number("query_pre_attn_scalar", 256),
            attention_softcap=_softcap(reader, "attn_logit_softcapping", 50.0),
            logit_softcap=_softcap(reader, "final_logit_softcapping", 30.0),
            norm_offset=0.0 if reader.flag("norm_offset_folded", False) else 1.0,
        )
        reader.finish()
        return config


def _softcap(reader: ConfigReader, name: str, default: float) -> float | None:
    # A null switches the bound off; only an absent key means the default.
    return reader.optional_number(name) if reader.names(name) else default


def weights(config: Gemma2Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, bias = config.decoder, config.attention_bias

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size),
            **tables.attention(f"{name}.self_attn", d, qkv_bias=bias, output_bias=bias),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.norm(f"{name}.pre_feedforward_layernorm", d.hidden_size),
            **tables.gated_mlp(f"{name}.mlp", d),
            **tables.norm(f"{name}.post_feedforward_layernorm", d.hidden_size),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: Gemma2Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope, cap = step.rotation(config.rope), config.attention_softcap
    scale, offset = 1 / math.sqrt(config.query_scalar), config.norm_offset

    def norm(x: Tracer, name: str) -> Tracer:
        return step.rms_norm(x, name, offset=offset)

    x = step.embed("model.embed_tokens") * math.sqrt(config.decoder.hidden_size)
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        with step.layer(index):
            h = norm(x, f"{name}.input_layernorm")
            q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
            h = step.attend(index, rope(q), rope(k), v, window=window, scale=scale, softcap=cap)
            h = step.linear(h, f"{name}.self_attn.o_proj")
            x = x + norm(h, f"{name}.post_attention_layernorm")
            h = norm(x, f"{name}.pre_feedforward_layernorm")
            h = gated_mlp(step, h, f"{name}.mlp")
            x = x + norm(h, f"{name}.post_feedforward_layernorm")
    return step.logits(norm(step.wanted(x), "model.norm"), softcap=config.logit_softcap)
