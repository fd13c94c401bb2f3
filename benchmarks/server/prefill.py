"""Gaps between the tokens of running streams while another client's long prompt is computed."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.server.client import Answer, completion, post
from benchmarks.server.load import END_ID, FIRST_ID
from benchmarks.server.processes import poot_command, running
from benchmarks.server.results import Rounds, conditions, quantile

__all__ = ["measure_prefill"]

OUTPUT_TOKENS = 480
SETTLED_S = 1.5  # after which all streams run


def measure_prefill(
    model: Path, *, streams: int, prompt_tokens: int, rounds: int
) -> dict[str, Any]:
    """Return the gaps of running streams with and without a long prompt beside them.

    Args:
        model: What is served.
        streams: That run.
        prompt_tokens: Of the long prompt.
        rounds: Each with streams of its own.
    """
    rng = np.random.default_rng(prompt_tokens)
    quiet = Rounds[tuple[list[Answer], Answer]]()
    before = conditions()

    async def once(port: int) -> tuple[list[Answer], Answer]:
        prompts = rng.integers(FIRST_ID, END_ID, (streams, 32)).tolist()
        tasks = [asyncio.create_task(post(port, completion(p, OUTPUT_TOKENS))) for p in prompts]
        await asyncio.sleep(SETTLED_S)
        long_prompt = rng.integers(FIRST_ID, END_ID, prompt_tokens).tolist()
        long_answer = await post(port, completion(long_prompt, 1))
        return list(await asyncio.gather(*tasks)), long_answer

    with running(poot_command(model, streams + 1)) as server:
        asyncio.run(once(server.port))  # warms up
        done = [quiet.run(lambda: asyncio.run(once(server.port))) for _ in range(rounds)]
    return {**before, "streams": streams, "prompt_tokens": prompt_tokens, **figures_of(done),
            "others_share_rounds": quiet.shares}  # fmt: skip


def figures_of(rounds: list[tuple[list[Answer], Answer]]) -> dict[str, Any]:
    """Return the gaps in the time of the long prompt, and those outside of it."""
    during: list[list[float]] = []
    outside: list[list[float]] = []
    for answers, long_answer in rounds:
        during.append([])
        outside.append([])
        since_s, until_s = long_answer.started_s, long_answer.ended_s
        for answer in answers:
            if answer.arrivals_s[-1] < until_s:
                raise ValueError("a stream ended before the long prompt did; make it longer")
            times = answer.arrivals_s
            for a, b in itertools.pairwise(times):
                if a < until_s and b > since_s:
                    during[-1].append(b - a)
                elif (since_s - 1.0 < a and b < since_s) or (until_s < a and b < until_s + 1.0):
                    outside[-1].append(b - a)
    return {
        "gap_p50_s": median(quantile(each, 0.5) for each in outside),
        "gap_during_p50_s": median(quantile(each, 0.5) for each in during),
        "gap_during_p99_s": median(quantile(each, 0.99) for each in during),
        "long_prompt_s": median(each.first_token_s for _, each in rounds),
        "p99_over_median": median(
            quantile(a, 0.99) / quantile(b, 0.5) for a, b in zip(during, outside, strict=True)
        ),
        "p99_over_median_rounds": [
            quantile(a, 0.99) / quantile(b, 0.5) for a, b in zip(during, outside, strict=True)
        ],
    }
