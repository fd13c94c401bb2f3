"""The same load on poot's server and on llama.cpp's, in turn: throughput and time to first token.

All streams start at once, each on a connection of its own, one request a stream and round; as many slots
as streams. Prompts are random token ids, so no round finds the prompts of an earlier one; with a shared
system prompt both servers have seen that before, in every slot.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.server.client import Answer, completion, together
from benchmarks.server.processes import llama_command, poot_command, running
from benchmarks.server.results import Rounds, conditions, quantile

__all__ = ["measure_load"]

PROMPT_TOKENS = OUTPUT_TOKENS = 128
FIRST_ID, END_ID = 1000, 8000  # ordinary words of every vocabulary


def measure_load(
    model: Path, peer: tuple[str, Path] | None, *, streams: int, shared: int, rounds: int
) -> dict[str, Any]:
    """Return the figures of both servers at so many streams.

    Args:
        model: What poot serves.
        peer: llama.cpp's server and the file that it serves, or None.
        streams: At once.
        shared: Tokens that all prompts begin with.
        rounds: Each server takes a turn in each.
    """
    rng = np.random.default_rng([streams, shared])
    head = rng.integers(FIRST_ID, END_ID, shared).tolist()

    def bodies() -> list[dict[str, Any]]:
        tails = rng.integers(FIRST_ID, END_ID, (streams, PROMPT_TOKENS)).tolist()
        return [completion(head + tail, OUTPUT_TOKENS) for tail in tails]

    before = conditions()
    commands = {"poot": poot_command(model, streams)}
    if peer is not None:
        slot_tokens = shared + PROMPT_TOKENS + OUTPUT_TOKENS
        commands["llama.cpp"] = llama_command(*peer, streams, slot_tokens)
    found: dict[str, list[list[Answer]]] = {name: [] for name in commands}
    quiet = {name: Rounds[list[Answer]]() for name in commands}
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(running(each)).port for name, each in commands.items()}
        for port in ports.values():
            asyncio.run(together(port, [{**body, "max_tokens": 8} for body in bodies()]))
        for number in range(rounds):
            for name in list(ports)[:: 1 if number % 2 == 0 else -1]:
                port = ports[name]
                found[name].append(
                    quiet[name].run(lambda p=port: asyncio.run(together(p, bodies())))
                )
    figures = {name: figures_of(answers) for name, answers in found.items()}
    for name, rounds_of in quiet.items():
        figures[name]["others_share_rounds"] = rounds_of.shares
    result: dict[str, Any] = {**before, "streams": streams, "shared": shared, **figures}
    if peer is not None:
        ours, theirs = figures["poot"], figures["llama.cpp"]
        pairs = zip(ours["output_tok_s_rounds"], theirs["output_tok_s_rounds"], strict=True)
        result["output_ratio"] = median(a / b for a, b in pairs)
        result["ttft_p95_ratio"] = ours["ttft_p95_s"] / theirs["ttft_p95_s"]
    return result


def figures_of(rounds: list[list[Answer]]) -> dict[str, Any]:
    """Return throughput a round, and latencies over the requests of all rounds."""
    speeds: list[float] = []
    for answers in rounds:
        span = max(a.arrivals_s[-1] for a in answers) - min(a.started_s for a in answers)
        speeds.append(sum(a.tokens for a in answers) / span)
    every = [answer for answers in rounds for answer in answers]
    first = [answer.first_token_s for answer in every]
    gaps = [(a.arrivals_s[-1] - a.arrivals_s[0]) / (a.tokens - 1) for a in every]
    return {
        "output_tok_s": median(speeds),
        "output_tok_s_rounds": speeds,
        "ttft_p50_s": quantile(first, 0.5),
        "ttft_p95_s": quantile(first, 0.95),
        "tpot_p50_s": quantile(gaps, 0.5),
        "cached_tokens": median(
            (a.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for a in every
        ),
    }
