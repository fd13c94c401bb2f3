"""A whole tiny model under the driver on this device; poot-executor-parity runs all families.

The checkpoint and what transformers said of it are those of poot-models' tests.
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
CLEAR = 1e-3  # a margin below this may go either way


def greedy(count):
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)


def check_greedy(got, expected):
    pairs = zip(got, expected["greedy"], expected["greedy_margins"], strict=False)
    for ours, theirs, margin in pairs:
        if ours != theirs:
            assert margin <= CLEAR
            return


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
