"""What each runner starts, and what it reads from documents of the form that the engines print."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.harness.manifest import Cell, Engine, Model, Scenario
from benchmarks.harness.runners import RUNNERS, NotOffered

MODEL = Path("/models/small.gguf")


def cell(runner: str, kind: str = "bench", read_mb: float | None = None, **fields) -> Cell:
    return Cell(
        Model(name="small", file="small.gguf", read_mb=read_mb),
        Engine(name=runner, runner=runner, options=("--extra",)),
        Scenario(name="it", kind=kind, **fields),
    )


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("llama-bench", "llama-server", "llama-completion"):
        (tmp_path / name).touch()
    monkeypatch.setenv("POOT_LLAMA_BENCH", str(tmp_path / "llama-bench"))
    monkeypatch.delenv("POOT_LLAMA_SERVER", raising=False)
    return tmp_path


def test_poot_bench() -> None:
    plan = RUNNERS["poot"].plan(
        cell("poot", read_mb=100.0, prefill=512, decode=128, threads=2), MODEL, 1
    )
    text = " ".join(plan.command)
    assert "bench /models/small.gguf --repeat 1 --json --extra --threads 2" in text
    assert "--prefill 512 --decode 128 --depth 0 --batch 1" in text
    printed = {"prefill_tok_s": 1900.0, "decode_tok_s": 300.0, "read_gb_s": 40.0, "samples": {}}
    assert plan.parse(json.dumps(printed)) == {
        "prefill_tok_s": 1900.0, "decode_tok_s": 300.0, "read_gb_s": 40.0, "read_share": 0.75,
    }  # fmt: skip


def test_poot_reports_what_was_asked_for_alone() -> None:
    plan = RUNNERS["poot"].plan(cell("poot", read_mb=100.0, decode=32, depth=4096), MODEL, 1)
    printed = {"prefill_tok_s": 9.0, "decode_tok_s": 150.0, "read_gb_s": None}
    assert plan.parse(json.dumps(printed)) == {"decode_tok_s": 150.0}


def test_poot_server_and_start() -> None:
    serving = RUNNERS["poot"].plan(cell("poot", "serve", clients=8, decode=64), MODEL, 8123)
    assert serving.url == "http://127.0.0.1:8123"
    assert "--max-sequences 8" in " ".join(serving.command)
    start = RUNNERS["poot"].plan(cell("poot", "start"), MODEL, 1)
    assert "--max-tokens 1" in " ".join(start.command)


def test_llama_bench(llama: Path) -> None:
    wanted = cell("llama_cpp", prefill=512, decode=128, depth=64, threads=3)
    plan = RUNNERS["llama_cpp"].plan(wanted, MODEL, 1)
    assert plan.command[0] == str(llama / "llama-bench")
    assert " ".join(plan.command[1:]) == (
        "-m /models/small.gguf -t 3 --extra -r 1 -o json -p 512 -n 128 -d 64"
    )
    printed = [
        {"n_prompt": 512, "n_gen": 0, "n_depth": 64, "avg_ts": 320.5},
        {"n_prompt": 0, "n_gen": 128, "n_depth": 64, "avg_ts": 140.25},
    ]
    assert plan.parse(json.dumps(printed)) == {"prefill_tok_s": 320.5, "decode_tok_s": 140.25}


def test_llama_takes_the_cores_that_it_may_use(llama: Path) -> None:
    command = RUNNERS["llama_cpp"].plan(cell("llama_cpp", decode=8), MODEL, 1).command
    assert command[command.index("-t") + 1] == str(len(os.sched_getaffinity(0)))


def test_llama_programs_beside(llama: Path) -> None:
    serving = RUNNERS["llama_cpp"].plan(cell("llama_cpp", "serve", clients=4), MODEL, 8123)
    assert serving.command[0] == str(llama / "llama-server")
    assert " ".join(serving.command).endswith("--port 8123 -np 4")
    start = RUNNERS["llama_cpp"].plan(cell("llama_cpp", "start"), MODEL, 1)
    assert start.command[0] == str(llama / "llama-completion")
    (llama / "llama-completion").unlink()
    with pytest.raises(NotOffered, match="llama-completion or llama-cli beside llama-bench"):
        RUNNERS["llama_cpp"].plan(cell("llama_cpp", "start"), MODEL, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decode": 8, "batch": 8}, "decodes one sequence"),
        ({"kind": "start", "empty_cache": True}, "keeps no cache"),
    ],
)
def test_what_llama_does_not_offer(llama: Path, fields: dict, message: str) -> None:
    with pytest.raises(NotOffered, match=message):
        RUNNERS["llama_cpp"].plan(cell("llama_cpp", **fields), MODEL, 1)


def test_llama_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOT_LLAMA_BENCH", "/nowhere/llama-bench")
    with pytest.raises(NotOffered, match="POOT_LLAMA_BENCH names no llama-bench"):
        RUNNERS["llama_cpp"].version()


def test_torch_is_a_script_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    plan = RUNNERS["torch"].plan(cell("torch", prefill=16, decode=4, threads=1), MODEL, 1)
    assert plan.command[:3] == ["uv", "run", "--script"]
    assert Path(plan.command[3]).read_text().startswith("# /// script\n")
    assert plan.parse('a warning\n{"decode_tok_s": 3}\n') == {"decode_tok_s": 3.0}
    with pytest.raises(NotOffered, match="one sequence alone"):
        RUNNERS["torch"].plan(cell("torch", "serve", clients=2), MODEL, 1)
