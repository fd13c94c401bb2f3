"""``poot graph``: a model's graph as traced, its plan, and its kernels with their times."""

from __future__ import annotations

import typer

from poot_core import Settings, UnsupportedError
from poot_llm._open import OpenOptions, engine_options, read_model

__all__ = ["run_graph"]

STAGES = ("graph", "plan", "kernels")


def run_graph(
    model: str, *, stage: str, is_timed: bool, num_tokens: int, options: OpenOptions
) -> None:
    """Print one stage of a model's way to kernels."""
    if stage not in STAGES:
        raise typer.BadParameter(f"--stage is {stage!r}; it must be one of {', '.join(STAGES)}")
    if stage == "graph" and not is_timed:
        _print_traced(model, options)
        return
    raise UnsupportedError(
        f"the planner shows no {stage} yet; --stage graph prints the traced graph"
    )


def _print_traced(path: str, options: OpenOptions) -> None:
    from poot_graph_ir import TraceOptions, print_graph

    checkpoint, model = read_model(path)
    with checkpoint:
        chosen = engine_options(model, options, Settings.from_environment())
        traced = model.trace(
            TraceOptions(
                block_size=chosen.block_size,
                num_blocks=chosen.num_blocks,
                max_blocks_per_row=chosen.max_blocks_per_row,
            )
        )
        print(print_graph(traced))
