"""A tiny checkpoint through loader, family, engine and driver, against transformers in f32.

``data/llama`` holds random weights, one prompt with logits, and 24 greedy ids with margins.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from llm_tokenizers import byte_level

from poot_core import CheckpointError, RequestError, UnsupportedError
from poot_llm import LLM, ContextLengthError, SamplingParams, open_text
from poot_llm._open_text import sampling_defaults
from poot_llm.cli import _run

CHECKPOINT = Path(__file__).parent / "data" / "llama"
EXPECTED = json.loads((CHECKPOINT / "expected.json").read_text())
TOLERANCE = 2e-4 * EXPECTED["logits_rms"]  # of f32 sums in another order
CLEAR = 1e-3  # a margin below this may go either way


@pytest.fixture(scope="module", params=["oracle", "cpu"])
def llm(request):
    with LLM(CHECKPOINT, backend=request.param, precision="f32") as llm:
        yield llm


def check_greedy(got: list[int]) -> None:
    for ours, theirs, margin in zip(
        got, EXPECTED["greedy"], EXPECTED["greedy_margins"], strict=False
    ):
        if ours != theirs:
            assert margin <= CLEAR
            return


def test_logits(llm) -> None:
    logits = llm.logits(EXPECTED["prompt"])
    assert logits.shape == (len(EXPECTED["prompt"]), 320)
    np.testing.assert_allclose(logits[-1], EXPECTED["last_logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(logits[16], EXPECTED["mid_logits_16"], atol=TOLERANCE, rtol=0)


def test_greedy_ids_alone_and_among_others(llm) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    [alone] = llm.generate([EXPECTED["prompt"]], params)
    assert alone.text is None
    check_greedy(alone.output_ids)
    among = llm.generate([[7, 8, 9], EXPECTED["prompt"], [1] * 40], params)
    check_greedy(among[1].output_ids)


@pytest.mark.parametrize(
    "kind",
    [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
        {"temperature": 1.1, "top_p": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    ],
)
def test_a_seed_gives_the_same_where_the_engine_and_where_the_host_samples(llm, kind) -> None:
    prompts = [EXPECTED["prompt"], [7, 8, 9], [1] * 40]
    answers = [
        [
            output.output_ids
            for output in llm.generate(
                prompts,
                SamplingParams(seed=5, max_tokens=24, ignore_eos=True, logprobs=where, **kind),
            )
        ]
        for where in (None, 0)  # log-probabilities need the logits on the host
    ]
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers[0]}) == 3


def test_chunks_of_a_prompt_do_not_matter() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with LLM(
        CHECKPOINT, backend="oracle", precision="f32", max_step_tokens=7, max_sequences=2
    ) as llm:
        check_greedy(llm.generate([EXPECTED["prompt"]], params)[0].output_ids)
        logits = llm.logits(EXPECTED["prompt"])
    np.testing.assert_allclose(logits[-1], EXPECTED["last_logits"], atol=TOLERANCE, rtol=0)


def test_refusals(llm) -> None:
    with pytest.raises(UnsupportedError, match="no tokenizer files"):
        llm.generate("text")
    with pytest.raises(ContextLengthError, match="600 tokens and the context holds 512"):
        llm.generate([1] * 600)
    with pytest.raises(RequestError, match="context is 100000; this model takes 1 to 512"):
        LLM(CHECKPOINT, backend="oracle", context=100000)
    with pytest.raises(RequestError, match="precision"):
        LLM(CHECKPOINT, backend="oracle", precision="f16")
    with pytest.raises(CheckpointError, match="nowhere"):
        LLM("nowhere.gguf", backend="oracle")


def test_commands(capsys) -> None:
    ids = ",".join(map(str, EXPECTED["prompt"]))
    arguments = ["--max-tokens", "8", "--ignore-eos", "--json", "--backend", "oracle"]
    arguments += ["--precision", "f32"]
    assert _run.run(["generate", str(CHECKPOINT), "--prompt-ids", ids, *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] is None
    check_greedy(document["output_ids"])
    assert _run.run(["show", str(CHECKPOINT), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["family"], facts["vocab_size"], facts["tokenizer"]) == ("llama", 320, None)
    assert _run.run(["show", str(CHECKPOINT)]) == 0
    assert "ids alone" in capsys.readouterr().out
    assert _run.run(["graph", str(CHECKPOINT), "--stage", "graph"]) == 0
    assert capsys.readouterr().out.startswith('graph "llama"')
    assert _run.run(["graph", str(CHECKPOINT), "--backend", "reference"]) == 0
    assert "input_layernorm" in capsys.readouterr().out
    assert _run.run(["graph", str(CHECKPOINT), "--backend", "oracle"]) == 1
    assert "without a plan" in capsys.readouterr().err.splitlines()[-1]
    assert _run.run(["kernels", str(CHECKPOINT), "--target", "ptx:sm_90a"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first == (
        f"ptx:sm_90a:mma-async+mma-k16: {len(rows)} kernels; stages python, ir, ptx, sass"
    )
    name = rows[0].split()[0]
    assert _run.run(["kernels", str(CHECKPOINT), name, "--target", "wgpu", "--stage", "wgsl"]) == 0
    assert "@compute" in capsys.readouterr().out
    assert _run.run(["kernels", str(CHECKPOINT), name, "--target", "vulkan", "--stage", "ptx"]) == 1
    assert "it has ir, spirv" in capsys.readouterr().err.splitlines()[-1]


def test_the_text_side_alone() -> None:
    text = open_text(CHECKPOINT)
    assert text.tokenizer is None
    assert text.sampling_defaults == {}
    config = {"temperature": 0.6, "top_k": 20, "do_sample": True, "top_p": None, "eos_token_id": 2}
    assert sampling_defaults(config) == {"temperature": 0.6, "top_k": 20}
    assert sampling_defaults(config | {"do_sample": False}) == {"temperature": 0.0}


@pytest.mark.parametrize("kind", ["bos", "eos"])
def test_an_end_that_is_no_token_of_the_tokenizer_is_refused(tmp_path, kind) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))  # 400 ids
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((CHECKPOINT / name).read_bytes())
    config = json.loads((CHECKPOINT / "config.json").read_text())
    config |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": -1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = open_text(tmp_path).tokenizer
    assert tokenizer is not None
    assert set(tokenizer.special_tokens) == {"bos_token", "eos_token"}  # -1 pads nothing
    (tmp_path / "config.json").write_text(json.dumps(config | {f"{kind}_token_id": 4711}))
    with pytest.raises(CheckpointError, match=rf"{kind}_token_id 4711, which is no token"):
        open_text(tmp_path)


@pytest.mark.parametrize("found", [[2, "x"], "x", True, {"a": 1}, 1.5])
def test_end_tokens_that_are_no_ids_are_refused(tmp_path, found) -> None:
    for file in CHECKPOINT.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": found}))
    with pytest.raises(CheckpointError, match=r"generation_config.json.*eos_token_id"):
        LLM(tmp_path, backend="oracle")
