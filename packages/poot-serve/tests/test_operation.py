"""Running the server: keys, limits, overload, clients that leave, an engine that dies, stopping."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from serve_process import Server, http, start, stop

from poot_serve import cli

pytestmark = pytest.mark.xdist_group("serve-operation")  # its servers start once

ENDLESS = {"prompt": "abc", "max_tokens": 480, "ignore_eos": True, "min_tokens": 480}
SHORT = {"prompt": "abc", "max_tokens": 2}
TINY = ("--backend", "cpu", "--precision", "f32")
SLOW = ("--backend", "oracle", "--precision", "f32")  # some ten milliseconds a token


def metric(server: Server, name: str) -> float:
    text = http.get(server.url + "/metrics").text
    return next(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ")
    )


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def guarded(checkpoint, tmp_path_factory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("# of the team\nfile-key\n\n")
    running = start(
        str(checkpoint), *TINY, "--api-key", "flag-key", "--api-key-file", str(keys),
        "--allow-origin", "https://app.example", "--max-choices", "4", "--max-body-bytes", "20000",
        "--max-header-bytes", "4096", "--max-requests", "8", "--keep-alive-s", "0.2",
    )  # fmt: skip
    yield running
    stop(running)


def test_every_route_needs_a_key_but_health_and_the_page(guarded) -> None:
    document = http.get(
        guarded.url + "/openapi.json", headers={"Authorization": "Bearer flag-key"}
    ).json()
    open_paths = {"/health"}
    for path, methods in document["paths"].items():
        for method in methods:
            answer = http.request(method, guarded.url + path.replace("{model}", "x"))
            assert (answer.status_code == 200) == (path in open_paths), path
            if path not in open_paths:
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/docs", "/openapi.json", "/nothing", "/static/../v1/models", "/static/none.js"):
        assert http.get(guarded.url + path).status_code == 401, path
    for path in ("/", "/static/app.js", "/static/vendor/marked.js"):
        assert http.get(guarded.url + path).status_code == 200, path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer flag-key"}, 200),
        ({"authorization": "bearer file-key"}, 200),
        ({"x-api-key": "file-key"}, 200),
        ({"Authorization": "Bearer flag-key2"}, 401),
        ({"Authorization": "Basic flag-key"}, 401),
        ({"Authorization": "Bearer # of the team"}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
def test_keys(guarded, headers, status) -> None:
    assert http.get(guarded.url + "/v1/models", headers=headers).status_code == status


def test_other_origins_are_answered_only_where_they_are_named(guarded, server) -> None:
    ask = {"Access-Control-Request-Method": "POST"}
    url = "/v1/chat/completions"
    good = http.options(guarded.url + url, headers={**ask, "Origin": "https://app.example"})
    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in good.headers
    bad = http.options(guarded.url + url, headers={**ask, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in bad.headers
    plain = http.get(server.url + "/v1/models", headers={"Origin": "https://app.example"})
    assert not [name for name in plain.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("completions", {**SHORT, "n": 5}, 400, "n"),
        ("completions", {**SHORT, "n": 129}, 400, "n"),
        ("completions", {**SHORT, "stop": ["x"] * 65}, 400, "stop"),
        ("completions", {**SHORT, "logit_bias": {str(i): 1 for i in range(1025)}}, 400, "logit_bias"),
        ("completions", {**SHORT, "logit_bias": {"1": 101}}, 400, "logit_bias[...]"),
        ("completions", {**SHORT, "guided_regex": "(" * 70 + ")" * 70}, 400, "guided_regex"),
        ("completions", {**SHORT, "guided_json": {}, "guided_regex": "a"}, 400, "guided_json"),
        ("completions", {**SHORT, "pad": "x" * 20000}, 413, None),
        ("completions", {**SHORT, "best_of": 3}, 400, "best_of"),
        ("completions", {**SHORT, "max_tokens": 0}, 400, "max_tokens"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         400, "messages[0].content[0].type"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}],
                              "tool_choice": "required"}, 400, "tool_choice"),
        ("messages", {"messages": [{"role": "user", "content": "x"}]}, 400, "max_tokens"),
        ("responses", {"input": "x", "background": True}, 400, "background"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_named(guarded, path, body, status, field) -> None:
    answer = http.post(f"{guarded.url}/v1/{path}", json=body, headers={"x-api-key": "flag-key"})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"].get("param") == field


def test_a_schema_that_is_too_large_is_refused(server) -> None:
    body = {**SHORT, "guided_json": {"enum": ["x" * 100] * 4000}}
    answer = http.post(server.url + "/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "guided_json"


def test_large_heads_are_refused(guarded) -> None:
    headers = {"x-api-key": "flag-key", "x-pad": "y" * 5000}
    answer = http.get(guarded.url + "/v1/models", headers=headers)
    assert answer.status_code == 431
    assert "4096" in answer.json()["error"]["message"]
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(20)
        connection.sendall(b"GET / HTTP/1.1\r\n")
        is_cut_off = False
        try:
            for _ in range(10_000):
                connection.sendall(b"X-Pad: " + b"z" * 1000 + b"\r\n")
        except OSError:
            is_cut_off = True
        assert is_cut_off


def test_silence_is_filled_with_comments(guarded) -> None:
    # Others go before it: the stream waits long for its next token.
    body = {**ENDLESS, "stream": True, "max_tokens": 100, "min_tokens": 100, "n": 4}
    with http.stream(
        "POST", guarded.url + "/v1/completions", json=body, headers={"x-api-key": "flag-key"},
        timeout=120,
    ) as answer:  # fmt: skip
        text = "".join(answer.iter_text())
    assert text.endswith("data: [DONE]\n\n")
    assert set(text.split("\n\n")) - {": keep-alive", ""}


def test_request_ids_come_back(server) -> None:
    assert http.get(server.url + "/health", headers={"x-request-id": "my-1"}).headers[
        "x-request-id"
    ] == "my-1"  # fmt: skip
    made = http.get(server.url + "/health", headers={"x-request-id": "bad id\t{}"}).headers
    assert len(made["x-request-id"]) == 32


def test_a_client_that_leaves_ends_its_work_within_a_step(slow_server) -> None:
    before = metric(slow_server, "poot_sequences_cancelled_total")
    for stream in (True, False):
        try:
            with http.stream(
                "POST", slow_server.url + "/v1/completions", json={**ENDLESS, "stream": stream},
                timeout=httpx.Timeout(20, read=20 if stream else 0.3),
            ) as answer:  # fmt: skip
                next(answer.iter_lines())
        except httpx.ReadTimeout:
            pass
    wait_for(lambda: metric(slow_server, "poot_sequences_cancelled_total") == before + 2)
    wait_for(lambda: metric(slow_server, "poot_requests_running") == 0)
    assert metric(slow_server, "poot_kv_blocks_used") == 0


def test_overload_refuses_before_any_work_and_completes_what_it_took(checkpoint) -> None:
    running = start(str(checkpoint), *TINY, "--max-requests", "4", "--max-sequences", "2")
    body = {**ENDLESS, "max_tokens": 24, "min_tokens": 24}
    try:
        with (
            httpx.Client(timeout=120, limits=httpx.Limits(max_connections=64)) as client,
            concurrent.futures.ThreadPoolExecutor(40) as pool,
        ):
            answers = list(
                pool.map(
                    lambda _: client.post(running.url + "/v1/completions", json=body), range(40)
                )
            )
        done = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(done) + len(refused) == 40
        assert len(done) >= 4
        assert len(refused) > 10
        assert all(a.json()["usage"]["completion_tokens"] == 24 for a in done)
        assert all(int(a.headers["retry-after"]) >= 1 for a in refused)
        assert metric(running, "poot_completion_tokens_total") == 24 * len(done)
        wait_for(lambda: metric(running, "poot_kv_blocks_used") == 0)
    finally:
        stop(running)


def test_rates_and_deadlines(checkpoint) -> None:
    running = start(
        str(checkpoint), *SLOW, "--rate-limit", "6", "--rate-burst", "3", "--request-timeout-s", "0.4",
        "--log-format", "json", "--api-key", "one", "--api-key", "another",
    )  # fmt: skip
    key = {"x-api-key": "one"}
    try:
        late = http.post(running.url + "/v1/completions", json=ENDLESS, headers=key)
        assert late.status_code == 504
        assert late.json()["error"]["code"] == "deadline_exceeded"
        with http.stream(
            "POST",
            running.url + "/v1/completions",
            json={**ENDLESS, "stream": True},
            headers=key,
        ) as answer:
            events = [line for line in answer.iter_lines() if line.startswith("data: {")]
        assert json.loads(events[-1][6:])["error"]["code"] == "deadline_exceeded"
        assert http.get(running.url + "/version", headers=key).status_code == 200
        refused = http.get(running.url + "/version", headers=key)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 10
        # Another key is another client.
        other = http.get(running.url + "/version", headers={"x-api-key": "another"})
        assert other.status_code == 200
        assert http.get(running.url + "/health").status_code == 200
    finally:
        running.process.send_signal(signal.SIGTERM)
        _, log = running.process.communicate(timeout=30)
    lines = [json.loads(line) for line in log.splitlines() if '"outcome"' in line]
    # A line is written when the answer has been sent, so a client may be ahead of it.
    outcomes = Counter(line["outcome"] for line in lines)
    assert (outcomes["deadline"], outcomes["overloaded"], outcomes["ok"] >= 2) == (2, 1, True)
    assert lines[0]["prompt_tokens"] == 3
    assert "abc" not in log


def engine_of(server: Server) -> int | None:
    """Return the engine's process, or None between two of them, where ps finds none and fails."""
    listing = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(server.process.pid)],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    found = [int(line.split()[0]) for line in listing.splitlines() if "_engine" in line]
    return found[0] if found else None


