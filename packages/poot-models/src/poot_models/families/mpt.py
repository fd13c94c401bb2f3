"""MPT: ALiBi, layer norms without biases, a projection fused part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer, ops
from poot_models._decoder import Decoder, Keys, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import mlp
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable

__all__ = ["MptConfig", "trace", "weights"]

KEYS = Keys(
    hidden_size="d_model",
    intermediate_size=None,
    num_layers="n_layers",
    num_heads="n_heads",
    num_kv_heads=None,
    head_dim=None,
    activation=None,
    norm_eps="layer_norm_epsilon",
    max_context="max_seq_len",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MptConfig:
    """An MPT model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees: None, all.
        alibi_bias_max: Exponent of the steepest slope's reciprocal.
        clip: Bound of queries, keys and values, or None.
        scale: Factor on the scores, or None for 1 / sqrt(head_dim).
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    alibi_bias_max: float
    clip: float | None
    scale: float | None

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> MptConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="mpt")
        decoder = read_decoder(reader, KEYS, activation="gelu", norm_eps=1e-5, tied=True)
        reader.fixed("no_bias", True)
        reader.fixed("norm_type", "low_precision_layernorm")
        reader.fixed("logit_scale")
        # NOTE: transformers reads none of these, not even the ratio: the MLP is 4 wide always.
        reader.fixed("expansion_ratio", *range(1, 9))
        reader.ignore("learned_pos_emb", "embedding_fraction", "init_device", "init_config",
                      "verbose", "ffn_config", "fc_type")  # fmt: skip
        attention = reader.section("attn_config", {})
        attention.fixed("alibi", True)
        attention.fixed("attn_type", "multihead_attention")
        attention.fixed("prefix_lm", False)
        attention.fixed("qk_ln", False)
        attention.fixed("attn_uses_sequence_id", False)
        attention.ignore("attn_impl", "attn_pdrop", *_CONFIG_NOISE)
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            alibi_bias_max=attention.number("alibi_bias_max", 8),
            clip=attention.optional_number("clip_qkv"),
            scale=attention.optional_number("softmax_scale"),
        )
        attention.finish()
        reader.finish()
        return config


# What transformers writes into every nested configuration.
# fmt: off
_CONFIG_NOISE = (
    "_name_or_path", "architectures", "chunk_size_feed_forward", "dtype", "torch_dtype",
    "id2label", "label2id", "model_type", "output_attentions", "output_hidden_states",
    "problem_type", "return_dict",
)
# fmt: on


def weights(config: MptConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, width = config.decoder, config.decoder.hidden_size

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.norm_1", width),
            **tables.linear(f"{name}.attn.Wqkv", 3 * width, width),
            **tables.linear(f"{name}.attn.out_proj", width, width),
            **tables.norm(f"{name}.norm_2", width),
            **tables.linear(f"{name}.ffn.up_proj", d.intermediate_size, width),
            **tables.linear(f"{name}.ffn.down_proj", width, d.intermediate_size),
        }

    return tables.decoder(
        d, layer,
        embedding="transformer.wte", layers="transformer.blocks", final_norm="transformer.norm_f",
    )  # fmt: skip


def trace(step: Step, config: MptConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    slopes = ops.alibi_slopes(config.decoder.num_heads, config.alibi_bias_max)
    alibi = step.builder.literal(slopes)  # (num_heads,)
    x = step.embed("transformer.wte")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"transformer.blocks.{index}"
        with step.layer(index):
            h = step.layer_norm(x, f"{name}.norm_1")
            qkv = step.linear(h, f"{name}.attn.Wqkv")
            if config.clip is not None:
                qkv = ops.minimum(ops.maximum(qkv, -config.clip), config.clip)
            q, k, v = step.fused_heads(qkv, by_part=True)
            h = step.attend(index, q, k, v, window=window, scale=config.scale, alibi_slopes=alibi)
            x = x + step.linear(h, f"{name}.attn.out_proj")
            h = step.layer_norm(x, f"{name}.norm_2")
            x = x + mlp(step, h, f"{name}.ffn.up_proj", f"{name}.ffn.down_proj")
    return step.logits(step.layer_norm(step.wanted(x), "transformer.norm_f"))
