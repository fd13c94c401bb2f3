"""StarCoder2: Llama's attention with layer norms, a plain MLP and biases."""

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

__all__ = ["Starcoder2Config", "trace", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Starcoder2Config:
    """A StarCoder2 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
        rope: Rotary embedding.
        use_bias: Whether all projections have biases.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope
    use_bias: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Starcoder2Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="starcoder2")
        decoder = read_decoder(
            reader, Keys(norm_eps="norm_epsilon"), norm_eps=1e-5,
            activation="gelu_pytorch_tanh", tied=True, max_context=4096,
        )  # fmt: skip
        decoder, rope = read_rope(reader, decoder)
        # What the published configurations say and transformers does not read.
        reader.fixed("mlp_type", "default")
        reader.fixed("norm_type", "layer_norm")
        reader.fixed("scale_attn_weights", True)
        reader.ignore("activation_function", "layer_norm_epsilon")
        reader.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
        config = cls(
            decoder=decoder,
            windows=(reader.optional_integer("sliding_window"),) * decoder.num_layers,
            rope=rope,
            use_bias=reader.flag("use_bias", True),
        )
        reader.fixed("attention_bias", config.use_bias)
        reader.fixed("mlp_bias", config.use_bias)
        reader.finish()
        return config


def weights(config: Starcoder2Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, bias = config.decoder, config.use_bias

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size, bias=True),
            **tables.attention(f"{name}.self_attn", d, qkv_bias=bias, output_bias=bias),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size, bias=True),
            **tables.linear(f"{name}.mlp.c_fc", d.intermediate_size, d.hidden_size, bias=bias),
            **tables.linear(f"{name}.mlp.c_proj", d.hidden_size, d.intermediate_size, bias=bias),
        }

    return tables.decoder(d, layer, norm_bias=True)


def trace(step: Step, config: Starcoder2Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    rope = step.rotation(config.rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        with step.layer(index):
            h = step.layer_norm(x, f"{name}.input_layernorm")
            q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
            h = step.attend(index, rope(q), rope(k), v, window=window)
            x = x + step.linear(h, f"{name}.self_attn.o_proj")
            h = step.layer_norm(x, f"{name}.post_attention_layernorm")
            x = x + mlp(step, h, f"{name}.mlp.c_fc", f"{name}.mlp.c_proj")
    return step.logits(step.layer_norm(step.wanted(x), "model.norm"))
