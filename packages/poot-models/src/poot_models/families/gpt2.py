"""GPT-2: learned positions, layer norms, a fused projection and weights stored as (in, out)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer, ops
from poot_models._decoder import Decoder, Keys, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.activations import activation
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable

__all__ = ["GPT2Config", "trace", "weights"]

KEYS = Keys(
    hidden_size="n_embd",
    intermediate_size=None,
    num_layers="n_layer",
    num_heads="n_head",
    num_kv_heads=None,
    head_dim=None,
    activation="activation_function",
    norm_eps="layer_norm_epsilon",
    max_context="n_positions",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Config:
    """A GPT-2 model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the tokens that a token sees: None, all.
        inner_size: Width of the MLP.
        scale_scores: Whether scores are divided by the root of the head's size.
        scale_by_layer: Whether they are divided by the layer's number, counted from 1, too.
        transposed: Whether projections are stored as (outputs, inputs), as a GGUF file does.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    inner_size: int
    scale_scores: bool
    scale_by_layer: bool
    transposed: bool

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> GPT2Config:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="gpt2")
        decoder = read_decoder(
            reader, KEYS, activation="gelu_new", norm_eps=1e-5, tied=True, max_context=1024
        )
        reader.ignore("n_ctx", "reorder_and_upcast_attn")  # no effect in f32
        reader.ignore(*(name for name in raw if name.startswith("summary_")))
        reader.fixed("add_cross_attention", False)
        config = cls(
            decoder=decoder,
            windows=(None,) * decoder.num_layers,
            inner_size=reader.integer("n_inner", 4 * decoder.hidden_size),
            scale_scores=reader.flag("scale_attn_weights", True),
            scale_by_layer=reader.flag("scale_attn_by_inverse_layer_idx", False),
            transposed=reader.flag("linear_transposed", False),
        )
        reader.finish()
        return config


def weights(config: GPT2Config) -> WeightTable:
    """Return the shape of every tensor by name."""
    d, width, inner = config.decoder, config.decoder.hidden_size, config.inner_size

    def linear(name: str, outputs: int, inputs: int) -> WeightTable:
        shape = (outputs, inputs) if config.transposed else (inputs, outputs)
        return {f"{name}.weight": shape, f"{name}.bias": (outputs,)}

    def layer(name: str) -> WeightTable:
        return {
            **tables.norm(f"{name}.ln_1", width, bias=True),
            **linear(f"{name}.attn.c_attn", 3 * width, width),
            **linear(f"{name}.attn.c_proj", width, width),
            **tables.norm(f"{name}.ln_2", width, bias=True),
            **linear(f"{name}.mlp.c_fc", inner, width),
            **linear(f"{name}.mlp.c_proj", width, inner),
        }

    table = tables.decoder(
        d, layer,
        embedding="transformer.wte", layers="transformer.h", final_norm="transformer.ln_f",
        norm_bias=True,
    )  # fmt: skip
    return table | {"transformer.wpe.weight": (d.max_context, width)}


def trace(step: Step, config: GPT2Config) -> Tracer:
    """Return the logits of one step, (L, vocab_size)."""
    d, act = config.decoder, activation(config.decoder.activation)
    width = d.hidden_size

    def linear(x: Tracer, name: str) -> Tracer:
        return step.linear(x, name, transposed=not config.transposed)

    x = step.embed("transformer.wte")  # (T, hidden_size)
    x = x + ops.embedding(step.weight("transformer.wpe.weight"), step.slots.positions)
    for index, window in enumerate(config.windows):
        name = f"transformer.h.{index}"
        scale = d.head_dim**-0.5 if config.scale_scores else 1.0
        if config.scale_by_layer:
            scale /= index + 1
        with step.layer(index):
            h = step.layer_norm(x, f"{name}.ln_1")
            qkv = linear(h, f"{name}.attn.c_attn")
            q, k, v = step.heads(*ops.split(qkv, (width, width, width)))
            h = step.attend(index, q, k, v, window=window, scale=scale)
            x = x + linear(h, f"{name}.attn.c_proj")
            h = step.layer_norm(x, f"{name}.ln_2")
            x = x + linear(act(linear(h, f"{name}.mlp.c_fc")), f"{name}.mlp.c_proj")
    return step.logits(step.layer_norm(step.wanted(x), "transformer.ln_f"))
