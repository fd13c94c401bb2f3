"""``poot graph``: a model's graph as traced, its plan, and its kernels with their times."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import typer

from poot_core import UnsupportedError
from poot_executor import Engine, StepInputs, explain, time_launches, trace_options
from poot_llm._open import OpenOptions, engine_options, open_model, read_model

__all__ = ["run_graph"]

STAGES = ("graph", "plan")
_CONTEXT = 128  # tokens that stand before the timed step
_REPEAT = 20


def run_graph(
    model: str,
    *,
    stage: str,
    is_timed: bool,
    has_all_layers: bool,
    num_tokens: int,
    options: OpenOptions,
) -> None:
    """Print one stage of a model's way to kernels.

    Args:
        model: A checkpoint.
        stage: ``graph`` or ``plan``.
        is_timed: Run a step and print the time of each launch beside the time that reading its
            weights takes at least.
        has_all_layers: Show layers that repeat an earlier one too.
        num_tokens: Tokens of the timed step, of one sequence.
        options: How to open it.
    """
    if stage not in STAGES:
        raise typer.BadParameter(f"--stage is {stage!r}; it must be one of {', '.join(STAGES)}")
    if stage == "graph" and not is_timed:
        _print_traced(model, options)
        return
    opened = open_model(model, options)
    with opened.resources:
        engine: Any = opened.engine
        if not hasattr(engine, "program"):
            raise UnsupportedError(
                f"backend {engine.info.backend!r} runs the graph without a plan; "
                "--stage graph prints it"
            )
        if is_timed:
            _print_times(engine, num_tokens)
        else:
            print(explain(engine.program, all_layers=has_all_layers))


def _print_traced(name: str, options: OpenOptions) -> None:
    from poot_core import Settings
    from poot_graph_ir import print_graph

    checkpoint, model = read_model(name)
    with checkpoint:
        chosen = engine_options(model, options, Settings.from_environment())
        print(print_graph(model.trace(trace_options(chosen))))


def _print_times(engine: Any, num_tokens: int) -> None:
    step = _timed_step(engine, num_tokens)
    engine.forward(step)  # pages and caches settle
    times, bandwidth = time_launches(engine, step, repeat=_REPEAT)
    total = sum(time.seconds for time in times)
    bound = sum(time.bound_s for time in times)
    print("      us   share   read us  kernel                        launch")
    for time in times:
        read = f"{1e6 * time.bound_s:9.1f}" if time.weight_bytes else " " * 9
        print(
            f"{1e6 * time.seconds:8.1f} {time.seconds / total:7.1%} {read}  {time.kernel:<28}  "
            f"{time.label}"
        )
    print(
        f"{1e6 * total:8.1f} us in all for {len(step.token_ids)} tokens after "
        f"{step.positions[0]}; reading the weights once at {bandwidth:.1f} GB/s takes "
        f"{1e6 * bound:.1f} us"
    )
    print("each launch is timed by itself, so the sum is more than a step takes", file=sys.stderr)


def _timed_step(engine: Engine, num_tokens: int) -> StepInputs:
    """Return a step of one sequence that has ``_CONTEXT`` tokens before it, where they fit."""
    options = engine.info.options
    count = min(num_tokens, options.max_step_tokens, options.context_tokens)
    first = min(_CONTEXT, options.context_tokens - count)
    ascending = np.arange(options.context_tokens, dtype=np.int32)
    table = np.zeros((1, options.max_blocks_per_row), np.int32)
    table[0] = np.arange(options.max_blocks_per_row)
    ids = np.random.default_rng(0).integers(0, engine.info.vocab_size, count)
    positions = ascending[first : first + count]
    return StepInputs(
        token_ids=ids.astype(np.int32),
        positions=positions,
        rows=np.zeros(count, np.int32),
        sequence_lengths=np.array([first + count], np.int32),
        block_tables=table,
        slot_mapping=positions,  # block i of the table is block i of the pool
        logit_positions=np.array([count - 1], np.int32),
    )
