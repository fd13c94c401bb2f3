"""Hunyuan (dense): Llama whose queries and keys are normed head by head after their rotation."""

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

__all__ = ["HunyuanConfig", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HunyuanConfig:
    """A dense Hunyuan model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees: None, all.
        rope: Rotary embedding.
        attention_bias: Whether the four attention projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    attention_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> HunyuanConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="hunyuan_v1_dense")
        decoder = read_decoder(reader, norm_eps=1e-5)
        decoder, rope = read_rope(reader, decoder)
        # What the published configurations say of other variants.
        reader.fixed("attention_head_dim", decoder.head_dim)
        reader.fixed("mlp_bias", False)
        reader.fixed("norm_type", "rms")
        reader.fixed("use_cla", False)
        reader.fixed("use_qk_norm", True)
        reader.fixed("use_rotary_pos_emb", True)
        reader.fixed("add_classification_head", False)
        reader.fixed("num_experts", 1)
        reader.fixed("cla_share_factor", *range(1, 9))
        reader.ignore("eod_token_id", "org_vocab_size", "class_num", "pool_type", "mask_init_id")
        reader.ignore("im_start_id", "im_end_id", "im_newline_id", "text_start_id", "text_end_id")
        reader.ignore("enable_lm_head_fp32", "dense_list")
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            rope=rope,
            attention_bias=reader.flag("attention_bias", False),
        )
        reader.finish()
        return config


def weights(config: HunyuanConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    bias = config.attention_bias
    return pre_norm_weights(
        config.decoder,
        qkv_bias=bias,
        output_bias=bias,
        head_norms=("query_layernorm", "key_layernorm"),
    )


def trace(step: Step, config: HunyuanConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        with step.layer(index):
            h = step.rms_norm(x, f"{name}.input_layernorm")
            q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
            q = step.rms_norm(rope(q), f"{name}.self_attn.query_layernorm")
            k = step.rms_norm(rope(k), f"{name}.self_attn.key_layernorm")
            h = step.attend(index, q, k, v, window=window)
            x = x + step.linear(h, f"{name}.self_attn.o_proj")
            h = step.rms_norm(x, f"{name}.post_attention_layernorm")
            x = x + gated_mlp(step, h, f"{name}.mlp")
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
