"""Whole steps of models with random bf16 weights on one GPU: decoding by replay, and prefill.

Run: python benchmarks/gpu/decode.py [--models 1b 8b] [--backend ptx]. Each decode step is the whole
model with greedy sampling, captured as one sequence; ``device`` is what the GPU takes, ``wall`` what a
step costs with everything that the host does for it, ``host`` the host's share before it waits,
``tok_s_ahead`` the rate with up to four steps queued before one token is read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from models import CONFIGS, RandomCheckpoint

from poot_core import Settings
from poot_executor import EngineOptions, StepInputs, open_engine
from poot_executor._runner import selected_launches  # noqa: PLC2701
from poot_models import load_family

RESULTS: list[dict[str, object]] = []
BLOCK = 32
AHEAD = 4
RNG = np.random.default_rng(5)


def report(name: str, **facts: object) -> None:
    RESULTS.append({"name": name, **facts})
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
    print(f"{name:32s} {'  '.join(shown)}", flush=True)


def open_random(
    name: str, backend: str, *, context: int, rows: int, tokens: int, packed: str | None = None
) -> Any:
    checkpoint = RandomCheckpoint(CONFIGS[name], packed)
    model = load_family(checkpoint)
    options = EngineOptions(
        backend=backend, context_tokens=context, max_sequences=rows, max_step_tokens=tokens,
        block_size=BLOCK, num_blocks=rows * -(-context // BLOCK),
    )  # fmt: skip
    started = time.perf_counter()
    engine = open_engine(
        model.trace, model.cache_key, checkpoint.weights, model.vocab_size, options,
        Settings.from_environment(),
    )  # fmt: skip
    info = engine.info
    report(
        f"{name} open", seconds=time.perf_counter() - started, weights_gb=info.weight_bytes / 1e9,
        states_gb=info.state_bytes / 1e9, workspace_gb=info.workspace_bytes / 1e9,
        sampler_gb=info.sampler_bytes / 1e9,
    )  # fmt: skip
    return engine


def step_of(engine: Any, rows: list[tuple[int, int, int]]) -> StepInputs:
    """Return a step of (sequence, first position, tokens) with random tokens, last logits wanted."""
    width = engine.info.options.max_blocks_per_row
    positions = np.concatenate([np.arange(p, p + n) for _, p, n in rows]).astype(np.int32)
    owner = np.concatenate([np.full(n, i) for i, (_, _, n) in enumerate(rows)]).astype(np.int32)
    tables = np.array([[s * width + j for j in range(width)] for s, _, _ in rows], np.int32)
    slots = (tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK).astype(np.int32)
    ends = np.cumsum([n for _, _, n in rows]).astype(np.int32) - 1
    vocab = engine.info.vocab_size
    return StepInputs(
        token_ids=RNG.integers(0, vocab, len(positions)).astype(np.int32), positions=positions,
        rows=owner, sequence_lengths=np.array([p + n for _, p, n in rows], np.int32),
        block_tables=tables, slot_mapping=slots, logit_positions=ends,
    )  # fmt: skip


def fill(engine: Any, rows: int, length: int) -> None:
    """Run prompts, so that keys and values are a model's own."""
    most = engine.info.options.max_step_tokens
    for sequence in range(rows):
        for start in range(0, length, most):
            engine.forward(step_of(engine, [(sequence, start, min(most, length - start))]))


def whole_step(engine: Any, step: StepInputs) -> tuple[Any, dict[str, int]]:
    """Return the prepared launches of a step with greedy sampling, and its sizes."""
    runner, program = engine.runner, engine.program
    key = engine.prepare_step(step)
    launches = [runner._launch(x, variant) for x, variant in selected_launches(program, key)]
    launches += [runner._launch(x, x.variants[0]) for x in program.greedy]
    return runner.device.prepare(launches), dict(engine.sizes)


def shares(labels: tuple[str, ...], seconds: np.ndarray) -> dict[str, float]:
    """Return microseconds by kind of launch."""
    total: dict[str, float] = defaultdict(float)
    for label, value in zip(labels, seconds, strict=True):
        kind = "".join(c for c in label if not c.isdigit()).replace("..", ".")
        total[kind] += value * 1e6
    return {k: round(v, 1) for k, v in sorted(total.items(), key=lambda x: -x[1])[:14]}