def test_an_engine_that_is_killed_fails_its_requests_once_and_comes_back(checkpoint) -> None:
    """Killed in the midst of answers, and again while it starts."""
    running = start(str(checkpoint), *SLOW)
    url = running.url + "/v1/completions"
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            whole = pool.submit(http.post, url, json=ENDLESS)
            wait_for(lambda: metric(running, "poot_requests_running") == 1)
            with http.stream("POST", url, json={**ENDLESS, "stream": True}) as answer:
                lines = answer.iter_lines()
                next(lines)
                first = engine_of(running)
                assert first is not None
                os.kill(first, signal.SIGKILL)
                rest = [line for line in lines if line]
            failed = whole.result()
        assert json.loads(rest[-2][6:])["error"]["type"] == "server_error"
        assert rest[-1] == "data: [DONE]"
        assert failed.status_code == 500
        assert "send it again" in failed.json()["error"]["message"]
        wait_for(lambda: engine_of(running) not in {None, first})
        again = engine_of(running)
        assert again is not None
        os.kill(again, signal.SIGKILL)  # it has hardly begun to load
        wait_for(lambda: http.get(running.url + "/health").status_code == 200, 60)
        assert metric(running, "poot_engine_restarts_total") == 2
        assert http.post(url, json=SHORT).status_code == 200
    finally:
        stop(running)


