"""GGUF architectures against Hugging Face's own configurations and tensor names.

Goldens (tests/data/families.json) are configurations and tensor shapes that transformers wrote. The
GGUF side is made as llama.cpp's converters write it; gguf-py's name tables give the tensor names.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from poot_load_fakes import Gguf, llama

from poot_core import CheckpointError
from poot_load import open_checkpoint

FAMILIES: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "families.json").read_text()
)

ARCHITECTURES = {
    "llama": "llama", "llama-yarn": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "gemma2": "gemma2", "gemma3": "gemma3", "granite": "granite", "olmo2": "olmo2",
    "olmo3": "olmo2", "phi3": "phi3", "phi3-longrope": "phi3", "smollm3": "smollm3",
    "starcoder2": "starcoder2", "gpt2": "gpt2", "gpt-neox": "gptneox", "bloom": "bloom",
    "mpt": "mpt",
}  # fmt: skip

# Keys of Hugging Face's configurations that a model's arithmetic does not depend on, or that no
# checkpoint of the family in GGUF form can differ in.
NEUTRAL = {
    "transformers_version", "initializer_range", "use_cache", "dtype", "attention_dropout",
    "architectures", "pretraining_tp", "max_window_layers", "pad_token_id", "embd_pdrop",
    "resid_pdrop", "attn_pdrop", "embedding_dropout", "residual_dropout", "add_cross_attention",
    "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_type",
    "summary_proj_to_labels", "summary_use_proj", "classifier_dropout", "hidden_dropout",
    "is_decoder", "slow_but_exact", "emb_pdrop", "embedding_fraction", "init_device",
    "learned_pos_emb", "logit_scale", "norm_type", "use_bidirectional_attention",
}  # fmt: skip

FOLDED = {
    "llama": {"rope_interleaved"}, "granite": {"rope_interleaved"}, "smollm3": {"rope_interleaved"},
    "gemma2": {"norm_offset_folded"}, "gemma3": {"norm_offset_folded"},
    "gptneox": {"qkv_concatenated"}, "bloom": {"qkv_concatenated"}, "gpt2": {"linear_transposed"},
}  # fmt: skip


def metadata(architecture: str, config: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return what llama.cpp's converter writes for a configuration."""

    def first(*keys: str) -> Any:
        return next((config[key] for key in keys if config.get(key) is not None), None)

    width = first("hidden_size", "n_embd", "d_model")
    heads = first("num_attention_heads", "n_head", "n_heads")
    inner = first("intermediate_size", "n_inner") or width * config.get("expansion_ratio", 4)
    rope = config.get("rope_parameters", {})
    rope = rope.get("full_attention", rope)
    attention = config.get("attn_config", {})
    values: dict[str, tuple[str, Any]] = {
        "block_count": ("u32", first("num_hidden_layers", "n_layer", "n_layers")),
        "context_length": (
            "u32",
            first("max_position_embeddings", "n_positions", "max_seq_len") or 2048,
        ),
        "embedding_length": ("u32", width),
        "feed_forward_length": ("u32", inner),
        "attention.head_count": ("u32", heads),
        "attention.head_count_kv": ("u32", config.get("num_key_value_heads")),
        "attention.key_length": ("u32", config.get("head_dim")),
        "attention.value_length": ("u32", config.get("head_dim")),
        "attention.layer_norm_rms_epsilon": ("f32", config.get("rms_norm_eps")),
        "attention.layer_norm_epsilon": (
            "f32",
            first("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),
        ),
        "attention.sliding_window": ("u32", config.get("sliding_window")),
        "attn_logit_softcapping": ("f32", config.get("attn_logit_softcapping")),
        "final_logit_softcapping": ("f32", config.get("final_logit_softcapping")),
        "attention.scale": ("f32", config.get("attention_multiplier")),
        "embedding_scale": ("f32", config.get("embedding_multiplier")),
        "residual_scale": ("f32", config.get("residual_multiplier")),
        "logit_scale": ("f32", config.get("logits_scaling")),
        "use_parallel_residual": ("bool", config.get("use_parallel_residual")),
        "attention.max_alibi_bias": ("f32", attention.get("alibi_bias_max")),
        "attention.clamp_kqv": ("f32", attention.get("clip_qkv")),
        "vocab_size": ("u32", config["vocab_size"]),
    }
    if rope:
        head_dim = config.get("head_dim", width // heads)
        rotated = int(head_dim * rope.get("partial_rotary_factor", 1.0))
        values["rope.freq_base"] = ("f32", rope["rope_theta"])
        values["rope.dimension_count"] = ("u32", rotated)
        original = rope.get("original_max_position_embeddings")
        values["rope.scaling.original_context_length"] = (
            "u32",
            original or config.get("original_max_position_embeddings"),
        )
        if rope["rope_type"] == "yarn":
            values["rope.scaling.type"] = ("str", "yarn")
            values["rope.scaling.factor"] = ("f32", rope["factor"])
    keys = {f"{architecture}.{k}": v for k, v in values.items() if v[1] is not None}
    keys["general.architecture"] = ("str", architecture)
    for name in ("bos", "eos"):
        if config.get(f"{name}_token_id") is not None:
            keys[f"tokenizer.ggml.{name}_token_id"] = ("u32", config[f"{name}_token_id"])
    return keys


def make(name: str, architecture: str) -> Gguf:
    gguf = pytest.importorskip("gguf", reason="gguf-py gives the names of tensors")
    golden = FAMILIES[name]
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    table = gguf.get_tensor_name_map(arch, 8)
    rng = np.random.default_rng(8)
    file = Gguf(metadata=metadata(architecture, golden["config"]))
    for tensor, shape in golden["tensors"].items():
        # bloom's converter drops the prefix before it looks a name up.
        asked = tensor.removeprefix("transformer.") if architecture == "bloom" else tensor
        stored = table.get_name(asked, try_suffixes=(".weight", ".bias"))
        assert stored is not None, tensor
        file.add(stored, rng.standard_normal(shape, dtype=np.float32))
    scaling = golden["config"].get("rope_parameters", {})
    for kind in ("long", "short"):
        if f"{kind}_factor" in scaling:
            factors = np.array(scaling[f"{kind}_factor"], np.float32)
            file.add(f"rope_factors_{kind}.weight", factors)
    return file


def close(found: Any, expected: Any) -> bool:
    """Compare values of which the file keeps 32 bits."""
    if isinstance(expected, float) and isinstance(found, int | float):
        return math.isclose(found, expected, rel_tol=1e-6)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(close(found[k], expected[k]) for k in expected)
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_configuration_and_names_are_hugging_faces(tmp_path: Path, name: str) -> None:
    architecture = ARCHITECTURES[name]
    golden = FAMILIES[name]
    file = make(name, architecture)
    with open_checkpoint(file.write(tmp_path / "a.gguf")) as checkpoint:
        assert checkpoint.architecture == architecture
        assert set(checkpoint.weights.names()) == set(golden["tensors"])
        for tensor, shape in golden["tensors"].items():
            assert checkpoint.weights.info(tensor).shape == tuple(shape)
        config = dict(checkpoint.config)
    folds = FOLDED.get(architecture, set())
    assert {key for key in folds if config.pop(key)} == folds
    expected = {k: v for k, v in golden["config"].items() if k not in NEUTRAL}
    if "attn_config" in expected:
        kept = ("alibi", "alibi_bias_max", "clip_qkv", "qk_ln")
        expected["attn_config"] = {key: expected["attn_config"][key] for key in kept}
        expected["attn_config"]["alibi_bias_max"] = 8.0
    if expected.get("n_inner", 1) is None:
        expected["n_inner"] = 4 * expected["n_embd"]
    if expected.get("rope_parameters", {}).get("partial_rotary_factor") == 1.0:
        del expected["rope_parameters"]["partial_rotary_factor"]
    wrong = {
        key: (config.get(key, "absent"), value)
        for key, value in expected.items()
        if not close(config.get(key, "absent"), value)
    }
    if name == "phi3":  # without scaling the original length means nothing
        wrong.pop("original_max_position_embeddings", None)
    if name == "smollm3":  # a file cannot choose the layers; every fourth of a real one is bare
        assert wrong.pop("no_rope_layers") == ([1, 1, 1], [1, 1, 0])
    assert not wrong


def test_attention_biases_are_seen(tmp_path: Path) -> None:
    file = llama()
    assert open_checkpoint(file.write(tmp_path / "a.gguf")).config["attention_bias"] is False
    file.add("blk.0.attn_q.bias", np.ones(32, np.float32))
    assert open_checkpoint(file.write(tmp_path / "b.gguf")).config["attention_bias"] is True


def test_folded_llama3_frequencies_become_longrope(tmp_path: Path) -> None:
    file = llama()
    factors = np.array([1.0, 1.5, 4.0, 8.0], np.float32)
    file.add("rope_freqs.weight", factors)
    with open_checkpoint(file.write(tmp_path / "a.gguf")) as checkpoint:
        assert checkpoint.config["rope_parameters"] == {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "long_factor": [1.0, 1.5, 4.0, 8.0],
            "short_factor": [1.0, 1.5, 4.0, 8.0],
            "original_max_position_embeddings": 128,
            "attention_factor": 1.0,
        }
        assert not [name for name in checkpoint.weights.names() if "rope" in name]
    file.add("rope_freqs.weight", factors[:3])
    with pytest.raises(CheckpointError, match=r"shape \(3,\); allowed: f32 of shape \(4,\)"):
        open_checkpoint(file.write(tmp_path / "b.gguf"))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"type": ("str", "linear"), "factor": ("f32", 4.0)}, {"rope_type": "linear", "factor": 4}),
        ({"type": ("str", "none"), "factor": ("f32", 1.0)}, {"rope_type": "default"}),
        ({"factor": ("f32", 2.0)}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "type": ("str", "yarn"), "factor": ("f32", 4.0), "attn_factor": ("f32", 2.0),
                "original_context_length": ("u32", 32), "yarn_beta_fast": ("f32", 16.0),
            },
            # YaRN's own factor is 0.1 ln(4) + 1, which the file's multiplies
            {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                "attention_factor": 2 * (0.1 * math.log(4.0) + 1), "beta_fast": 16.0,
            },
        ),
    ],
)  # fmt: skip
def test_rope_scalings(
    tmp_path: Path, keys: dict[str, tuple[str, Any]], expected: dict[str, Any]
) -> None:
    file = llama()
    file.metadata |= {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    config = open_checkpoint(file.write(tmp_path / "a.gguf")).config
    assert config["rope_parameters"] == {"rope_theta": 10000.0, **expected}


def test_a_window_makes_a_mistral(tmp_path: Path) -> None:
    file = llama()
    file.metadata["llama.attention.sliding_window"] = ("u32", 64)
    config = open_checkpoint(file.write(tmp_path / "a.gguf")).config
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 64)