def decode(engine: Any, name: str, rows: int, context: int, *, details: bool) -> None:
    runner, device = engine.runner, engine.runner.device
    fill(engine, rows, context - 1)
    step = step_of(engine, [(r, context - 1, 1) for r in range(rows)])
    engine.forward(step)
    eager = engine.greedy()
    prepared, sizes = whole_step(engine, step)
    runner._host.flush()
    began = time.perf_counter()
    captured = device.capture(prepared, sizes)
    capture_s = time.perf_counter() - began
    device.run(prepared, sizes)
    replayed = runner._read(engine.program.greedy_ids, rows).view(np.int32)
    assert (replayed == eager).all(), "replay differs from eager"
    walls, hosts, ahead = [], [], []
    for number in range(60):
        steps = 1 if number < 40 else AHEAD
        began = time.perf_counter()
        for _ in range(steps):
            engine.prepare_step(step)
            runner._host.flush()
            device.run(prepared, sizes)
        queued = time.perf_counter() - began
        runner._read(engine.program.greedy_ids, rows)
        took = time.perf_counter() - began
        if steps > 1:
            ahead.append(took / steps)
        else:
            hosts.append(queued)
            walls.append(took)
    wall, wall_ahead = float(np.median(walls)), float(np.median(ahead))
    facts = {"tok_s": rows / wall, "tok_s_ahead": rows / wall_ahead}
    if hasattr(device, "time_replay"):  # not where a driver tells no times
        facts["device_us"] = device.time_replay(prepared, sizes, repeat=30) * 1e6
    report(
        f"{name} decode R={rows} context={context}", **facts, wall_us=wall * 1e6,
        host_us=float(np.median(hosts)) * 1e6, launches=len(prepared.labels),
        captured=captured, capture_ms=capture_s * 1e3,
    )  # fmt: skip
    if details:
        times = device.time_sequence(prepared, sizes, repeat=5)
        report(
            f"{name}   launches us", sum=float(times.sum() * 1e6), **shares(prepared.labels, times)
        )


def invariance(engine: Any, name: str, length: int = 203) -> None:
    """Compare last logits of a prompt run whole, in pieces, beside others, and token by token."""
    tokens = RNG.integers(0, engine.info.vocab_size, length).astype(np.int32)
    most = min(length, engine.info.options.max_step_tokens)

    def run(sequence: int, pieces: list[int], others: int = 0) -> np.ndarray:
        start = 0
        for size in pieces:
            rows = [(sequence, start, size), *((1 + i, 100, 1) for i in range(others))]
            step = step_of(engine, rows)
            step.token_ids[:size] = tokens[start : start + size]
            engine.forward(step)
            start += size
        return np.array(engine.logits()[0])

    whole = run(0, [most, length - most] if length > most else [length])
    ways = {
        "pieces": run(0, [64, 100, length - 164]),
        "tokens": run(0, [length - 20] + [1] * 20),
        "others": run(
            0, [length - 5] + [1] * 5, others=min(20, engine.info.options.max_sequences - 1)
        ),
    }
    report(f"{name} invariance", **{k: float((v == whole).mean()) for k, v in ways.items()})


def against_oracle(engine: Any, name: str) -> None:
    """Compare logits with the NumPy oracle's, for models that it can run."""
    oracle = open_random(name, "oracle", context=engine.info.options.context_tokens,
                         rows=engine.info.options.max_sequences,
                         tokens=engine.info.options.max_step_tokens)  # fmt: skip
    worst = 0.0
    for rows in ([(0, 0, 90)], [(0, 90, 1)], [(0, 91, 3), (1, 0, 40), (2, 0, 1)]):
        step = step_of(engine, rows)
        found: list[np.ndarray] = []
        for each in (engine, oracle):
            each.forward(step)
            found.append(np.array(each.logits()))
        spread = found[1].std()
        worst = max(worst, float(np.abs(found[0] - found[1]).max() / spread))
    oracle.close()
    report(f"{name} oracle", largest_difference_over_spread=worst)


def prefill(engine: Any, name: str, tokens: int, *, details: bool) -> None:
    step = step_of(engine, [(0, 0, tokens)])
    device = engine.runner.device
    engine.forward(step)
    walls = []
    for _ in range(5):
        began = time.perf_counter()
        engine.forward(step)
        device.synchronize()
        walls.append(time.perf_counter() - began)
    report(f"{name} prefill {tokens}", ms=float(np.median(walls)) * 1e3)
    if details:
        key, times = engine.time_step(step, repeat=3)
        prepared = engine.runner._prepared[key]
        report(
            f"{name}   launches us", sum=float(times.sum() * 1e6), **shares(prepared.labels, times)
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["1b", "8b", "qwen0.5b"])
    parser.add_argument("--backend", default="ptx")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 64])
    parser.add_argument("--context", nargs="*", type=int, default=[512])
    parser.add_argument("--packed", default=None, help="format of the matrices, such as Q8_0")
    parser.add_argument("--torch", action="store_true", help="time a plain torch loop as well")
    parser.add_argument("--prefill", type=int, default=2048)
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    failed = 0
    for name in options.models:
        try:
            tokens = max(options.prefill, 64)
            longest = max(tokens, *(context + 64 for context in options.context))
            engine = open_random(
                name, options.backend, context=longest, rows=max(options.rows), tokens=tokens,
                packed=options.packed,
            )  # fmt: skip
            invariance(engine, name)
            if name == "tiny":
                against_oracle(engine, name)
            read = engine.runner.device.read_bandwidth_gb_s(4 << 30)
            report(f"{name} read", gb_s=read, bound_us=engine.info.weight_bytes / read / 1e3)
            for rows in options.rows:
                for context in options.context:
                    decode(engine, name, rows, context, details=options.details)
            prefill(engine, name, tokens, details=options.details)
            engine.close()
            if options.torch:
                from torch_referee import decode_seconds

                for rows in options.rows:
                    for context in options.context:
                        seconds = decode_seconds(CONFIGS[name], rows, context)
                        report(f"{name} torch R={rows} context={context}", tok_s=rows / seconds)
        except Exception:
            failed += 1
            traceback.print_exc()
    if options.output:
        options.output.write_text(json.dumps(RESULTS, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
