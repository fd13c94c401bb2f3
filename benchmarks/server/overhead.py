"""What the server costs beside the bare engine: the same requests through both, in turn.

The bare engine is the driver that the engine process runs, in a process that does nothing else. Through
the server the requests run twice: with a client that reads every event as it comes, on the same cores,
and with one that sleeps until the server has closed the connection. The second costs nothing while
tokens are made; the answers wait in the buffers of the sockets.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.server.client import completion, request_bytes, together
from benchmarks.server.load import END_ID, FIRST_ID
from benchmarks.server.processes import poot_command, running
from benchmarks.server.results import Rounds, conditions
from poot_llm import Driver, OpenOptions, Request, SamplingParams, open_model

__all__ = ["measure_overhead", "run_bare"]


def measure_overhead(
    model: Path, *, streams: int, prompt_tokens: int, output_tokens: int, rounds: int
) -> dict[str, Any]:
    """Return seconds of the bare engine and through the server, and what the server adds.

    Args:
        model: What is served.
        streams: Requests at once.
        prompt_tokens: Of each.
        output_tokens: Of each.
        rounds: All three take a turn in each.
    """
    rng = np.random.default_rng(streams)
    found: dict[str, list[float]] = {"bare": [], "asleep": [], "reading": []}
    quiet = Rounds[float]()
    before = conditions()

    def prompts() -> list[list[int]]:
        size = (streams, prompt_tokens)  # random, so that nothing is in a prefix cache
        return rng.integers(FIRST_ID, END_ID, size).tolist()

    def bodies() -> list[dict[str, Any]]:
        return [completion(ids, output_tokens) for ids in prompts()]

    with running(poot_command(model, streams)) as server, _bare(model, streams) as bare:
        turns = {
            "bare": lambda: bare(prompts(), output_tokens),
            "asleep": lambda: asleep(server.port, bodies()),
            "reading": lambda: reading(server.port, bodies()),
        }
        for turn in turns.values():
            turn()  # warms up
        for number in range(rounds):
            for name in list(turns)[:: 1 if number % 2 == 0 else -1]:
                found[name].append(quiet.run(turns[name]))
    added = {
        name: median(a / b - 1 for a, b in zip(found[name], found["bare"], strict=True))
        for name in ("asleep", "reading")
    }
    return {
        **before,
        "streams": streams,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "seconds": found,
        "others_share": quiet.shares,
        "overhead_without_client": added["asleep"],
        "overhead_with_client": added["reading"],
    }


def reading(port: int, bodies: list[dict[str, Any]]) -> float:
    """Return the seconds until the last token was read."""
    answers = asyncio.run(together(port, bodies))
    return max(a.arrivals_s[-1] for a in answers) - min(a.started_s for a in answers)


def asleep(port: int, bodies: list[dict[str, Any]]) -> float:
    """Return the seconds until the server had closed the last connection; nothing is read before."""
    start = time.perf_counter()
    waiting = select.poll()
    open_sockets: dict[int, socket.socket] = {}
    for body in bodies:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        connection.connect(("127.0.0.1", port))
        connection.sendall(request_bytes(body))
        waiting.register(connection, select.POLLRDHUP)
        open_sockets[connection.fileno()] = connection
    closed: list[socket.socket] = []
    while open_sockets:
        for descriptor, _ in waiting.poll():
            waiting.unregister(descriptor)
            closed.append(open_sockets.pop(descriptor))
    seconds = time.perf_counter() - start
    for connection in closed:
        with connection:
            data = b"".join(iter(lambda c=connection: c.recv(1 << 20), b""))
            if b"data: [DONE]" not in data:
                raise ValueError(f"an answer is not complete: {data[:200]!r}")
    return seconds


@contextmanager
def _bare(model: Path, streams: int) -> Iterator[Any]:
    command = [sys.executable, "-m", "benchmarks.server", "bare", "--model", str(model)]
    command += ["--streams", str(streams)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, told = process.stdin, process.stdout

        def run(prompts: list[list[int]], output_tokens: int) -> float:
            given.write(json.dumps([prompts, output_tokens]).encode() + b"\n")
            given.flush()
            return json.loads(told.readline())

        yield run
        given.close()


def run_bare(model: Path, streams: int) -> None:
    """Answer each line of prompts with the seconds that the driver takes for them."""
    opened = open_model(str(model), OpenOptions(max_sequences=streams))
    with opened.resources:
        driver = Driver(opened.engine, eos_token_ids=opened.eos_token_ids)
        for line in sys.stdin:
            prompts, output_tokens = json.loads(line)
            params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
            start = time.perf_counter()
            for ids in prompts:
                driver.add(Request(prompt_ids=ids, params=params))
            while driver.has_work:
                driver.run_step()
            print(json.dumps(time.perf_counter() - start), flush=True)