def test_sigterm_drains_and_a_second_one_stops(checkpoint) -> None:
    running = start(str(checkpoint), *SLOW)
    found: list[httpx.Response] = []
    asked = threading.Thread(
        target=lambda: found.append(
            http.post(running.url + "/v1/completions", json={**ENDLESS, "max_tokens": 120,
                       "min_tokens": 120}, timeout=120)
        )
    )  # fmt: skip
    asked.start()
    wait_for(lambda: metric(running, "poot_requests_running") == 1)
    running.process.send_signal(signal.SIGTERM)
    asked.join()
    assert found[0].status_code == 200
    assert found[0].json()["usage"]["completion_tokens"] == 120
    running.process.communicate(timeout=30)
    assert running.process.returncode == 0

    running = start(str(checkpoint), *SLOW)
    with http.stream(
        "POST", running.url + "/v1/completions", json={**ENDLESS, "stream": True}, timeout=60
    ) as answer:
        lines = answer.iter_lines()  # kept: the stream is closed when nobody reads it any more
        next(lines)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        running.process.communicate(timeout=15)


def anonymous_kib(server: Server) -> int:
    """Return memory of the server and its engine that no file backs, swapped out or not."""
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(server.process.pid)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    total = 0
    for pid in [server.process.pid, *map(int, listing.split())]:
        with open(f"/proc/{pid}/status") as status:
            total += sum(
                int(line.split()[1]) for line in status if line.startswith(("RssAnon", "VmSwap"))
            )
    return total


def soak_request(server: Server, number: int) -> None:
    """Send one of several kinds of requests; every fifth client leaves before its answer ends."""
    url = server.url + "/v1/completions"
    body = {"prompt": f"{number} some prompt", "max_tokens": 4, "logprobs": 2}
    if number % 5 == 0:
        with http.stream("POST", url, json={**ENDLESS, "stream": True}) as answer:
            assert answer.status_code == 200
            next(answer.iter_lines())
        return
    if number % 5 == 1:
        body = {"prompt": f"{number}", "guided_choice": [f"yes{number % 100}", "no"]}
    if number % 5 == 2:
        url = server.url + "/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 4}
    assert http.post(url, json=body).status_code == 200


def test_memory_does_not_grow(checkpoint) -> None:
    """A soak: anonymous memory does not rise with the requests; `just soak` makes it long."""
    until = time.monotonic() + 60 * float(os.environ.get("SOAK_MINUTES", "0"))
    running = start(str(checkpoint), *TINY)
    counts, sizes_kib = [0], [0]
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: soak_request(running, i), range(150)))  # caches fill
            sizes_kib[0] = anonymous_kib(running)
            while len(counts) < 5 or time.monotonic() < until:
                numbers = range(counts[-1], counts[-1] + 75)
                list(pool.map(lambda i: soak_request(running, i), numbers))
                counts.append(counts[-1] + 75)
                sizes_kib.append(anonymous_kib(running))
    finally:
        stop(running)
    slope = float(np.polyfit(counts, sizes_kib, 1)[0])
    limit = 20.0 if counts[-1] < 10_000 else 0.5  # allocators settle within some thousand requests
    assert slope < limit, f"{slope:.2f} KiB a request over {counts[-1]} requests: {sizes_kib[::50]}"


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--port", "99999"], {}, "--port is '99999'; it must be at least 0 and at most 65535"),
        (["--log-format", "xml"], {}, "one of text, json"),
        (["--api-key", " "], {}, "an API key is empty"),
        (["--api-key-file", "/no/such"], {}, "/no/such"),
        (["--tool-format", "odd"], {}, "hermes"),
        ([], {"POOT_PROT": "80"}, "did you mean POOT_PORT"),
        ([], {"POOT_PORT": "many"}, "POOT_PORT is 'many'; it must be a whole number"),
        (["--config", "/no/such.toml"], {}, "cannot read /no/such.toml"),
    ],
)
def test_wrong_settings_are_told_in_one_line(
    arguments, environment, says, monkeypatch, capsys
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        assert cli.main(arguments) == 2
    finally:
        root.handlers[:], root.level = handlers, level
    found = capsys.readouterr()
    (line,) = found.err.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert found.out == ""
