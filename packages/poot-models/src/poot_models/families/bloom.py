"""BLOOM: ALiBi instead of positions, a normed embedding, a projection fused head by head."""

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

__all__ = ["BloomConfig", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomConfig:
    """A BLOOM model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees: None, all.
        residual_after_norm: Whether the residual is the normed stream.
        fused_by_part: Whether the fused rows are all queries, all keys, all values rather than
            the three of each head, as in a GGUF file.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    residual_after_norm: bool
    fused_by_part: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> BloomConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="bloom")
        keys = Keys(
            hidden_size="n_embed" if "n_embed" in reader else "hidden_size",
            intermediate_size=None,
            num_layers="n_layer" if "n_layer" in reader else "num_hidden_layers",
            num_heads="n_head" if "n_head" in reader else "num_attention_heads",
            num_kv_heads=None,
            head_dim=None,
            activation=None,
            norm_eps="layer_norm_epsilon",
            max_context="seq_length",  # ALiBi has no bound; this is the length of the training
        )
        decoder = read_decoder(
            reader, keys, activation="gelu_pytorch_tanh", norm_eps=1e-5, tied=True
        )
        reader.ignore("hidden_size", "num_hidden_layers", "num_attention_heads")  # repetitions
        # How Megatron ran the training.
        reader.ignore("slow_but_exact", "masked_softmax_fusion", "bias_dropout_fusion",
                      "attention_softmax_in_fp32", "skip_bias_add", "skip_bias_add_qkv",
                      "unk_token_id", "n_inner", "offset_alibi")  # fmt: skip
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            residual_after_norm=reader.flag("apply_residual_connection_post_layernorm", False),
            fused_by_part=reader.flag("qkv_concatenated", False),
        )
        reader.finish()
        return config


def weights(config: BloomConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, width = config.decoder, config.decoder.hidden_size

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", width, bias=True),
            **tables.linear(f"{name}.self_attention.query_key_value", 3 * width, width, bias=True),
            **tables.linear(f"{name}.self_attention.dense", width, width, bias=True),
            **tables.norm(f"{name}.post_attention_layernorm", width, bias=True),
            **tables.linear(f"{name}.mlp.dense_h_to_4h", d.intermediate_size, width, bias=True),
            **tables.linear(f"{name}.mlp.dense_4h_to_h", width, d.intermediate_size, bias=True),
        }

    table = tables.decoder(
        d, layer,
        embedding="transformer.word_embeddings", layers="transformer.h",
        final_norm="transformer.ln_f", norm_bias=True,
    )  # fmt: skip
    return table | tables.norm("transformer.word_embeddings_layernorm", width, bias=True)


def trace(step: Step, config: BloomConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    slopes = step.builder.literal(ops.alibi_slopes(config.decoder.num_heads))  # (num_heads,)
    x = step.embed("transformer.word_embeddings")  # (T, hidden_size)
    x = step.layer_norm(x, "transformer.word_embeddings_layernorm")
    for index, window in enumerate(config.windows):
        name = f"transformer.h.{index}"
        with step.layer(index):
            h = step.layer_norm(x, f"{name}.input_layernorm")
            residual = h if config.residual_after_norm else x
            qkv = step.linear(h, f"{name}.self_attention.query_key_value")
            q, k, v = step.fused_heads(qkv, by_part=config.fused_by_part)
            h = step.attend(index, q, k, v, window=window, alibi_slopes=slopes)
            x = residual + step.linear(h, f"{name}.self_attention.dense")
            h = step.layer_norm(x, f"{name}.post_attention_layernorm")
            residual = h if config.residual_after_norm else x
            x = residual + mlp(step, h, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
    return step.logits(step.layer_norm(step.wanted(x), "transformer.ln_f"))
