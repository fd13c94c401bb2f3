"""Reading rotary settings in both forms, and refusing what poot does not implement."""

from __future__ import annotations

from typing import Any

import pytest

from poot_core import CheckpointError
from poot_models._decoder import read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import frequencies
from poot_models.components.rope_config import Rope, read_rope, read_rope_by_layer_type

SIZES = {
    "vocab_size": 32, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2,
}  # fmt: skip


def rope(max_context: int = 8192, **config: Any) -> Rope:
    reader = ConfigReader(config, family="test")
    decoder, made = read_rope(
        reader, read_decoder(ConfigReader(SIZES, family="test"), max_context=max_context)
    )
    reader.finish()
    assert decoder.max_context == made.max_context
    return made


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


def test_both_forms_mean_the_same() -> None:
    new = rope(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    old = rope(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3})
    older = rope(rope_theta=5e5, rope_scaling={"type": "llama3", **LLAMA3})
    assert new == old == older
    assert new.short == frequencies.llama3(
        64, 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=1024
    )


def test_nothing_said_is_the_default() -> None:
    assert rope().short == frequencies.default(64, 10000.0)
    assert rope(rope_scaling=None, rope_theta=100.0).short == frequencies.default(64, 100.0)


def test_partial_rotation() -> None:
    made = rope(partial_rotary_factor=0.25)
    assert made.rotary_dim == 16
    assert made.short == frequencies.default(16, 10000.0)


def test_yarn_stretches_the_context_from_the_original_one() -> None:
    made = rope(rope_scaling={"type": "yarn", "factor": 4.0}, max_context=2048)
    assert made.max_context == 8192
    named = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert rope(rope_scaling=named, max_context=2048).max_context == 2048


def test_longrope_is_chosen_by_the_context_of_the_engine() -> None:
    scaling = {"type": "su", "short_factor": [1.0] * 32, "long_factor": [4.0] * 32}
    made = rope(rope_scaling=scaling, original_max_position_embeddings=4096, max_context=131072)
    assert made.frequencies(4096) == made.short
    assert made.frequencies(4097) == made.long
    assert made.short.inverse[0] == 1.0
    assert made.long is not None
    assert made.long.inverse[0] == 0.25


def test_dynamic_scaling_is_plain_within_the_context_and_ends_there() -> None:
    made = rope(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert made.short == frequencies.default(64, 10000.0)
    assert made.max_context == 8192


def test_one_rotation_for_each_layer_type() -> None:
    theta = {"full_attention": 1e6, "sliding_attention": 1e4}
    old: dict[str, Any] = {
        "rope_theta": 2e6,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }
    }
    made = []
    for config in (old, new):
        reader = ConfigReader(config, family="test")
        made.append(read_rope_by_layer_type(reader, head_dim=64, max_context=8192, theta=theta))
        reader.finish()
    assert made[0] == made[1]
    assert made[0]["full_attention"].short == frequencies.linear(64, 2e6, factor=8.0)
    assert made[0]["sliding_attention"].short == frequencies.default(64, 2e4)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"type": "axial"}}, "'rope_scaling.rope_type' .* 'axial'.*llama3"),
    ({"rope_parameters": {"rope_type": "linear"}}, "'rope_parameters.factor'"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}, "mrope_section"),
    ({"rope_parameters": {"factor": 4.0}}, "'rope_parameters.factor'.*no such key"),
    ({"rope_scaling": {"type": "linear", "factor": -1.0}}, "'rope_scaling.factor' .*positive"),
    ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "'rope_scaling.factor'"),
    ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "rope_type"),
    ({"rope_scaling": [1, 2]}, "'rope_scaling' .*a dictionary"),
    ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
    ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 32}}, "long_factor"),
    (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0]}},
        "short_factor.*32 positive numbers",
    ),
    (
        {"rope_scaling": {"type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
        "high_freq_factor.*more than low_freq_factor",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"factor": 3.0}},
        "'rope_scaling' .*'rope_parameters' is given too",
    ),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_refuses_what_it_does_not_implement(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        rope(**config)
