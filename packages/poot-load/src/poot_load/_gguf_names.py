"""Tensor names: from GGUF's to Hugging Face's, one table per naming scheme."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from poot_load._refusal import refusal

__all__ = ["BLOOM", "GPT2", "GPT_NEOX", "LLAMA", "MPT", "STARCODER2", "sandwich_norms", "translate"]

Names = Mapping[str, str]

# `{}` stands for the layer; `.weight` and `.bias` follow.
LLAMA: Names = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_qkv": "model.layers.{}.self_attn.qkv_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}

STARCODER2: Names = {
    **LLAMA,
    "blk.{}.ffn_up": "model.layers.{}.mlp.c_fc",
    "blk.{}.ffn_down": "model.layers.{}.mlp.c_proj",
}

GPT2: Names = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}

GPT_NEOX: Names = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "blk.{}.attn_norm": "gpt_neox.layers.{}.input_layernorm",
    "blk.{}.attn_qkv": "gpt_neox.layers.{}.attention.query_key_value",
    "blk.{}.attn_output": "gpt_neox.layers.{}.attention.dense",
    "blk.{}.ffn_norm": "gpt_neox.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
    "blk.{}.ffn_down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
}

BLOOM: Names = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.input_layernorm",
    "blk.{}.attn_qkv": "transformer.h.{}.self_attention.query_key_value",
    "blk.{}.attn_output": "transformer.h.{}.self_attention.dense",
    "blk.{}.ffn_norm": "transformer.h.{}.post_attention_layernorm",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.dense_h_to_4h",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.dense_4h_to_h",
}

MPT: Names = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.blocks.{}.norm_1",
    "blk.{}.attn_qkv": "transformer.blocks.{}.attn.Wqkv",
    "blk.{}.attn_output": "transformer.blocks.{}.attn.out_proj",
    "blk.{}.ffn_norm": "transformer.blocks.{}.norm_2",
    "blk.{}.ffn_up": "transformer.blocks.{}.ffn.up_proj",
    "blk.{}.ffn_down": "transformer.blocks.{}.ffn.down_proj",
}

_LAYER = re.compile(r"^blk\.(0|[1-9][0-9]{0,4})\.")


def sandwich_norms(*, before_ffn: bool) -> Names:
    """Return the llama names with norms after attention and feed-forward (gemma 2 and 3, olmo 2)."""
    names = {
        **LLAMA,
        "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
    }
    if before_ffn:
        names["blk.{}.ffn_norm"] = "model.layers.{}.pre_feedforward_layernorm"
    else:
        del names["blk.{}.ffn_norm"]
        del names["blk.{}.attn_norm"]
    return names


def translate(path: Path, name: str, names: Names, num_layers: int) -> str:
    """Return the Hugging Face name of a tensor.

    Raises:
        CheckpointError: If the family has no such tensor, or no such layer.
    """
    stem, dot, kind = name.rpartition(".")
    layer = _LAYER.match(name)
    pattern = stem
    if layer:
        if int(layer[1]) >= num_layers:
            raise refusal(path, "tensor name", repr(name), f"layers 0..{num_layers - 1}")
        pattern = "blk.{}." + stem[layer.end() :]
    found = names.get(pattern)
    if not dot or kind not in {"weight", "bias"} or found is None:
        known = ", ".join(names)
        raise refusal(path, "tensor name", repr(name), f".weight and .bias of {known}")
    return (found.format(layer[1]) if layer else found) + "." + kind
