"""Gemma 3 (text): norms before and after each part, normed queries and keys, two rotations.

The norms scale by 1 + weight; a GGUF file stores that sum. The multimodal checkpoints nest the
text model in ``text_config``; poot reads that part and leaves the vision tower alone.
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
from poot_models.components.rope_config import Rope, read_rope_by_layer_type
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable
from poot_models.components.windows import read_windows

__all__ = ["Gemma3Config", "trace", "weights"]

# The published multimodal configurations leave these to transformers.
_NESTED_DEFAULTS = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4}
# What the text model takes from the configuration around it unless it says so itself.
_OUTER = ("bos_token_id", "eos_token_id", "tie_word_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config:
    """A Gemma 3 text model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        full_rope: Rotary embedding of layers that see everything.
        sliding_rope: Rotary embedding of layers with a window.
        query_scalar: The scores are divided by its root.
        attention_softcap: Bound of the scores, or None.
        logit_softcap: Bound of the logits, or None.
        norm_offset: Added to each norm's weight: 1, or 0 where the file stores the sum.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    full_rope: Rope
    sliding_rope: Rope
    query_scalar: float
    attention_softcap: float | None
    logit_softcap: float | None
    norm_offset: float

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Gemma3Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="gemma3")
        if "text_config" in reader:
            reader.section("text_config")
            raw = _NESTED_DEFAULTS | {key: raw.get(key) for key in _OUTER} | raw["text_config"]
            reader = ConfigReader(raw, family="gemma3")
        decoder = read_decoder(
            reader, Keys(activation="hidden_activation"), head_dim=256,
            activation="gelu_pytorch_tanh", tied=True, max_context=131072,
        )  # fmt: skip
        pattern = reader.integer("sliding_window_pattern", raw.get("_sliding_window_pattern") or 6)
        reader.ignore("_sliding_window_pattern")
        types = [
            "full_attention" if (index + 1) % pattern == 0 else "sliding_attention"
            for index in range(decoder.num_layers)
        ]
        ropes = read_rope_by_layer_type(
            reader,
            head_dim=decoder.head_dim,
            max_context=decoder.max_context,
            theta={"full_attention": 1e6, "sliding_attention": 1e4},
        )
        reader.fixed("attention_bias", False)
        reader.fixed("use_bidirectional_attention", False)
        config = cls(
            decoder=decoder,
            windows=read_windows(reader, types, window=reader.integer("sliding_window", 4096)),
            full_rope=ropes["full_attention"],
            sliding_rope=ropes["sliding_attention"],
            query_scalar=reader.number("query_pre_attn_scalar", 256),
            attention_softcap=reader.optional_number("attn_logit_softcapping"),
            logit_softcap=reader.optional_number("final_logit_softcapping"),
            norm_offset=0.0 if reader.flag("norm_offset_folded", False) else 1.0,
        )
        reader.finish()
        return config


def weights(config: Gemma3Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d = config.decoder

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size),
            **tables.attention(f"{name}.self_attn", d),
            **tables.norm(f"{name}.self_attn.q_norm", d.head_dim),
            **tables.norm(f"{name}.self_attn.k_norm", d.head_dim),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.norm(f"{name}.pre_feedforward_layernorm", d.hidden_size),
            **tables.gated_mlp(f"{name}.mlp", d),
            **tables.norm(f"{name}.post_feedforward_layernorm", d.hidden_size),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: Gemma3Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    full, sliding = step.rotation(config.full_rope), step.rotation(config.sliding_rope)
    scale, offset = 1 / math.sqrt(config.query_scalar), config.norm_offset

    def norm(x: Tracer, name: str) -> Tracer:
        return step.rms_norm(x, name, offset=offset)

    x = step.embed("model.embed_tokens") * math.sqrt(config.decoder.hidden_size)
    for index, window in enumerate(config.windows):
        name, rope = f"model.layers.{index}", full if window is None else sliding
        with step.layer(index):
            h = norm(x, f"{name}.input_layernorm")
            q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
            q = rope(norm(q, f"{name}.self_attn.q_norm"))
            k = rope(norm(k, f"{name}.self_attn.k_norm"))
            h = step.attend(
                index, q, k, v, window=window, scale=scale, softcap=config.attention_softcap
            )
            h = step.linear(h, f"{name}.self_attn.o_proj")
            x = x + norm(h, f"{name}.post_attention_layernorm")
            h = norm(x, f"{name}.pre_feedforward_layernorm")
            h = gated_mlp(step, h, f"{name}.mlp")
            x = x + norm(h, f"{name}.post_feedforward_layernorm")
    return step.logits(norm(step.wanted(x), "model.norm"), softcap=config.logit_softcap)
