"""GPT-NeoX and Pythia: attention and MLP side by side, a projection fused head by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder, Keys, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import mlp
from poot_models.components.rope_config import Rope, read_rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable

__all__ = ["GPTNeoXConfig", "trace", "weights"]

KEYS = Keys(norm_eps="layer_norm_eps", num_kv_heads=None, head_dim=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTNeoXConfig:
    """A GPT-NeoX model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees: None, all.
        rope: Rotary embedding.
        parallel: Whether attention and MLP read the same residual.
        attention_bias: Whether the attention projections have biases.
        fused_by_part: Whether the fused rows are all queries, all keys, all values rather than
            the three of each head, as in a GGUF file.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    parallel: bool
    attention_bias: bool
    fused_by_part: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> GPTNeoXConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="gpt_neox")
        decoder = read_decoder(reader, KEYS, activation="gelu", norm_eps=1e-5)
        reader.fixed("head_dim", decoder.head_dim)
        reader.fixed("mlp_bias", True)
        reader.ignore("num_key_value_heads")  # no such thing here, though configurations name it
        decoder, rope = read_rope(
            reader, decoder, rotary_share=0.25, theta_key="rotary_emb_base", share_key="rotary_pct"
        )
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            rope=rope,
            parallel=reader.flag("use_parallel_residual", True),
            attention_bias=reader.flag("attention_bias", True),
            fused_by_part=reader.flag("qkv_concatenated", False),
        )
        reader.finish()
        return config


def weights(config: GPTNeoXConfig) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, bias = config.decoder, config.attention_bias
    width = d.hidden_size

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", width, bias=True),
            **tables.linear(f"{name}.attention.query_key_value", 3 * width, width, bias=bias),
            **tables.linear(f"{name}.attention.dense", width, width, bias=bias),
            **tables.norm(f"{name}.post_attention_layernorm", width, bias=True),
            **tables.linear(f"{name}.mlp.dense_h_to_4h", d.intermediate_size, width, bias=True),
            **tables.linear(f"{name}.mlp.dense_4h_to_h", width, d.intermediate_size, bias=True),
        }

    return tables.decoder(
        d, layer,
        embedding="gpt_neox.embed_in", layers="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm", head="embed_out", norm_bias=True,
    )  # fmt: skip


def trace(step: Step, config: GPTNeoXConfig) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("gpt_neox.embed_in")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"gpt_neox.layers.{index}"
        with step.layer(index):
            h = step.layer_norm(x, f"{name}.input_layernorm")
            qkv = step.linear(h, f"{name}.attention.query_key_value")
            q, k, v = step.fused_heads(qkv, by_part=config.fused_by_part)
            h = step.attend(index, rope(q), rope(k), v, window=window)
            attended = x + step.linear(h, f"{name}.attention.dense")
            h = x if config.parallel else attended
            h = step.layer_norm(h, f"{name}.post_attention_layernorm")
            h = mlp(step, h, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
            x = attended + h
    x = step.layer_norm(step.wanted(x), "gpt_neox.final_layer_norm")
    return step.logits(x, head="embed_out")
