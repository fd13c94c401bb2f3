"""The decoder that many families share word for word: norm, attention, norm, gated MLP in each layer."""

from __future__ import annotations

from collections.abc import Sequence

from poot_graph_ir import Tracer
from poot_models._decoder import Decoder
from poot_models.components import tables
from poot_models.components.blocks import pre_norm_layer
from poot_models.components.rope_config import Rope
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable

__all__ = ["pre_norm_logits", "pre_norm_weights"]


def pre_norm_weights(
    d: Decoder,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    head_norms: Sequence[str] = (),
) -> WeightTable:
    """Return the shape of every tensor by name.

    Args:
        d: Sizes.
        qkv_bias: Whether query, key and value projections have biases.
        output_bias: Whether the attention's output projection has one.
        mlp_bias: Whether the three MLP projections have biases.
        head_norms: Names of the norms of single heads beside the attention's projections.
    """

    def layer(name: str) -> WeightTable:
        table = {
            **tables.norm(f"{name}.input_layernorm", d.hidden_size),
            **tables.attention(f"{name}.self_attn", d, qkv_bias=qkv_bias, output_bias=output_bias),
            **tables.norm(f"{name}.post_attention_layernorm", d.hidden_size),
            **tables.gated_mlp(f"{name}.mlp", d, bias=mlp_bias),
        }
        for norm in head_norms:
            table |= tables.norm(f"{name}.self_attn.{norm}", d.head_dim)
        return table

    return tables.decoder(d, layer)


def pre_norm_logits(step: Step, rope: Rope, windows: Sequence[int | None]) -> Tracer:
    """Return the logits of one step, (L, vocab_size), where all layers rotate alike.

    Args:
        step: The step being traced.
        rope: Rotary embedding.
        windows: For each layer the tokens that a token sees, itself included, or None for all.
    """
    rotation = step.rotation(rope)
    x = step.embed("model.embed_tokens")  # (T, hidden_size)
    for index, window in enumerate(windows):
        with step.layer(index):
            x = pre_norm_layer(step, x, index, rotation, window=window)
    return step.logits(step.rms_norm(step.wanted(x), "model.norm"))
