"""``poot graph``: a model's graph as traced, its plan, and its kernels with their times."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from poot_core import UnsupportedError
from poot_executor import StepInputs, trace_options
from poot_llm._open import OpenedModel, OpenOptions, engine_options, open_model, read_model
from poot_llm.cli._bench import read_gb_s
from poot_llm.cli._print import sizes

if TYPE_CHECKING:
    from poot_load import WeightStore

__all__ = ["run_graph"]

STAGES = ("graph", "plan", "kernels")
_CONTEXT = 128  # tokens that stand before the timed step
_REPEAT = 20


def run_graph(
    model: str, *, stage: str, is_timed: bool, num_tokens: int, options: OpenOptions
) -> None:
    """Print one stage of a model's way to kernels.

    Args:
        model: A checkpoint.
        stage: ``graph``, ``plan`` or ``kernels``.
        is_timed: Run a step and print the time of each launch beside the time that reading its
            weights takes at least.
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
        program: Any = getattr(opened.engine, "program", None)
        if program is None:
            raise UnsupportedError(
                f"backend {opened.engine.info.backend!r} runs the graph without a plan; "
                "--stage graph prints it"
            )
        if is_timed:
            _print_times(opened, program, num_tokens)
        elif stage == "plan":
            _print_plan(program)
        else:
            _print_kernels(program)


def _print_traced(name: str, options: OpenOptions) -> None:
    from poot_core import Settings
    from poot_graph_ir import print_graph

    checkpoint, model = read_model(name)
    with checkpoint:
        chosen = engine_options(model, options, Settings.from_environment())
        print(print_graph(model.trace(trace_options(chosen))))


def _print_plan(program: Any) -> None:
    print(f"program {program.name!r}, precision {program.precision}, for {program.target}")
    print(
        f"{len(program.launches)} launches of {len(program.requests)} kernels; "
        f"intermediates {sizes(program.arena_bytes)} in {len(program.temps)} places"
    )
    for number, launch in enumerate((*program.launches, *program.greedy)):
        kernel = program.requests[launch.variants[0]]
        reads = " ".join(
            f"{operand.kind}.{operand.value}"
            for operand in launch.operands
            if operand.kind not in {"i64", "f32", "symbol", "status"}
        )
        variants = ",".join(map(str, launch.variants))
        print(f"{number:4} {launch.symbol} {type(kernel).__name__:20} [{variants}] {launch.label}")
        print(f"       {reads}")


def _print_kernels(program: Any) -> None:
    uses = Counter(variant for launch in program.launches for variant in launch.variants)
    for number, request in enumerate(program.requests):
        print(f"kernel {number}, in {uses[number]} launches")
        print(f"  {request}")


def _print_times(opened: OpenedModel, program: Any, num_tokens: int) -> None:
    engine: Any = opened.engine
    device = getattr(getattr(engine, "runner", None), "device", None)
    if device is None:
        raise UnsupportedError(f"backend {engine.info.backend!r} does not time its kernels")
    step = _timed_step(opened, num_tokens)
    engine.forward(step)
    prepared = engine.runner.prepare(engine.prepare_step(step))
    seconds = device.time_sequence(prepared, engine.sizes, repeat=_REPEAT)
    read = read_gb_s(engine)
    assert opened.checkpoint is not None, "a model from disk has one"
    nbytes = _bytes_by_label(program, opened.checkpoint.weights)
    total = bound = 0.0
    print("      us  of it   read us  launch")
    for label, value in zip(prepared.labels, seconds, strict=True):
        need = nbytes.get(label, 0.0) / (read * 1e9) if read else 0.0
        total, bound = total + value, bound + need
        mark = f"{1e6 * need:9.1f}" if need else " " * 9
        print(f"{1e6 * value:8.1f} {value / sum(seconds):6.1%} {mark}  {label}")
    rate = (
        f"; reading the weights once at {read:.1f} GB/s takes {1e6 * bound:.1f} us" if read else ""
    )
    print(f"{1e6 * total:8.1f} us in all for {num_tokens} tokens after {_CONTEXT}{rate}")
    print("each launch is timed by itself, so the sum is more than a step takes", file=sys.stderr)


def _timed_step(opened: OpenedModel, num_tokens: int) -> StepInputs:
    """Return a step of one sequence that has ``_CONTEXT`` tokens before it, where they fit."""
    options = opened.engine.info.options
    count = min(num_tokens, options.max_step_tokens, options.context_tokens)
    first = min(_CONTEXT, options.context_tokens - count)
    ascending = np.arange(options.context_tokens, dtype=np.int32)
    table = np.zeros((1, options.max_blocks_per_row), np.int32)
    table[0] = np.arange(options.max_blocks_per_row)
    ids = np.random.default_rng(0).integers(0, opened.engine.info.vocab_size, count)
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


def _bytes_by_label(program: Any, weights: WeightStore) -> dict[str, float]:
    """Return how many stored bytes of weights each launch has to read."""
    found: dict[str, float] = {}
    for launch in program.launches:
        for operand in launch.operands:
            # An embedding reads a row of its matrix, not all of it.
            if (
                operand.kind == "matrix"
                and "Gather" not in type(program.requests[launch.variants[0]]).__name__
            ):
                matrix = program.matrices[operand.value]
                parts = ((weights.info(part.name), part.num_rows) for part in matrix.parts)
                found[launch.label] = sum(
                    info.nbytes * rows / (info.shape[0] or 1) for info, rows in parts
                )
    return found
