"""Whole tiny models through the device class in simulation, against transformers in f32.

The checkpoints and what transformers said of them are those of poot-models' tests.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from poot_llm import LLM, SamplingParams

pytestmark = pytest.mark.sim
DATA = Path(__file__).parents[2] / "poot-models" / "tests" / "data"
TOLERANCE = 2e-4  # of the root mean square of the logits
CLEAR = 1e-3  # a margin below this may go either way
SMALL = {"precision": "f32", "max_step_tokens": 32, "max_sequences": 2}


def greedy(count):
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)


def expected_of(name):
    return json.loads((DATA / name / "expected.json").read_text())


def check_greedy(got, expected):
    pairs = zip(got, expected["greedy"], expected["greedy_margins"], strict=False)
    for ours, theirs, margin in pairs:
        if ours != theirs:
            assert margin <= CLEAR
            return


@pytest.mark.parametrize(("arch", "name"), [("gfx1100", "llama"), ("gfx942", "llama")])
def test_golden_tokens(simulated, arch, name):
    opened = simulated(arch)
    expected = expected_of(name)
    prompt = expected["prompt"]
    with LLM(DATA / name, backend="rocm", **SMALL) as llm:
        logits = llm.logits(prompt)
        bound = TOLERANCE * expected["logits_rms"]
        np.testing.assert_allclose(logits[-1], expected["last_logits"], atol=bound, rtol=0)
        np.testing.assert_allclose(logits[16], expected["mid_logits_16"], atol=bound, rtol=0)
        [found] = llm.generate([prompt], greedy(len(expected["greedy"])))
    check_greedy(found.output_ids, expected)
    assert opened[-1].executed > 0


@pytest.mark.parametrize("precision", ["f32", "auto"])
def test_chunks_of_a_prompt_and_other_sequences_change_no_bit(simulated, precision):
    """Products by lanes, and on matrix instructions."""
    simulated("gfx1100")
    prompt = expected_of("llama")["prompt"]
    found = []
    for most, others in ((32, []), (7, [[5, 9, 2]])):
        options = {**SMALL, "precision": precision, "max_step_tokens": most}
        with LLM(DATA / "llama", backend="rocm", **options) as llm:
            answers = llm.generate([*others, prompt], greedy(4))
            found.append((llm.logits(prompt), answers[-1].output_ids))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
