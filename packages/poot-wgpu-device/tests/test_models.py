"""Whole tiny models of every family on this device, against transformers in f32.

The checkpoints and what transformers said of them are those of poot-models' tests.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

llm_package = pytest.importorskip("poot_llm", reason="needs the workspace")
LLM, SamplingParams = llm_package.LLM, llm_package.SamplingParams
pytestmark = pytest.mark.device
DATA = Path(__file__).parents[2] / "poot-models" / "tests" / "data"
NAMES = sorted(folder.name for folder in DATA.glob("*") if folder.is_dir())
TOLERANCE = 2e-4  # of the root mean square of the logits
CLEAR = 1e-3  # a margin below this may go either way


def greedy(count):
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)


def check_greedy(got, expected):
    pairs = zip(got, expected["greedy"], expected["greedy_margins"], strict=False)
    for ours, theirs, margin in pairs:
        if ours != theirs:
            assert margin <= CLEAR
            return


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens_are_the_reference_ones(name):
    expected = json.loads((DATA / name / "expected.json").read_text())
    prompt = expected["prompt"]
    with LLM(DATA / name, backend="wgpu", precision="f32") as llm:
        logits = llm.logits(prompt)
        bound = TOLERANCE * expected["logits_rms"]
        np.testing.assert_allclose(logits[-1], expected["last_logits"], atol=bound, rtol=0)
        np.testing.assert_allclose(logits[16], expected["mid_logits_16"], atol=bound, rtol=0)
        [alone] = llm.generate([prompt], greedy(len(expected["greedy"])))
        check_greedy(alone.output_ids, expected)


def test_other_sequences_and_chunks_change_no_token_and_no_bit():
    expected = json.loads((DATA / "llama" / "expected.json").read_text())
    prompt = expected["prompt"]
    with LLM(DATA / "llama", backend="wgpu", precision="f32") as llm:
        logits = llm.logits(prompt)
        [alone] = llm.generate([prompt], greedy(24))
        among = llm.generate([[7, 8, 9], prompt, [1] * 40], greedy(24))
    assert among[1].output_ids == alone.output_ids
    check_greedy(alone.output_ids, expected)
    options = {"precision": "f32", "max_step_tokens": 7, "max_sequences": 2}
    with LLM(DATA / "llama", backend="wgpu", **options) as llm:
        chunked = llm.logits(prompt)
        [again] = llm.generate([prompt], greedy(24))
    assert again.output_ids == alone.output_ids
    np.testing.assert_array_equal(chunked, logits)
