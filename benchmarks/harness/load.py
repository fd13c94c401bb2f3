"""Load on a server in OpenAI's dialect: clients that stream completions, and what they see."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

__all__ = ["Answer", "figures_of", "quantile", "run_clients", "wait_until_ready"]

WORDS = [
    "river", "stone", "window", "garden", "letter", "winter", "bridge", "copper", "lantern",
    "orchard", "harbour", "meadow", "signal", "thread", "circle", "mirror", "valley", "thunder",
]  # fmt: skip
READY_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request gave.

    Attributes:
        started_s: When it was sent, seconds on the clock of the run.
        arrivals_s: When each token came.
    """

    started_s: float
    arrivals_s: tuple[float, ...]


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value that a share q of all lies at or below (nearest rank).

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def figures_of(answers: Sequence[Answer]) -> dict[str, float]:
    """Return latencies and throughput of a run's answers.

    Raises:
        ValueError: If an answer has no token.
    """
    if not answers or not all(answer.arrivals_s for answer in answers):
        raise ValueError("a request was answered without a token")
    first = [answer.arrivals_s[0] - answer.started_s for answer in answers]
    gaps = [b - a for w in answers for a, b in zip(w.arrivals_s, w.arrivals_s[1:], strict=False)]
    span = max(w.arrivals_s[-1] for w in answers) - min(w.started_s for w in answers)
    figures = {
        "ttft_p50_s": quantile(first, 0.5),
        "ttft_p95_s": quantile(first, 0.95),
        "output_tok_s": sum(len(w.arrivals_s) for w in answers) / span,
    }
    if gaps:
        figures |= {"itl_p50_s": quantile(gaps, 0.5), "itl_p99_s": quantile(gaps, 0.99)}
    return figures


async def _one(client: httpx.AsyncClient, prompt: str, tokens: int) -> Answer:
    body = {
        "model": "default", "prompt": prompt, "max_tokens": tokens, "temperature": 0.0,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    started, arrivals = time.perf_counter(), list[float]()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise ValueError(f"{response.status_code}: {(await response.aread()).decode()[:200]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if any(choice.get("text") for choice in event.get("choices", [])):
                arrivals.append(time.perf_counter())
    return Answer(started_s=started, arrivals_s=tuple(arrivals))


async def _all(url: str, clients: int, requests: int, tokens: int, seed: int) -> list[Answer]:
    chooser = random.Random(seed)
    prompts = [" ".join(chooser.choices(WORDS, k=32)) for _ in range(requests)]
    answers: list[Answer] = []

    async def work(client: httpx.AsyncClient) -> None:
        while prompts:
            answers.append(await _one(client, prompts.pop(), tokens))

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await _one(client, " ".join(chooser.choices(WORDS, k=32)), 4)  # the first step compiles
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(work(client))
    return answers


def run_clients(
    url: str, *, clients: int, requests: int, tokens: int, seed: int = 0
) -> dict[str, float]:
    """Return what clients see that stream ``requests`` completions of ``tokens`` tokens together.

    Events of a stream are counted as tokens, so an engine that sends several at once shows it as
    fewer, longer gaps.
    """
    return figures_of(asyncio.run(_all(url, clients, requests, tokens, seed)))


def wait_until_ready(url: str, is_alive: Callable[[], bool], *, limit_s: float = READY_S) -> None:
    """Return when ``/health`` answers 200.

    Args:
        url: Of the server.
        is_alive: Called in between; False ends the wait.
        limit_s: Longest wait.

    Raises:
        TimeoutError: If it never does.
        ValueError: If the server ended.
    """
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if not is_alive():
            raise ValueError("the server ended before it answered")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"{url} was not ready within {limit_s:g} s")
