"""Whole answers through the driver on one GPU: one step ahead beside step by step, in turn.

Run: python benchmarks/gpu/driver.py [--models 1b qwen0.5b] [--backend ptx]. ``step_us`` is what a step
of all rows takes, scheduling, sampling and reading tokens included; ``host_us`` what the driver takes
of it without the calls that wait for the device. Tokens of both ways are compared, all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from decode import RESULTS, open_random, report

from poot_llm import Driver, Request, SamplingParams

PARAMS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 3},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1},
}


class Timed:
    """An engine whose waits are timed; one that is not asked to run ahead, if need be.

    Attributes:
        waited_s: Seconds in calls that wait for the device.
    """

    def __init__(self, engine: Any, *, runs_ahead: bool) -> None:
        self._engine = engine
        self.info = replace(engine.info, runs_ahead=runs_ahead)
        self.waited_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _waiting(self, call: Any) -> Any:
        start = time.perf_counter()
        try:
            return call()
        finally:
            self.waited_s += time.perf_counter() - start

    def step_faults(self) -> Any:
        return self._waiting(self._engine.step_faults)

    def sampled(self) -> Any:
        return self._waiting(self._engine.sampled)

    def greedy(self) -> Any:
        return self._waiting(self._engine.greedy)

    def start_results(self) -> Any:
        return _Pending(self, self._engine.start_results())


class _Pending:
    def __init__(self, timed: Timed, pending: Any) -> None:
        self._timed, self._pending = timed, pending

    def wait(self) -> Any:
        return self._timed._waiting(self._pending.wait)


def answers(engine: Any, rows: int, steps: int, kind: str, *, runs_ahead: bool) -> dict[str, Any]:
    """Return tokens of ``rows`` requests that decode together, and the time of their steps."""
    rng = np.random.default_rng(rows)
    timed = Timed(engine, runs_ahead=runs_ahead)
    driver = Driver(timed, shares_prefixes=False)
    params = SamplingParams(max_tokens=steps, ignore_eos=True, **PARAMS[kind])
    prompts = rng.integers(0, engine.info.vocab_size, (rows, 64)).tolist()
    ids = [driver.add(Request(prompt_ids=prompt, params=params)) for prompt in prompts]
    found: dict[int, list[int]] = {request_id: [] for request_id in ids}
    taken: list[float] = []
    hosts: list[float] = []
    while driver.has_work:
        start, waited = time.perf_counter(), timed.waited_s
        for event in driver.step():
            found[event.request_id] += event.token_ids
        took = time.perf_counter() - start
        taken.append(took)
        hosts.append(took - (timed.waited_s - waited))
    middle = slice(len(taken) // 4, -len(taken) // 8)
    return {
        "tokens": list(found.values()),
        "step_us": 1e6 * float(np.median(taken[middle])),
        "host_us": 1e6 * float(np.median(hosts[middle])),
        "ahead": driver.stats.steps_ahead,
    }


def measure(engine: Any, name: str, rows: int, kind: str, steps: int, rounds: int) -> bool:
    """Report both ways; whether their tokens are equal."""
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for number in range(rounds + 1):
        for runs_ahead in (False, True)[:: 1 if number % 2 else -1]:
            run = answers(engine, rows, steps, kind, runs_ahead=runs_ahead)
            found[runs_ahead].append(run)
    tokens = [run["tokens"] for runs in found.values() for run in runs]
    is_equal = all(each == tokens[0] for each in tokens)

    def middle(runs_ahead: bool, what: str) -> float:
        return float(np.median([run[what] for run in found[runs_ahead][1:]]))

    report(
        f"{name} R={rows} {kind}", step_us=middle(False, "step_us"),
        ahead_step_us=middle(True, "step_us"), host_us=middle(False, "host_us"),
        ahead_host_us=middle(True, "host_us"),
        tok_s=rows * 1e6 / middle(False, "step_us"),
        ahead_tok_s=rows * 1e6 / middle(True, "step_us"),
        steps_ahead=found[True][0]["ahead"], equal=is_equal,
    )  # fmt: skip
    return is_equal


def main() -> int:
    """Measure models, rows and kinds of sampling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["1b", "qwen0.5b"])
    parser.add_argument("--backend", default="ptx")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 64])
    parser.add_argument("--kinds", nargs="*", default=["greedy", "sampled"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    is_equal = True
    for name in options.models:
        engine = open_random(
            name,
            options.backend,
            context=64 + options.steps + 64,
            rows=max(options.rows),
            tokens=512,
        )
        if not engine.info.runs_ahead:
            raise SystemExit(f"{options.backend} does not queue steps")
        while engine.capture_ahead():
            pass
        for rows in options.rows:
            for kind in options.kinds:
                is_equal &= measure(engine, name, rows, kind, options.steps, options.rounds)
        engine.close()
    if options.output:
        options.output.write_text(json.dumps(RESULTS, indent=1) + "\n")
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
