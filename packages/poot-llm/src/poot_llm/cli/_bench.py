"""``poot bench``: each figure as the project defines it, medians with every sample beside them."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from poot_core import DeviceError, RequestError
from poot_executor import Engine
from poot_llm._driver import Driver
from poot_llm._open import DEFAULT_CONTEXT, OpenOptions, open_model
from poot_llm._request import Request
from poot_llm._sampling_params import SamplingParams
from poot_llm.cli._print import print_json, print_pairs, progress

__all__ = ["measure_decode", "measure_prefill", "peak_rss_mb", "run_bench"]

_PREFILL = 512
_DECODE = 128
_FIRST_TOKEN_PROMPT = 5
_MOST_FIRST_TOKEN_RUNS = 5


def run_bench(
    model: str,
    *,
    prefill: int | None,
    decode: int | None,
    repeat: int,
    depth: int,
    batch: int,
    as_json: bool,
    options: OpenOptions,
) -> None:
    """Measure a model and print the figures.

    Prefill is ``prefill`` random ids in one step with the last position's logits. Decode is
    ``decode`` steps from an empty context, the first of which reads one token, with greedy sampling;
    with ``depth`` from a context of so many tokens, and with ``batch`` for so many sequences at once,
    whose tokens count together. Both are measured in turn, with a pure read of as many bytes as the
    weights have in between. Where they are None, they are 512 and 128, or what the model's context
    holds.
    """
    wanted = prefill or _PREFILL, decode or _DECODE
    needed = _needed_tokens(*wanted, depth, batch)
    # Left as it is where it suffices, so that the measured start finds this plan in the cache.
    options = replace(
        options,
        context=options.context or (needed if needed > DEFAULT_CONTEXT else None),
        max_step_tokens=max(options.max_step_tokens, wanted[0]),
        max_sequences=max(options.max_sequences, batch),
    )
    samples: dict[str, list[float]] = {
        name: [] for name in ("prefill_tok_s", "decode_tok_s", "read_gb_s", "first_token_s")
    }
    with progress(f"loading {Path(model).name}"):
        opened = open_model(model, options)
    with opened.resources, progress("measuring"):
        context = opened.engine.info.options.context_tokens
        prefill, decode = _fit(context, prefill, decode, depth, batch)
        driver = Driver(opened.engine, shares_prefixes=False)
        recorded = record_ahead(driver)
        measure_prefill(driver, opened.engine, prefill, seed=0)  # pages, caches and clocks settle
        measure_decode(driver, opened.engine, min(decode, 8), seed=0, depth=depth, batch=batch)
        peak = 0.0
        for turn in range(repeat):
            samples["prefill_tok_s"].append(
                measure_prefill(driver, opened.engine, prefill, seed=turn)
            )
            samples["decode_tok_s"].append(
                measure_decode(driver, opened.engine, decode, seed=turn, depth=depth, batch=batch)
            )
            if not turn:
                peak = peak_rss_mb()  # before the read test takes memory of its own
            read = read_gb_s(opened.engine)
            if read is not None:
                samples["read_gb_s"].append(read)
        info = opened.engine.info
        vocab_size = info.vocab_size
    with progress("measuring the start"):
        first_token_s(model, options, vocab_size, seed=0)  # what it plans is in the cache then
        for turn in range(min(repeat, _MOST_FIRST_TOKEN_RUNS)):
            samples["first_token_s"].append(first_token_s(model, options, vocab_size, seed=turn))
    if not samples["read_gb_s"]:
        print("this engine has no read test, so read_gb_s is null", file=sys.stderr)
    figures: dict[str, object] = {
        "prefill_tok_s": median(samples["prefill_tok_s"]),
        "decode_tok_s": median(samples["decode_tok_s"]),
        "load_s": opened.load_s,
        "first_token_s": median(samples["first_token_s"]),
        "peak_rss_mb": max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
        "read_gb_s": median(samples["read_gb_s"]) if samples["read_gb_s"] else None,
        "samples": samples,
    }
    if as_json:
        print_json(figures)
        return
    # What scripts do not ask for: their document is settled.
    figures |= {
        f"weights, states, workspace and sampler at R = {options.max_sequences}, MB": " + ".join(
            f"{nbytes / 1e6:.1f}"
            for nbytes in (
                info.weight_bytes,
                info.state_bytes,
                info.workspace_bytes,
                info.sampler_bytes,
            )
        ),
        "decode steps recorded ahead, seconds": f"{recorded[0]}, {recorded[1]:.3g}",
    }
    print_pairs(
        f"{Path(model).name}: {prefill} tokens in, {decode} steps out, {repeat} times",
        [(name, _figure(value)) for name, value in figures.items() if name != "samples"],
    )


def _needed_tokens(prefill: int, decode: int, depth: int, batch: int) -> int:
    return max(prefill, _decoded_tokens(decode, depth, batch) + depth) + 1


def _fit(
    context: int, prefill: int | None, decode: int | None, depth: int, batch: int
) -> tuple[int, int]:
    """Return the tokens to measure; those that nobody named shrink to what the context holds.

    Raises:
        RequestError: If it does not hold what was named.
    """
    room = context - 1
    found = (
        prefill or max(1, min(_PREFILL, room)),
        decode or max(1, min(_DECODE, room - depth - _decoded_tokens(0, depth, batch))),
    )
    needed = _needed_tokens(*found, depth, batch)
    if context < needed:
        raise RequestError(
            f"the context is {context}; {found[0]} prompt tokens and {found[1]} steps need {needed}",
            field="context",
        )
    if (prefill is None and found[0] < _PREFILL) or (decode is None and found[1] < _DECODE):
        print(
            f"the context is {context}: measuring {found[0]} prompt tokens and {found[1]} steps",
            file=sys.stderr,
        )
    return found


def record_ahead(driver: Driver) -> tuple[int, float]:
    """Record all decode steps that an idle server would; return how many, and seconds."""
    start, count = perf_counter(), 0
    while driver.capture_ahead():
        count += 1
    return count, perf_counter() - start


def _figure(value: object) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) else "not measured"


def measure_prefill(driver: Driver, engine: Engine, count: int, *, seed: int) -> float:
    """Return tokens a second of one step over ``count`` random ids."""
    ids = np.random.default_rng(seed).integers(0, engine.info.vocab_size, count).tolist()
    driver.add(Request(prompt_ids=ids, params=SamplingParams(temperature=0.0, max_tokens=1)))
    start = perf_counter()
    events = driver.step()
    elapsed = perf_counter() - start
    if not events or events[0].finish_reason != "length":
        raise DeviceError(f"the prompt of {count} tokens did not run in one step: {events}")
    return count / elapsed


def measure_decode(
    driver: Driver, engine: Engine, count: int, *, seed: int, depth: int = 0, batch: int = 1
) -> float:
    """Return tokens a second of ``count`` steps of one token of each sequence.

    Args:
        driver: An idle driver.
        engine: Its engine.
        count: Steps.
        seed: Of the random prompts.
        depth: Tokens that each context holds before; the first step reads one token where it is 0.
        batch: Sequences.
    """
    random = np.random.default_rng(seed)
    params = SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=_decoded_tokens(count, depth, batch)
    )
    waiting: set[int] = set()
    for _ in range(batch):
        ids = random.integers(0, engine.info.vocab_size, depth or 1).tolist()
        waiting.add(driver.add(Request(prompt_ids=ids, params=params)))
    under_way = list(waiting)
    while depth and waiting:
        waiting -= {event.request_id for event in driver.step()}
    start = perf_counter()
    for _ in range(count):
        made = driver.step()
        if len(made) != batch:
            raise DeviceError(f"a step of {batch} sequences gave {len(made)} tokens")
    elapsed = perf_counter() - start
    for request_id in under_way:
        driver.cancel(request_id)
    return batch * count / elapsed


def _decoded_tokens(count: int, depth: int, batch: int) -> int:
    """Return the tokens that one sequence may make: those before it wait for later prompts too."""
    return count + (batch if depth else 0)


def read_gb_s(engine: Engine) -> float | None:
    """Return the pure read bandwidth that compiled code of this engine reaches, GB/s, or None."""
    probe = getattr(engine, "read_bandwidth_gb_s", None)  # engines over a device have one
    return None if probe is None else float(probe(max(engine.info.weight_bytes, 64 << 20)))


def peak_rss_mb() -> float:
    """Return the largest resident size that this process had, mapped pages included, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def first_token_s(model: str, options: OpenOptions, vocab_size: int, *, seed: int) -> float:
    """Return seconds from the start of a fresh process to its first token of output."""
    ids = np.random.default_rng(seed).integers(0, vocab_size, _FIRST_TOKEN_PROMPT).tolist()
    command = [
        sys.executable, "-m", "poot_llm", "generate", model, "--temperature", "0", "--ignore-eos",
        "--max-tokens", "1", "--prompt-ids", ",".join(map(str, ids)),
        "--backend", options.backend, "--precision", options.precision,
    ]  # fmt: skip
    for name, value in (("--threads", options.threads), ("--context", options.context)):
        if value is not None:
            command += [name, str(value)]
    start = perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(1)
        elapsed = perf_counter() - start
        _, log = child.communicate()
    if child.returncode:
        lines = log.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise DeviceError(f"the measured process ended with {child.returncode}: {lines[-1]}")
    return elapsed
