"""The real server process over a tiny checkpoint, through the real openai client.

Greedy ids come from transformers (``data/llama/expected.json``); where their margin is small either
choice is right.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest
from serve_process import CHECKPOINT, http, start, stop

pytestmark = pytest.mark.xdist_group("serve-api")  # its servers start once

EXPECTED = json.loads((Path(__file__).parent / "data" / "llama" / "expected.json").read_text())
MESSAGES = [{"role": "user", "content": "Grüße, 世界!"}]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def ids_client(ids_server):
    with openai.OpenAI(base_url=ids_server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def clear_prefix() -> list[int]:
    """The greedy ids before the first step at which two tokens are nearly as likely."""
    margins = EXPECTED["greedy_margins"]
    count = next((i for i, margin in enumerate(margins) if margin <= 1e-3), len(margins))
    return EXPECTED["greedy"][:count]


def test_token_ids_in_and_out_match_the_reference(ids_client) -> None:
    answer = ids_client.completions.create(
        model="tiny", prompt=EXPECTED["prompt"], max_tokens=24, temperature=0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    choice = answer.choices[0]
    clear = clear_prefix()
    assert len(clear) > 10
    assert choice.model_extra["token_ids"][: len(clear)] == clear
    assert choice.finish_reason == "length"
    assert answer.usage.prompt_tokens == len(EXPECTED["prompt"])
    assert answer.usage.completion_tokens == 24


def test_a_stream_says_the_same_as_the_whole(client) -> None:
    asked = {
        "model": "any name",
        "messages": MESSAGES,
        "max_tokens": 40,
        "temperature": 0.8,
        "seed": 7,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[0].choices[0].delta.role == "assistant"


def test_the_raw_stream_ends_with_done(server) -> None:
    body = {"prompt": "abc", "max_tokens": 3, "stream": True}
    with http.stream("POST", server.url + "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)


def test_several_clients_at_once_get_what_each_gets_alone(client) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(
            model="m", prompt=f"prompt {seed}", max_tokens=24, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    alone = [ask(seed) for seed in range(8)]
    together: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda s=seed: together.__setitem__(s, ask(s))) for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(8)] == alone
    assert len(set(alone)) > 1


def test_lists_of_prompts_and_choices_are_numbered(client) -> None:
    answer = client.completions.create(
        model="m", prompt=["ab", "cd"], n=2, max_tokens=4, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]


def test_logprobs_of_both_dialects(client) -> None:
    chat = client.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    entries = chat.choices[0].logprobs.content
    assert len(entries) == 3
    for entry in entries:
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert len(entry.top_logprobs) == 2
    text = client.completions.create(
        model="m", prompt="abc", max_tokens=3, temperature=0, logprobs=2
    )
    logprobs = text.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 3


def test_a_stop_string_ends_the_answer_and_does_not_leak(client) -> None:
    whole = client.completions.create(model="m", prompt="abc", max_tokens=40, temperature=0, seed=1)
    text = whole.choices[0].text
    stop = text[8:11]
    cut = client.completions.create(
        model="m", prompt="abc", max_tokens=40, temperature=0, seed=1, stop=[stop]
    )
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("chat/completions", b"{", 400, None),
        ("chat/completions", b"[]", 400, None),
        ("chat/completions", b'{"messages": []}', 400, "messages"),
        ("chat/completions", b'{"messages": [{"role": "tool", "content": "x"}]}', 400, "messages[0]"),
        ("chat/completions", b'{"messages": [{"role":"user","content":"x"}], "n": 1000}', 400, "n"),
        ("chat/completions", b'{"messages": 3}', 400, "messages"),
        ("completions", b'{"prompt": []}', 400, "prompt"),
        ("completions", b'{"prompt": [[]]}', 400, "prompt"),
        ("completions", b'{"prompt": [1, "a"]}', 400, "prompt"),
        ("completions", b'{"prompt": [320]}', 400, "prompt_ids"),
        ("completions", b'{"prompt": [-1]}', 400, "prompt[0]"),
        ("completions", b'{"prompt": [99999999999999999999999]}', 400, "prompt[0]"),
        ("completions", b'{"prompt": "a", "max_tokens": 99999999999999999999999}', 400, "max_tokens"),
        ("completions", b'{"prompt": "a", "stop_token_ids": [%d]}' % 10**20, 400, "stop_token_ids[0]"),
        ("completions", b'{"prompt": "' + b"a " * (1 << 20) + b'"}', 400, "prompt"),
        ("chat/completions", b" " * (17 << 20), 413, None),
        ("completions", b'{"prompt": "a", "temperature": -1}', 400, "temperature"),
        ("completions", b'{"prompt": "a", "suffix": "b"}', 400, "suffix"),
        ("completions", b'{"prompt": "a", "stream": true, "top_p": 2}', 400, "top_p"),
        ("nothing", b"{}", 404, None),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_and_the_server_goes_on(server, path, body, status, field) -> None:
    answer = http.post(f"{server.url}/v1/{path}", content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["param"] == field
    assert error["message"]
    assert http.get(server.url + "/health").json() == {"status": "ok"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_says_both_numbers(ids_server, stream) -> None:
    body = {"prompt": [5] * 65, "model": "tiny", "stream": stream}
    answer = http.post(ids_server.url + "/v1/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "65" in error["message"]
    assert "64" in error["message"]


def test_unknown_fields_and_nulls_pass(server) -> None:
    body = {
        "messages": MESSAGES,
        "max_tokens": 2,
        "tools": [],
        "stop": None,
        "novel_field": {"a": 1},
    }
    assert http.post(server.url + "/v1/chat/completions", json=body).status_code == 200


def test_without_a_tokenizer_text_is_refused(ids_client) -> None:
    with pytest.raises(openai.BadRequestError, match="no tokenizer"):
        ids_client.completions.create(model="tiny", prompt="text")
    with pytest.raises(openai.BadRequestError, match="no tokenizer"):
        ids_client.chat.completions.create(model="tiny", messages=MESSAGES)


def test_only_served_names_are_accepted_where_given(ids_client) -> None:
    assert [model.id for model in ids_client.models.list()] == ["tiny", "tiny-2"]
    assert ids_client.models.retrieve("tiny-2").id == "tiny-2"
    with pytest.raises(openai.NotFoundError, match="served: tiny, tiny-2"):
        ids_client.completions.create(model="other", prompt=[1])


def test_a_client_that_leaves_frees_its_sequence(server) -> None:
    body = {"prompt": "abc", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with http.stream("POST", server.url + "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    started = time.monotonic()
    answer = http.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1})
    assert answer.status_code == 200
    assert time.monotonic() - started < 30


def test_what_is_refused_takes_no_place(checkpoint) -> None:
    arguments = ("--backend", "oracle", "--precision", "f32", "--max-requests", "3")
    running = start(str(checkpoint), *arguments)
    url = running.url + "/v1/completions"
    try:
        for _ in range(4):
            answer = http.post(url, json={"prompt": [1], "max_tokens": 10**30})
            assert answer.status_code == 400
        # The first three of five would fill the server for the length of their answers.
        body = {"prompt": "abc", "n": 5, "max_tokens": 3000, "ignore_eos": True}
        refused = http.post(url, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        answer = http.post(url, json={"prompt": "abc", "max_tokens": 1})
        assert answer.status_code == 200
    finally:
        stop(running)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["/no/such/model"], 1, "/no/such/model"),
        (["--port", "many"], 2, "port"),
        (["--no-such-option"], 2, "no-such-option"),
        ([str(CHECKPOINT), "--backend", "nonsense"], 2, "no backend 'nonsense' is installed"),
    ],
)
def test_wrong_starts_end_with_one_readable_line(arguments, code, says) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "poot_serve.cli", *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == code
    assert says in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_port_in_use_is_told_before_anything_is_loaded(server) -> None:
    port = server.url.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "poot_serve.cli", str(CHECKPOINT), "--port", port],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 1
    assert f"port {port}" in line
    assert "in use" in line


def test_the_engine_ends_by_itself_with_the_server(checkpoint, tmp_path) -> None:
    # One that had to be killed leaves no trace of its exit handlers.
    mark = tmp_path / "ended"
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, pathlib, sys\n"
        "if '_engine_loop' in ' '.join(sys.orig_argv):\n"
        f"    atexit.register(pathlib.Path({str(mark)!r}).touch)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    running = start(str(checkpoint), "--backend", "oracle", environment=environment)
    assert not mark.exists()
    stop(running)
    assert mark.exists()


def test_an_interrupt_before_anything_runs_prints_nothing() -> None:
    code = (
        "import builtins, os, signal\n"
        # A background job starts with the signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "plain = builtins.__import__\n"
        "def slow(name, *rest):\n"
        "    if name == 'uvicorn': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return plain(name, *rest)\n"
        "builtins.__import__ = slow\n"
        "from poot_serve.cli import main\n"
        "main([])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
