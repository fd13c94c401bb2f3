"""Figures of a load test, under the names that ``vllm bench serve`` gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_llm.cli._load_client import Served

__all__ = ["METRICS", "report", "samples_ms"]

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "gap between pieces",
    "e2el": "whole request",
}
_PERCENTILES = (50, 90, 95, 99)


def samples_ms(served: Sequence[Served]) -> dict[str, NDArray[np.float64]]:
    """Return the samples of each metric in milliseconds; of requests that went well alone.

    TPOT is (end - first token) / (output tokens - 1), one a request; ITL is every gap.
    """
    good = [each for each in served if each.error is None]
    gaps = [np.diff(each.pieces_s) for each in good]
    seconds = {
        "ttft": np.array([each.pieces_s[0] - each.start_s for each in good]),
        "tpot": np.array(
            [
                (each.pieces_s[-1] - each.pieces_s[0]) / (each.output_tokens - 1)
                for each in good
                if each.output_tokens > 1
            ]
        ),
        "itl": np.concatenate(gaps) if gaps else np.zeros(0),
        "e2el": np.array([each.pieces_s[-1] - each.start_s for each in good]),
    }
    return {name: 1e3 * values for name, values in seconds.items()}


def report(
    served: Sequence[Served], duration_s: float, goals_ms: Mapping[str, float]
) -> dict[str, Any]:
    """Return all figures, JSON-ready.

    Args:
        served: Every request.
        duration_s: From the first request's start to the last one's end.
        goals_ms: Metric to the most that a good request may take; ``goodput`` counts those.
    """
    good = [each for each in served if each.error is None]
    output_tokens = sum(each.output_tokens for each in good)
    input_tokens = sum(each.prompt_tokens for each in good)
    figures: dict[str, Any] = {
        "completed": len(good),
        "failed": len(served) - len(good),
        "errors": dict(Counter(str(each.error)[:200] for each in served if each.error is not None)),
        "statuses": dict(Counter(str(each.status) for each in served)),
        "duration": duration_s,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "total_cached_tokens": sum(each.cached_tokens for each in good),
        "request_throughput": len(good) / duration_s,
        "output_throughput": output_tokens / duration_s,
        "total_token_throughput": (input_tokens + output_tokens) / duration_s,
        "request_goodput": None,
    }
    if goals_ms:
        figures["request_goodput"] = sum(_is_good(each, goals_ms) for each in good) / duration_s
    for name, values in samples_ms(served).items():
        figures |= _summary(name, values)
    return figures


def _is_good(served: Served, goals_ms: Mapping[str, float]) -> bool:
    samples = samples_ms([served])
    return all(
        float(np.mean(samples[name])) <= most
        for name, most in goals_ms.items()
        if samples[name].size
    )


def _summary(name: str, values: NDArray[np.float64]) -> dict[str, float | None]:
    if not values.size:
        keys = ["mean", "median", "std", *(f"p{p}" for p in _PERCENTILES)]
        return {f"{key}_{name}_ms": None for key in keys}
    summary: dict[str, float | None] = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    for percentile in _PERCENTILES:
        summary[f"p{percentile}_{name}_ms"] = float(np.percentile(values, percentile))
    return summary
