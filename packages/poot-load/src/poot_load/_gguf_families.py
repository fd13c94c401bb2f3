"""GGUF architectures: each one's tensor names and its configuration under Hugging Face's keys.

To add an architecture, write a function that returns its configuration and add a row to FAMILIES.

A converter may store weights in another arrangement than Hugging Face's checkpoint. Four keys of the
configuration say so, and are absent for safetensors:

- ``rope_interleaved``: rows of q and k are permuted, so that a rotation pairs neighbours (2 i, 2 i+1)
  instead of (i, i + d / 2).
- ``norm_offset_folded``: the 1 that gemma adds to its norm weights is in the stored weights.
- ``qkv_concatenated``: fused projections hold all q rows, then all k, then all v, instead of a
  head's q, k and v together.
- ``linear_transposed``: gpt2's linear weights are stored (out, in) instead of (in, out).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from poot_load import _gguf_names as names
from poot_load._gguf import GgufFile
from poot_load._gguf_metadata import Metadata
from poot_load._gguf_rope import rope_parameters

__all__ = ["FAMILIES", "Family"]

Config = dict[str, Any]

_MAX_LAYERS = 10_000  # lists of layers are made of this length
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Family:
    """What poot knows of one GGUF architecture.

    Attributes:
        model_type: Hugging Face's name of the family.
        names: Tensor names.
        config: Makes the configuration; keys that all families share are added by the caller.
    """

    model_type: str
    names: Mapping[str, str]
    config: Callable[[GgufFile, Metadata], Config]


def _sizes(gguf: GgufFile, meta: Metadata) -> Config:
    """Return sizes, attention heads, biases and rotation, as the llama-like families share them."""
    hidden, heads = meta.size("embedding_length"), meta.size("attention.head_count")
    head_dim = meta.size("attention.key_length", hidden // heads)
    meta.expect("attention.value_length", head_dim)
    meta.expect("expert_count", 0)
    meta.expect("expert_used_count", 0)
    return {
        "hidden_size": hidden,
        "intermediate_size": meta.size("feed_forward_length"),
        "num_hidden_layers": _num_layers(meta),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.size("context_length"),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.tensors,
        "rope_parameters": rope_parameters(gguf, meta, head_dim),
    }


def _num_layers(meta: Metadata) -> int:
    return meta.size("block_count", most=_MAX_LAYERS)


def _with_rms(gguf: GgufFile, meta: Metadata) -> Config:
    return _sizes(gguf, meta) | {"rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon")}


def _layers(config: Config, is_full: Callable[[int], bool]) -> list[str]:
    count = config["num_hidden_layers"]
    return [_FULL if is_full(layer) else _SLIDING for layer in range(count)]


def _llama(gguf: GgufFile, meta: Metadata) -> Config:
    config = _with_rms(gguf, meta) | {"rope_interleaved": True}
    if window := meta.optional_integer("attention.sliding_window"):
        config |= {"model_type": "mistral", "sliding_window": window}
    return config


def _qwen(gguf: GgufFile, meta: Metadata) -> Config:
    config = _with_rms(gguf, meta)
    return config | {
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": _layers(config, lambda _: True),
    }


def _granite(gguf: GgufFile, meta: Metadata) -> Config:
    config = _with_rms(gguf, meta)
    return config | {
        "rope_interleaved": True,
        "attention_multiplier": meta.number("attention.scale"),
        "embedding_multiplier": meta.number("embedding_scale"),
        "residual_multiplier": meta.number("residual_scale"),
        "logits_scaling": meta.number("logit_scale"),
    }


def _smollm3(gguf: GgufFile, meta: Metadata) -> Config:
    config = _with_rms(gguf, meta)
    # The file does not say which layers go without rotation; every fourth does in this family.
    uses_rope = [int((layer + 1) % 4 != 0) for layer in range(config["num_hidden_layers"])]
    return config | {
        "rope_interleaved": True,
        "no_rope_layer_interval": 4,
        "no_rope_layers": uses_rope,
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": _layers(config, lambda _: True),
    }


def _olmo2(gguf: GgufFile, meta: Metadata) -> Config:
    config = _with_rms(gguf, meta)
    count = config["num_hidden_layers"]
    slides = meta.flags("attention.sliding_window_pattern", count)
    if (window := meta.optional_integer("attention.sliding_window")) is None:
        return config
    # A windowed file of this architecture is olmo3: three windowed layers, then a full one.
    slides = slides or [(layer + 1) % 4 != 0 for layer in range(count)]
    rope = config["rope_parameters"]
    plain = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return config | {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": [_SLIDING if slide else _FULL for slide in slides],
        "rope_parameters": {_FULL: rope, _SLIDING: plain},
    }


def _phi3(gguf: GgufFile, meta: Metadata) -> Config:
    config = _with_rms(gguf, meta)
    original = meta.integer(
        "rope.scaling.original_context_length", config["max_position_embeddings"]
    )
    return config | {
        "sliding_window": meta.optional_integer("attention.sliding_window") or None,
        "original_max_position_embeddings": original,
    }


def _gemma(gguf: GgufFile, meta: Metadata, largest: int) -> Config:
    """Return what gemma 2 and 3 share; the file with ``largest`` layers scales by width."""
    config = _with_rms(gguf, meta)
    by_width = config["hidden_size"] // config["num_attention_heads"]
    scalar = by_width if config["num_hidden_layers"] == largest else config["head_dim"]
    del config["hidden_act"], config["mlp_bias"]
    return config | {
        "norm_offset_folded": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": meta.optional_number("attn_logit_softcapping"),
        "final_logit_softcapping": meta.optional_number("final_logit_softcapping"),
        "use_bidirectional_attention": False,
    }


def _gemma2(gguf: GgufFile, meta: Metadata) -> Config:
    config = _gemma(gguf, meta, largest=46)
    return config | {
        "sliding_window": meta.size("attention.sliding_window"),
        "layer_types": _layers(config, lambda layer: layer % 2 == 1),
    }


def _gemma3(gguf: GgufFile, meta: Metadata) -> Config:
    config = _gemma(gguf, meta, largest=62)
    period = 6
    if meta.has("attention.sliding_window_pattern"):
        period = meta.size("attention.sliding_window_pattern")
    local = meta.number("rope.freq_base_swa", 10000.0)
    return config | {
        "sliding_window": meta.size("attention.sliding_window"),
        "_sliding_window_pattern": period,
        "layer_types": _layers(config, lambda layer: (layer + 1) % period == 0),
        "rope_parameters": {
            _SLIDING: {"rope_type": "default", "rope_theta": local},
            _FULL: config["rope_parameters"],
        },
    }


def _starcoder2(gguf: GgufFile, meta: Metadata) -> Config:
    config = _sizes(gguf, meta)
    return config | {
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": meta.number("attention.layer_norm_epsilon"),
        "use_bias": config["attention_bias"],
        "sliding_window": meta.optional_integer("attention.sliding_window") or None,
    }


def _gpt_neox(gguf: GgufFile, meta: Metadata) -> Config:
    config = _sizes(gguf, meta)
    return config | {
        "hidden_act": "gelu",
        "layer_norm_eps": meta.number("attention.layer_norm_epsilon"),
        "use_parallel_residual": meta.flag("use_parallel_residual", default=True),
        "attention_bias": "blk.0.attn_qkv.bias" in gguf.tensors,
        "qkv_concatenated": True,
    }


def _gpt2(gguf: GgufFile, meta: Metadata) -> Config:
    width = meta.size("embedding_length")
    meta.expect("attention.head_count_kv", meta.size("attention.head_count"))
    return {
        "n_embd": width,
        "n_layer": _num_layers(meta),
        "n_head": meta.size("attention.head_count"),
        "n_positions": meta.size("context_length"),
        "n_inner": meta.size("feed_forward_length", 4 * width),
        "layer_norm_epsilon": meta.number("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "linear_transposed": True,
    }


def _bloom(gguf: GgufFile, meta: Metadata) -> Config:
    width = meta.size("embedding_length")
    meta.expect("feed_forward_length", 4 * width)
    meta.expect("attention.head_count_kv", meta.size("attention.head_count"))
    return {
        "hidden_size": width,
        "n_layer": _num_layers(meta),
        "n_head": meta.size("attention.head_count"),
        "seq_length": meta.size("context_length"),
        "layer_norm_epsilon": meta.number("attention.layer_norm_epsilon"),
        "apply_residual_connection_post_layernorm": False,
        "qkv_concatenated": True,
    }


def _mpt(gguf: GgufFile, meta: Metadata) -> Config:
    width = meta.size("embedding_length")
    meta.expect("attention.head_count_kv", meta.size("attention.head_count"))
    return {
        "d_model": width,
        "n_layers": _num_layers(meta),
        "n_heads": meta.size("attention.head_count"),
        "max_seq_len": meta.size("context_length"),
        "expansion_ratio": meta.size("feed_forward_length", 4 * width) // width,
        "layer_norm_epsilon": meta.number("attention.layer_norm_epsilon", 1e-5),
        "no_bias": not any(name.endswith(".bias") for name in gguf.tensors),
        "attn_config": {
            "alibi": True,
            "alibi_bias_max": meta.number("attention.max_alibi_bias"),
            "clip_qkv": meta.optional_number("attention.clamp_kqv") or None,
            "qk_ln": False,
        },
    }


_POST = names.sandwich_norms(before_ffn=False)
_SANDWICH = names.sandwich_norms(before_ffn=True)
_PHI3 = {**names.LLAMA, "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj"}

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family("llama", names.LLAMA, _llama),
        "qwen2": Family("qwen2", names.LLAMA, _qwen),
        "qwen3": Family("qwen3", names.LLAMA, _qwen),
        "gemma2": Family("gemma2", _SANDWICH, _gemma2),
        "gemma3": Family("gemma3_text", _SANDWICH, _gemma3),
        "granite": Family("granite", names.LLAMA, _granite),
        "olmo2": Family("olmo2", _POST, _olmo2),
        "phi3": Family("phi3", _PHI3, _phi3),
        "smollm3": Family("smollm3", names.LLAMA, _smollm3),
        "starcoder2": Family("starcoder2", names.STARCODER2, _starcoder2),
        "gpt2": Family("gpt2", names.GPT2, _gpt2),
        "gptneox": Family("gpt_neox", names.GPT_NEOX, _gpt_neox),
        "bloom": Family("bloom", names.BLOOM, _bloom),
        "mpt": Family("mpt", names.MPT, _mpt),
    }
)
"""Every GGUF architecture that poot translates, by its name in the file."""
