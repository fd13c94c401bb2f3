"""``poot bench-serve``: puts a load on a server of the OpenAI dialect and measures what clients see."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from poot_core import DeviceError, RequestError
from poot_llm.cli._load_client import Served, Target, send
from poot_llm.cli._load_plot import distributions_svg
from poot_llm.cli._load_report import METRICS, report, samples_ms
from poot_llm.cli._load_shape import Lengths, arrivals_s, prompts
from poot_llm.cli._print import print_json, print_pairs

__all__ = ["LoadOptions", "parse_goals", "run_bench_serve", "serve_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What load to make.

    Attributes:
        num_requests: Requests that count.
        input_tokens: Distribution of prompt lengths, without the shared part.
        output_tokens: Distribution of answer lengths.
        shared_tokens: Tokens that all prompts begin with.
        rate: Requests a second, or None to send as fast as ``concurrency`` lets.
        burstiness: Of the arrivals; 1 is a Poisson process.
        concurrency: Most requests under way, or None.
        seed: Of lengths, tokens and arrivals.
        first_id: Lowest token id of a prompt.
        end_id: Id past the highest.
        num_warmups: Requests before those that count.
    """

    num_requests: int = 100
    input_tokens: str = "128"
    output_tokens: str = "128"
    shared_tokens: int = 0
    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None
    seed: int = 0
    first_id: int = 1000
    end_id: int = 8000
    num_warmups: int = 1


def parse_goals(texts: list[str]) -> dict[str, float]:
    """Return metric to milliseconds.

    Raises:
        RequestError: If one is not like ``ttft:500``.
    """
    goals: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            goals[name] = float(value)
        except ValueError:
            name = ""
        if name not in METRICS:
            raise RequestError(
                f"{text!r} is no goal; write ttft:500, tpot:50, itl:100 or e2el:5000 (milliseconds)",
                field="goodput",
            )
    return goals


async def serve_load(target: Target, options: LoadOptions) -> tuple[list[Served], float]:
    """Return how each request went, and the seconds that all took."""
    rng = np.random.default_rng(options.seed)
    count = options.num_requests
    sizes = Lengths(options.input_tokens).draw(rng, count)
    answers = Lengths(options.output_tokens).draw(rng, count).tolist()
    ids = prompts(
        rng, sizes, num_shared=options.shared_tokens, vocabulary=(options.first_id, options.end_id)
    )
    due = arrivals_s(rng, count, options.rate, options.burstiness).tolist()
    for number in range(options.num_warmups):
        warm = await send(target, ids[number % count][::-1], 2)
        if warm.error is not None:
            raise DeviceError(f"the server does not answer as it should: {warm.error}")
    room = asyncio.Semaphore(options.concurrency or count)
    start = perf_counter()

    async def one(number: int) -> Served:
        await asyncio.sleep(start + due[number] - perf_counter())
        async with room:
            return await send(target, ids[number], answers[number])

    served = await asyncio.gather(*(one(number) for number in range(count)))
    return served, perf_counter() - start


def run_bench_serve(
    target: Target, options: LoadOptions, *, goals: list[str], as_json: bool, plot: Path | None
) -> None:
    """Run a load test and print its figures."""
    goals_ms = parse_goals(goals)
    served, duration_s = asyncio.run(serve_load(target, options))
    figures = report(served, duration_s, goals_ms)
    if plot is not None:
        samples = samples_ms(served)
        speed = f"{figures['output_throughput']:.1f} tok/s"
        title = f"{target.url}: {figures['completed']} requests, {speed}"
        named = {METRICS[name]: samples[name] for name in METRICS}
        plot.write_text(distributions_svg(named, title))
    for error, count in figures["errors"].items():
        print(f"{count} failed: {error}", file=sys.stderr)
    if as_json:
        print_json({**figures, "options": asdict(options)})
    else:
        print_pairs(f"{target.url}: {options.num_requests} requests", _pairs(figures))
    if not figures["completed"]:
        raise DeviceError("no request went well")


def _pairs(figures: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = [
        ("completed, failed", f"{figures['completed']}, {figures['failed']}"),
        ("seconds", f"{figures['duration']:.2f}"),
        (
            "input, output tokens",
            f"{figures['total_input_tokens']}, {figures['total_output_tokens']}",
        ),
        ("requests a second", f"{figures['request_throughput']:.2f}"),
        ("output tokens a second", f"{figures['output_throughput']:.1f}"),
        ("all tokens a second", f"{figures['total_token_throughput']:.1f}"),
    ]
    if figures["request_goodput"] is not None:
        pairs.append(("good requests a second", f"{figures['request_goodput']:.2f}"))
    for name, title in METRICS.items():
        values = [figures[f"{key}_{name}_ms"] for key in ("mean", "median", "p95", "p99")]
        if values[0] is not None:
            mean, median, p95, p99 = values
            text = f"mean {mean:.1f}, median {median:.1f}, p95 {p95:.1f}, p99 {p99:.1f} ms"
            pairs.append((f"{name.upper()} ({title})", text))
    return pairs
