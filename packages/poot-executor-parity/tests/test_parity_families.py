"""Whole tiny models on every device against transformers; the data are those of poot-models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from poot_core import Settings
from poot_executor import EngineOptions, StepInputs, open_engine
from poot_load import open_checkpoint
from poot_models import load_family
from poot_test_util import device_parameters

DATA = Path(__file__).parents[2] / "poot-models" / "tests" / "data"
NAMES = sorted(folder.name for folder in DATA.iterdir()) if DATA.is_dir() else []
QUICK = {"llama", "gemma3", "gpt2"}  # rotary, windows and caps, learned positions
TOLERANCE = 2e-4  # of the root mean square of the logits
CLEAR = 1e-3  # a margin below this may go either way
BLOCK, BLOCKS = 16, 4  # 64 tokens: as many as phi3-longrope takes with its short factors


def step(tokens: list[int], first: int) -> StepInputs:
    """Return the step of one sequence's next tokens, all of whose logits are wanted."""
    positions = np.arange(first, first + len(tokens), dtype=np.int32)
    table = np.array([[3, 1, 0, 2]], np.int32)
    return StepInputs(
        token_ids=np.array(tokens, np.int32),
        positions=positions,
        rows=np.zeros(len(tokens), np.int32),
        sequence_lengths=np.array([first + len(tokens)], np.int32),
        block_tables=table,
        slot_mapping=table[0, positions // BLOCK] * BLOCK + positions % BLOCK,
        logit_positions=np.arange(len(tokens), dtype=np.int32),
    )


def cases() -> list[object]:
    return [
        pytest.param(name, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name in NAMES
    ]


@pytest.mark.skipif(not NAMES, reason="the data of poot-models are not here")
@pytest.mark.parametrize("device", device_parameters())
@pytest.mark.parametrize("name", cases())
def test_logits_and_greedy_tokens_of_a_family(device: str, name: str) -> None:
    expected = json.loads((DATA / name / "expected.json").read_text())
    prompt, bound = expected["prompt"], TOLERANCE * expected["logits_rms"]
    with open_checkpoint(DATA / name) as checkpoint:
        model = load_family(checkpoint)
        options = EngineOptions(
            backend=device, precision="f32", context_tokens=BLOCK * BLOCKS, max_sequences=2,
            max_step_tokens=32, block_size=BLOCK, num_blocks=BLOCKS,
        )  # fmt: skip
        engine = open_engine(
            model.trace, model.cache_key, checkpoint.weights, model.vocab_size, options,
            Settings.from_environment(),
        )  # fmt: skip
        try:
            engine.forward(step(prompt, 0))
            logits = engine.logits().copy()
            np.testing.assert_allclose(logits[16], expected["mid_logits_16"], atol=bound, rtol=0)
            np.testing.assert_allclose(logits[-1], expected["last_logits"], atol=bound, rtol=0)
            found = int(engine.greedy()[-1])
            for number, (token, margin) in enumerate(
                zip(expected["greedy"], expected["greedy_margins"], strict=True)
            ):
                if margin > CLEAR:
                    assert found == token
                engine.forward(step([token], len(prompt) + number))
                found = int(engine.greedy()[0])
        finally:
            engine.close()
