"""EXAONE 4: norms after each part, normed queries and keys, rotation only under windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import gated_mlp
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable
from poot_models.components.windows import read_windows

__all__ = ["Exaone4Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exaone4Config:
    """An EXAONE 4 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
        rotated: For each layer whether queries and keys are rotated: in a model with windows only
            those that have one.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    rotated: tuple[bool, ...]

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Exaone4Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="exaone4")
        decoder = read_decoder(reader, norm_eps=1e-5)
        decoder, rope = read_rope(reader, decoder)
        window = reader.optional_integer("sliding_window")
        pattern = reader.take("sliding_window_pattern", 4)
        if pattern == "LLLG":  # three local layers, one global
            pattern = 4
        if not isinstance(pattern, int) or pattern < 1:
            raise reader.error("sliding_window_pattern", pattern, "'LLLG' or a positive integer")
        types = [
            "sliding_attention" if window and (index + 1) % pattern else "full_attention"
            for index in range(decoder.num_layers)
        ]
        windows = read_windows(reader, types, window=window)
        config = cls(
            decoder=decoder,
            windows=windows,
            rope=rope,
            rotated=tuple(window is None or w is not None for w in windows),
        )
        reader.finish()
        return config


def weights(config: Exaone4Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d = config.decoder

    def layer(name: str) -> WeightTable:
        return {
            **tables.attention(f"{name}.self_attn", d),
            **tables.norm(f"{name}.self_attn.q_norm", d.head_dim),
            **tables.norm(f"{name}.self_attn.k_norm", d.head_dim),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.gated_mlp(f"{name}.mlp", d),
            **tables.norm(f"{name}.post_feedforward_layernorm", d.hidden_size),
        }

    return tables.decoder(d, layer)


def trace(step: Step, config: Exaone4Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, (window, rotates) in enumerate(zip(config.windows, config.rotated, strict=True)):
        name = f"model.layers.{index}"
        with step.layer(index):
            q, k, v = step.project(x, f"{name}.self_attn")  # (T, heads, head_dim) each
            q = step.rms_norm(q, f"{name}.self_attn.q_norm")
            k = step.rms_norm(k, f"{name}.self_attn.k_norm")
            if rotates:
                q, k = rope(q), rope(k)
            h = step.attend(index, q, k, v, window=window)
            h = step.linear(h, f"{name}.self_attn.o_proj")
            x = x + step.rms_norm(h, f"{name}.post_attention_layernorm")
            h = gated_mlp(step, x, f"{name}.mlp")
            x = x + step.rms_norm(h, f"{name}.post_feedforward_layernorm")
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
