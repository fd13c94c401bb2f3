"""Decode of a tiny model of random weights: what a step costs beside its arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from poot_llm import LLM, SamplingParams

MODEL = Path(__file__).parents[2] / "packages" / "poot-llm" / "tests" / "data" / "llama"
TOKENS = 32
PROMPT = list(range(3, 19))


@pytest.mark.parametrize("backend", ["oracle", "reference", "cpu"])
def test_decode(benchmark, backend: str) -> None:
    """Generate 32 tokens after 16; divide by 32 for the cost of a step."""
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(MODEL, backend=backend, context=128) as llm:
        [output] = benchmark(lambda: llm.generate([PROMPT], params))
    assert len(output.output_ids) == TOKENS
