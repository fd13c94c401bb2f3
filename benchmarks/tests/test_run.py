"""Runs of small programs that stand in for engines: order, memory from outside, failures."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from benchmarks.harness.load import Answer, figures_of, run_clients, wait_until_ready
from benchmarks.harness.manifest import Cell, Engine, Model, Scenario
from benchmarks.harness.memory import MemorySampler, tree_bytes, tree_pids
from benchmarks.harness.record import read_records
from benchmarks.harness.run import run_cells
from benchmarks.harness.runners import NotOffered, Plan

linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc")
# A parent that holds little and a child that holds 96 MB for a while.
CHILD = "import time; x = b'x' * (96 << 20); time.sleep(0.6); print('{\"decode_tok_s\": 5.0}')"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


class Fake:
    """Runs a piece of Python as an engine."""

    def __init__(self, code: str) -> None:
        self.code = code

    def version(self) -> str:
        if not self.code:
            raise NotOffered("it is not here")
        return "fake 1"

    def plan(self, cell: Cell, model: Path, port: int) -> Plan:
        return Plan(
            command=[sys.executable, "-c", self.code],
            environment=dict(cell.engine.environment),
            parse=json.loads,
        )


def cells(*engines: str, kind: str = "bench") -> list[Cell]:
    model = Model(name="small", file="small.gguf")
    scenario = Scenario(name="decode", kind=kind, decode=8)
    return [Cell(model, Engine(name=name, runner=name), scenario) for name in engines]


def run(tmp_path: Path, runners: dict[str, Fake], *, kind: str = "bench", repeats: int = 2):
    (tmp_path / "small.gguf").touch()
    folder = run_cells(
        cells(*runners, kind=kind), runners, models=tmp_path, results=tmp_path / "results",
        repeats=repeats, hardware="test",
    )  # fmt: skip
    return folder, read_records(folder)


@linux
def test_engines_take_turns_and_memory_is_of_the_whole_tree(tmp_path: Path) -> None:
    folder, records = run(
        tmp_path, {"one": Fake(PARENT), "two": Fake("print('{\"decode_tok_s\": 4}')")}
    )
    assert [r.engine for r in records] == ["one", "two", "two", "one"]
    one = records[0].metrics
    assert one["decode_tok_s"] == 5.0
    assert 96e6 < one["peak_memory_bytes"] < 250e6
    assert folder.name.split("-", 3)[3].startswith("test-")
    assert {p.name for p in folder.iterdir()} == {
        "environment.json", "records.jsonl", "report.md", "plot.svg",
    }  # fmt: skip
    assert "fake 1" in (folder / "report.md").read_text()


def test_a_run_does_not_overwrite_another(tmp_path: Path) -> None:
    runners = {"two": Fake("print('{\"decode_tok_s\": 4}')")}
    folder, records = run(tmp_path, runners, repeats=1)
    with pytest.raises(FileExistsError, match="holds a run"):
        run(tmp_path, runners, repeats=2)
    assert read_records(folder) == records


def test_an_engine_that_fails_leaves_a_record(tmp_path: Path) -> None:
    code = f"import sys; sys.exit('no such thing in {tmp_path}/small.gguf')"
    _, records = run(tmp_path, {"one": Fake(code)}, repeats=1)
    assert records[0].failure == "ended with 1: no such thing in MODELS/small.gguf"
    assert records[0].metrics == {}


def test_what_prints_no_figures_is_a_failure(tmp_path: Path) -> None:
    _, records = run(tmp_path, {"one": Fake("print('nothing')")}, repeats=1)
    assert records[0].failure


def test_the_start_ends_with_the_first_output(tmp_path: Path) -> None:
    code = "import sys, time; print('x', flush=True); sys.stderr.write('e' * 200000); time.sleep(1)"
    _, records = run(tmp_path, {"one": Fake(code)}, kind="start", repeats=1)
    assert records[0].failure is None
    assert records[0].metrics["first_token_s"] < records[0].wall_s - 0.9


def test_an_absent_engine_is_left_out_aloud(tmp_path: Path, capsys) -> None:
    _, records = run(tmp_path, {"gone": Fake(""), "two": Fake("print('{\"decode_tok_s\": 4}')")})
    assert {r.engine for r in records} == {"two"}
    assert "small/gone/decode: left out: it is not here" in capsys.readouterr().err
    with pytest.raises(NotOffered, match="no cell can run here"):
        run(tmp_path, {"gone": Fake("")})


def test_environment_holds_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOT_MODELS_DIR", str(tmp_path))
    monkeypatch.setenv("POOT_THREADS", "2")
    folder, _ = run(tmp_path, {"two": Fake("print('{\"decode_tok_s\": 4}')")}, repeats=1)
    told = json.loads((folder / "environment.json").read_text())
    assert told["variables"]["POOT_THREADS"] == "2"
    assert str(tmp_path) not in json.dumps(told)


@linux
def test_a_tree_has_children_and_their_children() -> None:
    code = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'input()']); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        with MemorySampler(process.pid) as sampler:
            for _ in range(100):
                if len(tree_pids(process.pid)) == 2 and sampler.peak_bytes:
                    break
                threading.Event().wait(0.05)
        assert len(tree_pids(process.pid)) == 2
        assert 1e6 < tree_bytes(process.pid) <= (sampler.peak_bytes or 0) * 2
    finally:
        process.kill()
        process.communicate()
    assert tree_pids(process.pid) == []
    assert tree_bytes(2**30) == 0


def test_without_proc_there_is_no_figure(tmp_path: Path) -> None:
    with MemorySampler(os.getpid(), proc=tmp_path) as sampler:
        pass
    assert sampler.peak_bytes is None


def test_figures_of_answers() -> None:
    answers = [
        Answer(started_s=0.0, arrivals_s=(1.0, 1.5, 2.0)),
        Answer(started_s=1.0, arrivals_s=(4.0, 5.0)),
    ]
    assert figures_of(answers) == {
        "ttft_p50_s": 1.0, "ttft_p95_s": 3.0, "output_tok_s": 1.0,
        "itl_p50_s": 0.5, "itl_p99_s": 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="without a token"):
        figures_of([Answer(started_s=0.0, arrivals_s=())])


class Handler(BaseHTTPRequestHandler):
    """Streams as many events as tokens were asked for."""

    seen: ClassVar[list[dict[str, object]]] = []

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        self.send_response(200)
        self.end_headers()
        for _ in range(body["max_tokens"]):
            self.wfile.write(b'data: {"choices": [{"text": "x"}]}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_clients_send_all_requests_and_stream_them() -> None:
    Handler.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        wait_until_ready(url, lambda: True, limit_s=10)
        figures = run_clients(url, clients=3, requests=7, tokens=5)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [body["max_tokens"] for body in Handler.seen] == [4] + [5] * 7
    assert len({body["prompt"] for body in Handler.seen}) == 8
    assert figures.keys() == {"ttft_p50_s", "ttft_p95_s", "output_tok_s", "itl_p50_s", "itl_p99_s"}


def test_a_server_that_ended_is_not_waited_for() -> None:
    with pytest.raises(ValueError, match="the server ended before it answered"):
        wait_until_ready("http://127.0.0.1:9", lambda: False)
