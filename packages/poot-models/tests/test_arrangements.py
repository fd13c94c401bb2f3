"""Weights that a GGUF converter arranges differently give the same logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_models import Runner, Tiny, read_expected, read_tiny


def logits_of(checkpoint: Tiny, name: str) -> np.ndarray:
    return Runner(checkpoint).step(read_expected(name)["prompt"], [28])[0]


def check(name: str, changed: Tiny) -> None:
    expected = read_expected(name)
    bound = 2e-4 * expected["logits_rms"]
    np.testing.assert_allclose(
        logits_of(changed, name), expected["last_logits"], atol=bound, rtol=0
    )


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order rows so that the two halves of each head alternate, as the llama converter does."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(weight.shape)


def test_interleaved_rows_of_queries_and_keys() -> None:
    tiny = read_tiny("llama")
    changes: dict[str, Any] = {}
    for key, array in tiny.weights.arrays.items():
        if "q_proj" in key or "k_proj" in key:
            changes[key] = interleave(array, 4 if "q_proj" in key else 2)
    check("llama", tiny.with_tensors(changes).with_config(rope_interleaved=True))


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_norm_weights_that_hold_the_offset(name: str) -> None:
    tiny = read_tiny(name)
    changes = {
        key: array.astype(np.float32) + np.float32(1)
        for key, array in tiny.weights.arrays.items()
        if key.endswith("norm.weight")
    }
    check(name, tiny.with_tensors(changes).with_config(norm_offset_folded=True))


@pytest.mark.parametrize("name", ["gpt-neox", "bloom"])
def test_fused_projections_by_part(name: str) -> None:
    tiny = read_tiny(name)
    changes = {
        key: np.concatenate(array.reshape(4, 3, 16, *array.shape[1:]).swapaxes(0, 1)).reshape(
            array.shape
        )
        for key, array in tiny.weights.arrays.items()
        if "query_key_value" in key
    }
    check(name, tiny.with_tensors(changes).with_config(qkv_concatenated=True))


def test_transposed_projections_of_gpt2() -> None:
    tiny = read_tiny("gpt2")
    changes = {
        key: np.ascontiguousarray(array.T)
        for key, array in tiny.weights.arrays.items()
        if array.ndim == 2 and ".h." in key
    }
    check("gpt2", tiny.with_tensors(changes).with_config(linear_transposed=True))


def test_divisors_of_a_llama3_scaling_as_a_longrope() -> None:
    # What poot-load makes of a GGUF's rope_freqs tensor: equal factors, attention factor 1.
    tiny = read_tiny("llama-rope3")
    old = tiny.config["rope_parameters"]
    theta, dim, original = old["rope_theta"], 32, old["original_max_position_embeddings"]
    factors = []
    for pair in range(dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * pair / dim)
        if wavelength < original / old["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > original / old["low_freq_factor"]:
            factors.append(old["factor"])
        else:
            smooth = (original / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / old["factor"] + smooth))
    rope = {
        "rope_type": "longrope",
        "rope_theta": theta,
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": 512,
    }
    check("llama-rope3", tiny.with_config(rope_parameters=rope))


@pytest.mark.parametrize(("name", "prefix"), [("gpt2", "transformer."), ("bloom", "transformer.")])
def test_names_without_the_prefix_of_the_body(name: str, prefix: str) -> None:
    tiny = read_tiny(name)
    changes: dict[str, Any] = {}
    for key, array in tiny.weights.arrays.items():
        changes |= {key: None, key.removeprefix(prefix): array}
    check(name, tiny.with_tensors(changes))


def test_the_text_model_of_a_multimodal_gemma3() -> None:
    tiny = read_tiny("gemma3")
    changes: dict[str, Any] = {"vision_tower.embeddings.weight": np.ones((4, 4), np.float32)}
    for key, array in tiny.weights.arrays.items():
        changes |= {key: None, "language_model." + key: array}
    nested = Tiny({"model_type": "gemma3", "text_config": tiny.config}, tiny.weights)
    check("gemma3", nested.with_tensors(changes))
