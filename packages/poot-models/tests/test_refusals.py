"""A configuration or a set of tensors that does not fit is one error that names what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_models import NAMES, Tensors, Tiny, read_tiny

from poot_core import CheckpointError, UnsupportedError
from poot_graph_ir import TraceOptions
from poot_models import load_family, supported_architectures


def test_unknown_architecture_names_the_known_ones() -> None:
    tiny = read_tiny("llama").with_config(model_type="elephant")
    with pytest.raises(UnsupportedError, match=r"'elephant'.*bloom.*llama.*starcoder2"):
        load_family(tiny)
    assert "qwen2" in supported_architectures()


@pytest.mark.parametrize("name", NAMES)
def test_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"'attention_chunk_size'.*8192.*no such key"):
        load_family(read_tiny(name).with_config(attention_chunk_size=8192))


@pytest.mark.parametrize("name", NAMES)
def test_provenance_and_null_keys_change_nothing(name: str) -> None:
    tiny = read_tiny(name)
    noisy = tiny.with_config(torch_dtype="float16", attention_chunk_size=None, top_k=50)
    assert load_family(noisy).cache_key == load_family(tiny).cache_key


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"hidden_act": "relu"}, "'hidden_act' .*'relu'.*gelu.*silu"),
    ("llama", {"num_key_value_heads": 3}, "'num_key_value_heads' .*divisor of 4 query heads"),
    ("llama", {"num_hidden_layers": 10**9}, "'num_hidden_layers' .*at most 1024"),
    ("llama", {"hidden_size": 2**63}, "'hidden_size' .*9223372036854775808"),
    ("llama", {"hidden_size": 64.5}, "'hidden_size' .*64.5"),
    ("llama", {"hidden_size": "64"}, "'hidden_size' .*'64'"),
    ("llama", {"vocab_size": True}, "'vocab_size' .*True"),
    ("llama", {"vocab_size": 0}, "'vocab_size' .*0, expected an integer from 1"),
    ("llama", {"vocab_size": None}, "'vocab_size' .*None"),
    ("llama", {"rms_norm_eps": float("inf")}, "'rms_norm_eps'"),
    ("llama", {"tie_word_embeddings": "no"}, "'tie_word_embeddings' .*true or false"),
    ("llama", {"eos_token_id": ["</s>"]}, "'eos_token_id' .*a token id"),
    ("llama", {"is_encoder_decoder": True}, "'is_encoder_decoder'"),
    ("llama", {"quantization_config": {"quant_method": "awq"}}, "'quantization_config'"),
    ("qwen2", {"layer_types": ["linear_attention"] * 3}, "'layer_types' .*sliding_attention"),
    ("qwen2", {"layer_types": ["full_attention"]}, "'layer_types' .*a list of 3"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "'sliding_window' .*None"),
    ("gemma3", {"use_bidirectional_attention": True}, "'use_bidirectional_attention'"),
    ("gpt2", {"add_cross_attention": True}, "'add_cross_attention'"),
    ("mpt", {"attn_config": {"alibi": False}}, "'attn_config.alibi' .*False"),
    ("mpt", {"attn_config": {"alibi": True, "window": 9}}, "'attn_config.window'.*no such key"),
    ("mpt", {"logit_scale": 0.5}, "'logit_scale'"),
    ("smollm3", {"no_rope_layers": [1, 2, 0]}, "'no_rope_layers' .*zeros and ones"),
    ("cohere2", {"use_qk_norm": True}, "'use_qk_norm'"),
    ("hunyuan-dense", {"use_cla": True}, "'use_cla'"),
    ("phi3", {"lm_head_bias": True}, "'lm_head_bias'"),
]


@pytest.mark.parametrize(("name", "changes", "message"), CONFIGS)
def test_values_that_poot_does_not_implement(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_family(read_tiny(name).with_config(**changes))


@pytest.mark.parametrize("name", NAMES)
def test_missing_tensor_is_named(name: str) -> None:
    tiny = read_tiny(name)
    key = next(key for key in tiny.weights.names() if ".1." in key)
    with pytest.raises(CheckpointError, match="is missing: expected shape") as caught:
        load_family(tiny.with_tensors({key: None}))
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_tensor_of_another_shape_is_named_with_both(name: str) -> None:
    tiny = read_tiny(name)
    key = next(key for key in tiny.weights.names() if ".2." in key)
    wrong = np.ones((7, 5), np.float32)
    with pytest.raises(CheckpointError, match=r"has shape \[7, 5\], expected \[") as caught:
        load_family(tiny.with_tensors({key: wrong}))
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize(
    "key", ["model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "score"]
)
def test_tensor_that_is_left_over_is_refused(key: str) -> None:
    tiny = read_tiny("llama")
    with pytest.raises(CheckpointError, match="1 tensors are no part of a llama model") as caught:
        load_family(tiny.with_tensors({key: np.ones(4, np.float32)}))
    assert repr(key) in str(caught.value)


def test_integers_are_no_weights() -> None:
    changed = read_tiny("llama").with_tensors({"model.norm.weight": np.ones(64, np.int8)})
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' .* holds i8"):
        load_family(changed)


def test_buffers_and_a_tied_head_are_harmless() -> None:
    buffer = np.ones(8, np.float32)
    load_family(
        read_tiny("llama").with_tensors({"model.layers.0.self_attn.rotary_emb.inv_freq": buffer})
    )
    load_family(read_tiny("gpt2").with_tensors({"transformer.h.0.attn.bias": buffer}))
    load_family(read_tiny("llama-tied").with_tensors({"lm_head.weight": buffer}))


class Unreadable(Tensors):
    def array(self, name: str) -> np.ndarray:
        raise AssertionError(f"{name} was read")


def test_a_model_is_loaded_and_traced_without_reading_a_weight() -> None:
    tiny = read_tiny("llama")
    made = load_family(Tiny(tiny.config, Unreadable(tiny.weights.arrays)))
    made.trace(TraceOptions())
