"""The three real checkpoints (POOT_MODELS_DIR) against transformers: ids, templates, greedy answers.

The data are prompts, ids and top-two margins of transformers 5.24 in f32 on the same files.
"""

import json
from pathlib import Path

import pytest

from poot_core import UnsupportedError
from poot_llm import LLM, SamplingParams, open_text
from poot_test_util import require_model

pytestmark = pytest.mark.checkpoint
DATA = Path(__file__).parent / "data" / "real"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))


def golden(name: str) -> tuple[dict, Path]:
    expected = json.loads((DATA / f"{name}.json").read_text())
    path = require_model(expected["model_file"])
    return expected, path


@pytest.mark.parametrize("name", NAMES)
def test_prompts_and_templates_give_the_reference_ids(name) -> None:
    expected, path = golden(name)
    tokenizer = open_text(path).tokenizer
    for case, given in expected["cases"].items():
        if case != "chat":
            assert tokenizer.encode(given["prompt"]) == given["prompt_ids"], case
        text = tokenizer.decode(given["output_ids"], skips_special=False, continues=True)
        assert text == given["text"], case
    if expected["has_chat_template"]:
        chat = tokenizer.chat_ids(expected["chat_messages"])
        assert chat == expected["cases"]["chat"]["prompt_ids"]
    else:
        with pytest.raises(UnsupportedError, match="no chat template"):
            tokenizer.chat_ids(expected["chat_messages"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("backend", "count"),
    [pytest.param("oracle", 4, marks=pytest.mark.slow), pytest.param("auto", 24)],
)
def test_greedy_answers_follow_the_reference_where_it_is_clear(name, backend, count) -> None:
    expected, path = golden(name)
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    with LLM(path, backend=backend, precision="f32", context=128) as llm:
        cases = list(expected["cases"].values())
        together = llm.generate([case["prompt_ids"] for case in cases], params)
        alone = llm.generate([cases[0]["prompt_ids"]], params)[0]
    assert alone.output_ids == together[0].output_ids
    for case, output in zip(cases, together, strict=True):
        pairs = zip(output.output_ids, case["output_ids"], case["margins"], strict=False)
        for got, wanted, margin in pairs:
            if got != wanted:
                assert margin <= 0.05, (case["prompt"], margin)
                break


@pytest.mark.parametrize("name", NAMES)
def test_chat_follows_the_reference_at_the_fastest_precision(name) -> None:
    expected, path = golden(name)
    case = expected["cases"]["chat"]
    params = SamplingParams(temperature=0.0, max_tokens=24)
    with LLM(path, context=128) as llm:
        [output] = llm.generate([case["prompt_ids"]], params)
    for got, wanted, margin in zip(
        output.output_ids, case["output_ids"], case["margins"], strict=False
    ):
        if got != wanted:
            assert margin <= 0.5, margin
            break
