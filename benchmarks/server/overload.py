"""Refusals under overload: how soon a client hears that there is no room, while the engine works.

As many streams as the server takes are kept under way. Others arrive beside them at ten times the rate
at which it can answer, each on a new connection; each should be refused with status 429 before any work.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.server.client import Answer, completion, post
from benchmarks.server.load import END_ID, FIRST_ID, OUTPUT_TOKENS, PROMPT_TOKENS
from benchmarks.server.processes import poot_command, running
from benchmarks.server.results import Rounds, conditions, quantile

__all__ = ["measure_overload"]

OVER = 10


def measure_overload(
    model: Path, *, streams: int, max_requests: int, seconds: float
) -> dict[str, Any]:
    """Return how soon refusals come, and what became of the admitted requests.

    Args:
        model: What is served.
        streams: That the engine runs together.
        max_requests: That the server takes, the waiting ones included.
        seconds: Of overload.
    """
    rng = np.random.default_rng(max_requests)
    before = conditions()
    prompts = rng.integers(FIRST_ID, END_ID, (256, PROMPT_TOKENS)).tolist()
    bodies = [completion(prompt, OUTPUT_TOKENS) for prompt in prompts]
    quiet = Rounds[tuple[list[Answer], list[Answer], float]]()
    options = ("--max-requests", str(max_requests))
    with running(poot_command(model, streams, *options)) as server:

        async def overload() -> tuple[list[Answer], list[Answer], float]:
            start = perf_counter()
            admitted = [post(server.port, body) for body in bodies[:max_requests]]
            warm = await asyncio.gather(*admitted)
            rate = OVER * max_requests / (perf_counter() - start)
            held: list[Answer] = []
            until_s = perf_counter() + seconds

            async def hold(number: int) -> None:
                while perf_counter() < until_s:
                    answer = await post(server.port, bodies[number])
                    if answer.status == 200:
                        held.append(answer)
                    else:  # one that came in between had the place
                        await asyncio.sleep(0.05)

            holders = [asyncio.create_task(hold(number)) for number in range(max_requests)]
            others: list[asyncio.Task[Answer]] = []
            gaps = rng.exponential(1 / rate, round(2 * rate * seconds)).tolist()
            due = perf_counter() + 0.5
            for gap in gaps:
                due += gap
                if due > until_s:
                    break
                await asyncio.sleep(max(0.0, due - perf_counter()))
                body = bodies[len(others) % len(bodies)]
                others.append(asyncio.create_task(post(server.port, body)))
            arrived = await asyncio.gather(*others)
            await asyncio.gather(*holders)
            assert warm
            return list(arrived), held, rate

        arrived, held, rate = quiet.run(lambda: asyncio.run(overload()))
    refused = [a.ended_s - a.started_s for a in arrived if a.status == 429]
    odd = sorted({a.status for a in arrived} - {200, 429})
    if odd or not refused:
        raise ValueError(f"{len(refused)} were refused, and others answered with {odd}")
    if any(answer.tokens != OUTPUT_TOKENS for answer in held):
        raise ValueError("an admitted request is not complete")
    return {
        **before,
        "streams": streams,
        "max_requests": max_requests,
        "arrivals_a_second": rate,
        "arrived": len(arrived),
        "refused": len(refused),
        "refused_p50_s": quantile(refused, 0.5),
        "refused_p99_s": quantile(refused, 0.99),
        "refused_max_s": max(refused),
        "admitted": len(held) + sum(a.status == 200 for a in arrived),
        "others_share_rounds": quiet.shares,
    }
