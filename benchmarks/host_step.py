"""Host time of the engine a step, without any device work: what Python takes between two steps.

The real engine loop, driver, scheduler and frames run over an engine that has its tokens at once. Each
turn of the loop is timed whole: frames taken, the step planned and built, its tokens read, the frame of
all rows sent. The few calls into the stub are left out. What the loop sends is read between the turns.

    python -m benchmarks.host_step --json results.json
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.server.results import conditions, quantile
from poot_executor import EngineInfo, EngineOptions, Sampled, StepInputs, StepResults
from poot_kernelgen import SAMPLE_FIELDS
from poot_llm import Driver, SamplingParams
from poot_serve._engine_loop import EngineLoop  # noqa: PLC2701
from poot_serve._frames import Submit, encode_frame  # noqa: PLC2701

VOCAB_SIZE = 49152
PROMPT_TOKENS = 32
_WARM_TURNS = 100
_ROW = SAMPLE_FIELDS.index("logits_row")
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.1},
}


class InstantEngine:
    """An engine whose tokens are made up and there at once; the time that it takes is counted.

    Attributes:
        spent_s: Seconds in its calls so far.
        num_fed: Tokens that it fed into steps.
    """

    def __init__(self, max_sequences: int, *, runs_ahead: bool) -> None:
        self.options = EngineOptions(
            context_tokens=4096, max_sequences=max_sequences, max_step_tokens=512,
            num_blocks=128 * max_sequences,
        )  # fmt: skip
        self.runs_ahead = runs_ahead
        self.spent_s = 0.0
        self.num_fed = 0
        self._tokens = np.zeros(0, np.int32)
        self._sampled = Sampled(np.zeros(0, np.int32), np.zeros(0, np.int32))

    @property
    def info(self) -> EngineInfo:
        """Facts of this engine."""
        return EngineInfo(
            backend="stub", device="stub", vocab_size=VOCAB_SIZE, options=self.options,
            weight_bytes=0, state_bytes=0, workspace_bytes=0, runs_ahead=self.runs_ahead,
        )  # fmt: skip

    def forward(self, step: StepInputs) -> None:
        """Make tokens up."""
        start = time.perf_counter()
        self.num_fed += 0 if step.feeds is None else len(step.feeds)
        self._tokens = (step.positions[step.logit_positions] * 7 + 11) % (VOCAB_SIZE - 1)
        self._sampled = Sampled(np.zeros(0, np.int32), np.zeros(0, np.int32))
        self.spent_s += time.perf_counter() - start

    def greedy(self) -> np.ndarray:
        """Return made up tokens."""
        return self._tokens

    def logits(self) -> np.ndarray:
        """Return nothing of use: no case needs logits."""
        raise NotImplementedError

    def sample(self, params: np.ndarray) -> None:
        """Take made up tokens."""
        start = time.perf_counter()
        self._sampled = Sampled(self._tokens[params[:, _ROW]], np.zeros(len(params), np.int32))
        self.spent_s += time.perf_counter() - start

    def sampled(self) -> Sampled:
        """Return them."""
        return self._sampled

    def start_results(self) -> Done:
        """Return what has come already."""
        return Done(StepResults(self._sampled, {}))

    def set_counts(self, slot: int, entries: np.ndarray) -> None:
        """Do nothing: counts change no token here."""

    def step_faults(self) -> Mapping[int, str]:
        """Return that nothing went wrong."""
        return {}

    def close(self) -> None:
        """Do nothing."""


class Done:
    """Results that are there."""

    def __init__(self, results: StepResults) -> None:
        self._results = results

    def wait(self) -> StepResults:
        """Return them."""
        return self._results


def measure(case: str, rows: int, steps: int, *, runs_ahead: bool, turnover: int) -> dict[str, Any]:
    """Return the host's microseconds a step.

    Args:
        case: How requests sample.
        rows: Running sequences.
        steps: Steps that are timed.
        runs_ahead: Whether the engine queues steps.
        turnover: Tokens of an answer, after which another request takes its place; 0 for one that
            outlasts the measurement.
    """
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    ours.setblocking(False)
    engine = InstantEngine(rows, runs_ahead=runs_ahead)
    driver = Driver(engine, eos_token_ids=[VOCAB_SIZE - 1])
    loop = EngineLoop(theirs, driver)
    rng = np.random.default_rng(1)
    next_key = 0

    def submit(most: int) -> None:
        nonlocal next_key
        prompt = rng.integers(0, VOCAB_SIZE - 1, PROMPT_TOKENS).astype("<i4").tobytes()
        params = SamplingParams(max_tokens=most, seed=next_key, **CASES[case])
        ours.setblocking(True)
        ours.sendall(encode_frame(Submit(key=next_key, prompt=prompt, params=params)))
        ours.setblocking(False)
        next_key += 1

    def drain() -> None:
        try:
            while ours.recv(1 << 20):
                pass
        except BlockingIOError:
            pass

    for number in range(rows):
        # With turnover they end one after the other, not all at once.
        submit(turnover * (number + 1) // rows + 1 if turnover else 4000)
    gc.collect()
    gc.freeze()
    wall: list[float] = []
    cpu: list[float] = []
    turn = 0
    while len(wall) < steps:
        stats, turn = driver.stats, turn + 1
        for _ in range(rows - stats.num_running - stats.num_waiting if turn > 1 else 0):
            submit(turnover or 4000)  # it is taken at the begin of this turn
        spent, start, before = engine.spent_s, time.perf_counter(), time.thread_time()
        loop._take_frames(wait=False)
        loop._admit_compiled()
        loop._step()
        inside = engine.spent_s - spent
        taken, used = time.perf_counter() - start - inside, time.thread_time() - before - inside
        drain()
        if turn > _WARM_TURNS:
            wall.append(taken)
            cpu.append(used)
    stats = driver.stats
    ours.close()
    theirs.close()
    return {
        "case": case, "rows": rows, "runs_ahead": runs_ahead, "turnover_tokens": turnover,
        "steps": len(wall), "steps_ahead": stats.steps_ahead, "fed_tokens": engine.num_fed,
        "host_us_median": 1e6 * median(wall), "host_us_p90": 1e6 * quantile(wall, 0.9),
        "host_us_p99": 1e6 * quantile(wall, 0.99), "host_cpu_us_median": 1e6 * median(cpu),
    }  # fmt: skip


def main() -> None:
    """Measure every case, stepwise and ahead, with requests that stay and that come and go."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--profile", metavar="CASE", help="profile one case ahead instead")
    options = parser.parse_args()
    if options.profile:
        profile = cProfile.Profile()
        profile.enable()
        measure(options.profile, options.rows, options.steps, runs_ahead=True, turnover=0)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    found = conditions()
    found["cells"] = []
    for turnover in (0, 256):
        for case in CASES:
            for runs_ahead in (False, True):
                cell = measure(
                    case, options.rows, options.steps, runs_ahead=runs_ahead, turnover=turnover
                )
                found["cells"].append(cell)
                print(json.dumps(cell), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
