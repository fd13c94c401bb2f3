"""The three real checkpoints on every device: greedy answers against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poot_llm import LLM, SamplingParams
from poot_test_util import device_parameters, require_model

pytestmark = pytest.mark.checkpoint
DATA = Path(__file__).parent / "data" / "real"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", device_parameters())
def test_greedy_answers_of_the_device_follow_the_reference_where_it_is_clear(device, name) -> None:
    expected = json.loads((DATA / f"{name}.json").read_text())
    path = require_model(expected["model_file"])
    cases = list(expected["cases"].values())
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    with LLM(path, backend=device, precision="f32", context=128) as llm:
        outputs = llm.generate([case["prompt_ids"] for case in cases], params)
    for case, output in zip(cases, outputs, strict=True):
        assert len(output.output_ids) == 16
        pairs = zip(output.output_ids, case["output_ids"], case["margins"], strict=False)
        for got, wanted, margin in pairs:
            if got != wanted:
                assert margin <= 0.05, (case["prompt"], margin)
                break
