"""Weight-name tables: the shape that each tensor of a checkpoint must have, by its name."""

from __future__ import annotations

from collections.abc import Callable

from poot_models._decoder import Decoder

__all__ = ["WeightTable", "attention", "decoder", "fused_gated_mlp", "gated_mlp", "linear", "norm"]

WeightTable = dict[str, tuple[int, ...]]
"""Name of each tensor and its logical shape."""


def linear(name: str, outputs: int, inputs: int, *, bias: bool = False) -> WeightTable:
    """Return a projection: (outputs, inputs), and its bias if it has one."""
    table: WeightTable = {f"{name}.weight": (outputs, inputs)}
    if bias:
        table[f"{name}.bias"] = (outputs,)
    return table


def norm(name: str, width: int, *, bias: bool = False) -> WeightTable:
    """Return a normalisation's weight, and its bias if it has one."""
    table: WeightTable = {f"{name}.weight": (width,)}
    if bias:
        table[f"{name}.bias"] = (width,)
    return table


def attention(
    name: str, d: Decoder, *, qkv_bias: bool = False, output_bias: bool = False
) -> WeightTable:
    """Return separate query, key and value projections and the output projection."""
    q, kv = d.num_heads * d.head_dim, d.num_kv_heads * d.head_dim
    return {
        **linear(f"{name}.q_proj", q, d.hidden_size, bias=qkv_bias),
        **linear(f"{name}.k_proj", kv, d.hidden_size, bias=qkv_bias),
        **linear(f"{name}.v_proj", kv, d.hidden_size, bias=qkv_bias),
        **linear(f"{name}.o_proj", d.hidden_size, q, bias=output_bias),
    }


def gated_mlp(name: str, d: Decoder, *, bias: bool = False) -> WeightTable:
    """Return gate, up and down projections."""
    return {
        **linear(f"{name}.gate_proj", d.intermediate_size, d.hidden_size, bias=bias),
        **linear(f"{name}.up_proj", d.intermediate_size, d.hidden_size, bias=bias),
        **linear(f"{name}.down_proj", d.hidden_size, d.intermediate_size, bias=bias),
    }


def fused_gated_mlp(name: str, d: Decoder) -> WeightTable:
    """Return one projection with the rows of gate and then of up, and the down projection."""
    return {
        **linear(f"{name}.gate_up_proj", 2 * d.intermediate_size, d.hidden_size),
        **linear(f"{name}.down_proj", d.hidden_size, d.intermediate_size),
    }


def decoder(
    d: Decoder,
    layer: Callable[[str], WeightTable],
    *,
    embedding: str = "model.embed_tokens",
    layers: str = "model.layers",
    final_norm: str = "model.norm",
    head: str = "lm_head",
    norm_bias: bool = False,
) -> WeightTable:
    """Return a whole decoder: embedding, layers, last norm, and a head unless it is tied.

    Args:
        d: Sizes.
        layer: Returns the tensors of the layer whose name it is given.
        embedding: Name of the embedding.
        layers: Name under which the layers are numbered.
        final_norm: Name of the last norm.
        head: Name of the output projection.
        norm_bias: Whether the last norm has a bias.
    """
    table: WeightTable = {f"{embedding}.weight": (d.vocab_size, d.hidden_size)}
    for index in range(d.num_layers):
        table |= layer(f"{layers}.{index}")
    table |= norm(final_norm, d.hidden_size, bias=norm_bias)
    return table if d.tied else table | linear(head, d.vocab_size, d.hidden_size)
