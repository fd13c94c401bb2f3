"""Planned programs, run by the NumPy meaning of their kernels, against the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_decoder import OPTIONS, make, some_rows, step_of

from poot_core import DeviceError, Settings, SettingsError, ShapeError, Target
from poot_executor import PlanOptions, compile_graph, open_engine, trace_options
from poot_executor._device_runner import DeviceRunner
from poot_executor._program_engine import ProgramEngine
from poot_executor._reference_device import ReferenceDevice, reference_table

# Both compute in f32; sums associate differently. Relative to the root mean square of the logits.
F32_TOLERANCE = 2e-5

MODELS = {
    "llama": {},
    "untied bf16": {"formats": ("bf16",), "tied": False},
    "qwen2 biases": {"bias": True},
    "phi fused": {"fused_qkv": True, "mlp": "fused"},
    "gpt2": {
        "norm": "layer", "mlp": "plain", "bias": True, "fused_qkv": True, "transposed": True,
        "positions": "learned", "kv_heads": 4,
    },
    "gemma": {"post_norms": True, "softcap": 5.0, "window": 7, "layers": 3},
    "alibi": {"positions": "alibi", "norm": "layer"},
    "parallel interleaved": {"parallel": True, "interleaved": True, "mlp": "plain"},
    "granite": {"residual_scale": 0.22},
    "sinks": {"sinks": True, "window": 9},
    "packed": {"formats": ("Q4_1", "Q8_0")},
    "mixed packed": {
        "formats": ("Q4_K", "Q6_K"), "width": 256, "inner": 256, "heads": 4, "head_dim": 64,
        "tied": False,
    },
}  # fmt: skip
STEPS = [[9, 1, 17], [1, 1, 1], [1, 5, 1], [20, 1, 1], [1, 1, 1]]


def opened(model, backend, **changes):
    options = replace(OPTIONS, backend=backend, **changes)
    graph = model.trace  # traced inside, with the options of the engine
    source = model.weights
    if backend == "oracle":
        source = type("Dense", (), {"raw": source.array, "release": source.release})()
    return open_engine(graph, "tiny", source, model.tiny.vocab, options, Settings())


@pytest.mark.parametrize("name", MODELS)
def test_a_planned_step_is_the_graph(name):
    model = make(**MODELS[name])
    planned, oracle = opened(model, "reference"), opened(model, "oracle")
    rows, again = some_rows(), some_rows()
    for counts in STEPS:
        planned.forward(step_of(rows, counts))
        oracle.forward(step_of(again, counts))
        expected = oracle.logits()
        scale = np.sqrt(np.mean(expected**2))
        assert np.abs(planned.logits() - expected).max() <= F32_TOLERANCE * scale
        assert planned.greedy().tolist() == expected.argmax(-1).tolist()
        assert planned.step_faults() == {}
    planned.close()


@pytest.mark.parametrize("formats", [("Q4_1", "Q8_0"), ("Q5_0",), ("bf16",)])
def test_rounded_activations_stay_near_the_oracle(formats):
    model = make(formats=formats, tied=False)
    rough, oracle = opened(model, "reference", precision="auto"), opened(model, "oracle")
    rows, again = some_rows(), some_rows()
    for counts in STEPS[:3]:
        rough.forward(step_of(rows, counts))
        oracle.forward(step_of(again, counts))
        expected = oracle.logits()
        scale = np.sqrt(np.mean(expected**2))
        # 8 bits a block of 32 lose about 0.6% in each of some ten products in a row.
        error = np.sqrt(np.mean((rough.logits() - expected) ** 2))
        assert 0 < error <= 0.03 * scale


def test_residuals_of_outliers_bring_the_oracle_nearer():
    model = make(formats=("Q4_1", "Q8_0"))
    errors = []
    for outliers in (None, (2.0, 2.0, 2.0)):
        graph = model.trace(trace_options(OPTIONS))
        options = PlanOptions(
            max_tokens=64, max_logits=64, context_tokens=64, outliers=outliers, check=True
        )
        device = ReferenceDevice(Target.parse("cpu:x86-64"))
        program = compile_graph(graph, device.target, options)
        runner = DeviceRunner(device, program, reference_table(program), model.weights, OPTIONS)
        engine = ProgramEngine(program, runner, OPTIONS, backend="reference", device="")
        engine.forward(step_of(some_rows(), [9, 1, 17]))
        oracle = opened(model, "oracle")
        oracle.forward(step_of(some_rows(), [9, 1, 17]))
        errors.append(np.sqrt(np.mean((engine.logits() - oracle.logits()) ** 2)))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("precision", ["f32", "auto"])
def test_a_row_gets_the_same_bits_alone_and_among_others(precision):
    model = make(formats=("Q4_1", "Q8_0"), window=7)
    together = opened(model, "reference", precision=precision)
    rows = some_rows()
    seen = [[], [], []]
    for counts in STEPS:
        together.forward(step_of(rows, counts))
        for number, logits in enumerate(together.logits()):
            seen[number].append((rows[number].computed, logits.copy()))
    chunks = [[10, 21, 1], [1] * 9, [2, 16, 3]]
    for number in range(3):
        alone = opened(model, "reference", precision=precision)
        row = some_rows()[number]
        found = {}
        for count in chunks[number]:
            alone.forward(step_of([row], [count]))
            found[row.computed] = alone.logits()[0].copy()
        shared = [(done, bits) for done, bits in seen[number] if done in found]
        assert len(shared) >= 2
        for done, bits in shared:
            np.testing.assert_array_equal(found[done], bits)


def test_a_step_may_want_no_logits():
    model = make(formats=("Q8_0",))
    engine, whole = (opened(model, "reference", precision="auto") for _ in range(2))
    row, again = some_rows()[0], some_rows()[0]
    step = step_of([row], [9])
    engine.forward(replace(step, logit_positions=step.logit_positions[:0]))
    assert engine.logits().shape == (0, 320)
    assert engine.greedy().shape == (0,)
    engine.forward(step_of([row], [4]))
    whole.forward(step_of([again], [13]))
    np.testing.assert_array_equal(engine.logits(), whole.logits())


def test_pages_are_dropped_behind_what_is_laid_out():
    model = make()
    opened(model, "reference").close()
    matrices = {name for name, array in model.weights.stored.items() if array.ndim == 2}
    assert set(model.weights.released) == matrices


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_tables": np.full((1, 8), 24, np.int32)}, "block outside of 0..23"),
        ({"positions": np.full(3, -1, np.int32)}, "position lies outside"),
        ({"token_ids": np.zeros(0, np.int32)}, "does not fit an engine"),
        ({"token_ids": np.zeros(65, np.int32)}, "does not fit an engine"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(change, message):
    engine = opened(make(), "reference")
    with pytest.raises(ShapeError, match=message):
        engine.forward(replace(step_of(some_rows()[:1], [3]), **change))


def test_a_closed_engine_says_so():
    engine = opened(make(), "reference")
    engine.close()
    engine.close()
    with pytest.raises(DeviceError, match="closed"):
        engine.forward(step_of(some_rows()[:1], [3]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": "f16"}, "must be 'auto' or 'f32'"),
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"max_step_tokens": 2}, "less than the 4 sequences"),
    ],
)
def test_options_that_make_no_sense_are_refused(change, message):
    with pytest.raises(SettingsError, match=message):
        opened(make(), "reference", **change)


def test_an_unknown_backend_names_those_that_there_are():
    with pytest.raises(
        SettingsError, match=r"no backend 'tpu' is installed; there are auto, .*oracle"
    ):
        opened(make(), "tpu")


def test_tokens_out_of_range_are_told_by_row():
    model = make()
    engine = opened(model, "reference")
    rows = some_rows()
    rows[1].tokens[0] = 320
    engine.forward(step_of(rows, [3, 2, 1]))
    assert list(engine.step_faults()) == [1]
    assert engine.step_faults() == {}
