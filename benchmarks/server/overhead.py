"""What the server costs beside the bare engine: the same requests through both, in turn.

The bare engine is the driver that the engine process runs, in a process that does nothing else. Through
the server the requests run twice: with a client that reads every event as it comes, on the same cores,
and with one that sleeps until the server has closed the connection. The second costs nothing while
tokens are made; the answers wait in the buffers of the sockets.

Two accounts are kept. Wall time is what a user sees, and on a shared machine it moves by a tenth from
round to round. The CPU time of the processes, from the scheduler's own clock, says where it goes: what
the server's and the engine's processes take for a token beyond what the bare engine takes. Overheads
are medians over pairs: each round of the server beside the bare engine's of the same turn.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

import numpy as np

from benchmarks.server.client import completion, request_bytes, together
from benchmarks.server.load import END_ID, FIRST_ID
from benchmarks.server.processes import child_of, cpu_s, poot_command, running
from benchmarks.server.results import Rounds, conditions
from poot_llm import Driver, OpenOptions, Request, SamplingParams, open_model

__all__ = ["measure_overhead", "run_bare"]


def measure_overhead(
    model: Path, *, streams: int, prompt_tokens: int, output_tokens: int, rounds: int
) -> dict[str, Any]:
    """Return seconds of the bare engine and through the server, wall and CPU, and what the server adds.

    Args:
        model: What is served.
        streams: Requests at once.
        prompt_tokens: Of each.
        output_tokens: Of each.
        rounds: All three take a turn in each, forwards and backwards.
    """
    num_tokens = streams * output_tokens
    rng = np.random.default_rng(streams)
    found: dict[str, list[Turn]] = {"bare": [], "asleep": [], "reading": []}
    quiet = Rounds[Turn]()
    before = conditions()

    def prompts() -> list[list[int]]:
        size = (streams, prompt_tokens)  # random, so that nothing is in a prefix cache
        return rng.integers(FIRST_ID, END_ID, size).tolist()

    def bodies() -> list[dict[str, Any]]:
        return [completion(ids, output_tokens) for ids in prompts()]

    with running(poot_command(model, streams)) as server, _bare(model, streams) as bare:
        front = server.process.pid
        watched = {"bare": [bare.process_id], "asleep": [front, child_of(front)]}
        watched["reading"] = watched["asleep"]
        runs: dict[str, Callable[[], float]] = {
            "bare": lambda: bare(prompts(), output_tokens),
            "asleep": lambda: asleep(server.port, bodies()),
            "reading": lambda: reading(server.port, bodies()),
        }
        turns = {name: partial(_turn, run, watched[name]) for name, run in runs.items()}
        for turn in turns.values():
            turn()  # warms up
        for number in range(rounds):
            for name in list(turns)[:: 1 if number % 2 == 0 else -1]:
                found[name].append(quiet.run(turns[name]))
    bare_turns = found["bare"]

    def added(name: str, cost: Callable[[Turn], float]) -> float:
        pairs = zip(found[name], bare_turns, strict=True)
        return median(cost(turn) / cost(beside) - 1 for turn, beside in pairs)

    def per_token(name: str, cost: Callable[[Turn], float]) -> float:
        return round(1e6 * median(map(cost, found[name])) / num_tokens, 1)

    return {
        **before,
        "streams": streams,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "seconds": {name: [turn.wall_s for turn in taken] for name, taken in found.items()},
        "cpu_s": {name: [turn.served_s for turn in taken] for name, taken in found.items()},
        "others_share": quiet.shares,
        "cpu_us_per_token": {
            "bare": per_token("bare", lambda turn: turn.served_s),
            "engine": per_token("asleep", lambda turn: turn.cpu_s[1]),
            "server": per_token("asleep", lambda turn: turn.cpu_s[0]),
            "server_while_read": per_token("reading", lambda turn: turn.cpu_s[0]),
            "client": per_token("reading", lambda turn: turn.own_cpu_s),
        },
        "overhead_without_client": added("asleep", lambda turn: turn.wall_s),
        "overhead_with_client": added("reading", lambda turn: turn.wall_s),
        "cpu_overhead_without_client": added("asleep", lambda turn: turn.served_s),
        "cpu_overhead_with_client": added(
            "reading", lambda turn: turn.served_s + (turn.own_cpu_s if len(turn.cpu_s) > 1 else 0.0)
        ),
    }


class Turn(NamedTuple):
    """What one round of one way took.

    Attributes:
        wall_s: Seconds that passed.
        cpu_s: CPU seconds of each process that served.
        own_cpu_s: CPU seconds of this process, which is the client.
    """

    wall_s: float
    cpu_s: tuple[float, ...]
    own_cpu_s: float

    @property
    def served_s(self) -> float:
        """CPU seconds of all processes that served."""
        return sum(self.cpu_s)


def _turn(run: Callable[[], float], process_ids: list[int]) -> Turn:
    before = [cpu_s(process_id) for process_id in process_ids]
    own = time.process_time()
    wall_s = run()
    own = time.process_time() - own
    taken = tuple(
        cpu_s(process_id) - begin for process_id, begin in zip(process_ids, before, strict=True)
    )
    return Turn(wall_s, taken, own)


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
def _bare(model: Path, streams: int) -> Iterator[_Bare]:
    command = [sys.executable, "-m", "benchmarks.server", "bare", "--model", str(model)]
    command += ["--streams", str(streams)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, told = process.stdin, process.stdout

        yield _Bare(process.pid, given, told)
        given.close()


@dataclass(frozen=True, slots=True)
class _Bare:
    """The bare engine's process, and the pipes to it."""

    process_id: int
    given: IO[bytes]
    told: IO[bytes]

    def __call__(self, prompts: list[list[int]], output_tokens: int) -> float:
        self.given.write(json.dumps([prompts, output_tokens]).encode() + b"\n")
        self.given.flush()
        return json.loads(self.told.readline())


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
