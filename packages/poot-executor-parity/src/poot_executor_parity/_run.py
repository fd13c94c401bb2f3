"""Running a case on a backend and on the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from poot_core import DType, Settings, bf16, dtype_by_name, f32
from poot_executor import Engine, EngineOptions, Program, StepInputs, open_engine
from poot_executor_parity._case import Case, Context, RandomWeights
from poot_graph_ir import Builder, ElementType, Graph, TraceOptions, Tracer, graph_hash, ops
from poot_quant import random_blocks

__all__ = ["Outcome", "open_case", "run_case", "step_inputs"]

_VOCAB = 64
_BF16_OVER_F16 = 8
"""How much coarser: bf16 keeps three bits of a number fewer than f16."""
_OPTIONS = EngineOptions(
    context_tokens=640,
    max_sequences=4,
    max_step_tokens=320,
    block_size=16,
    num_blocks=160,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case gave.

    Attributes:
        error: Largest difference relative to the root mean square of the oracle's results.
        tolerance: What is allowed.
    """

    error: float
    tolerance: float

    @property
    def is_equal(self) -> bool:
        """Whether the difference is allowed; a NaN is not."""
        return bool(self.error <= self.tolerance)


def run_case(case: Case, backend: str, settings: Settings) -> Outcome:
    """Run a case on a backend and on the oracle.

    Raises:
        UnsupportedError: If the backend does not cover the graph.
    """
    engines: list[Engine] = []
    try:
        engines.append(open_case(case, backend, settings))
        stored = _pool_dtype(engines[0])
        engines.append(open_case(case, "oracle", settings, kv_dtype=stored))
        worst = 0.0
        computed = [0] * _OPTIONS.max_sequences
        for counts in case.steps:
            step = step_inputs(counts, computed)
            got, expected = (_logits(engine, step) for engine in engines)
            scale = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))) or 1.0
            worst = float(np.maximum(worst, np.abs(got - expected).max() / scale))
    finally:
        for engine in engines:
            engine.close()
    factor = _BF16_OVER_F16 if stored is bf16 else 1
    return Outcome(error=worst, tolerance=case.tolerance * factor)


def _pool_dtype(engine: Engine) -> DType | None:
    """Return how a planned program stores keys and values: a target may prefer bf16 to f16."""
    program: Program | None = getattr(engine, "program", None)
    states = () if program is None else program.states
    return dtype_by_name(states[0].layout.dtype) if states else None


def open_case(
    case: Case,
    backend: str,
    settings: Settings,
    options: EngineOptions = _OPTIONS,
    *,
    kv_dtype: DType | None = None,
) -> Engine:
    """Return an engine that runs a case's graph; the case's precision overrides the options'.

    Args:
        case: The case.
        backend: Where.
        settings: What the environment asks.
        options: Bounds of the engine.
        kv_dtype: How keys and values are stored, where that is not the backend's choice.

    Raises:
        UnsupportedError: If the backend does not cover the graph.
    """
    weights = RandomWeights()

    def trace(traced: TraceOptions) -> Graph:
        return _trace(case, weights, replace(traced, kv_dtype=kv_dtype or traced.kv_dtype))

    # Traced here once in any case: with a planned program in the cache no engine would, and the
    # weights are made when they are declared.
    graph = trace(TraceOptions(max_blocks_per_row=options.max_blocks_per_row))
    width = dict(graph.outputs)["logits"].shape[-1]
    assert isinstance(width, int)
    key = f"parity {case.name} {graph_hash(graph)}"
    chosen = replace(options, precision=case.precision, backend=backend)
    return open_engine(trace, key, weights, width, chosen, settings)


def _logits(engine: Engine, step: StepInputs) -> np.ndarray:
    engine.forward(step)
    return engine.logits().copy()


def _trace(case: Case, weights: RandomWeights, options: TraceOptions) -> Graph:
    builder = Builder(case.name)
    slots = builder.step_slots(options.max_blocks_per_row)

    def declare(name: str, shape: tuple[int, ...], dtype: ElementType) -> Tracer:
        if name not in weights.stored:
            rng = np.random.default_rng([weights.seed, *name.encode()])
            scale = float(shape[-1]) ** -0.5 if len(shape) > 1 else 0.5
            if isinstance(dtype, DType):
                values = rng.standard_normal(shape, np.float32) * np.float32(scale)
                weights.stored[name] = values.astype(dtype.numpy)
            else:
                weights.stored[name] = random_blocks(dtype, shape, rng, scale=scale)
        return builder.const(name, shape, dtype)

    # Rows of the table differ by sign and size; a token's row is the same in every step.
    x = ops.embedding(declare("table", (_VOCAB, case.width), f32), slots.token_ids)
    x = x * float(case.width) ** 0.5
    y = case.build(Context(builder, slots, options, x, declare))
    builder.output("logits", ops.gather(y, slots.logit_positions))
    return builder.finish()


def step_inputs(
    counts: Sequence[int], computed: list[int], options: EngineOptions = _OPTIONS
) -> StepInputs:
    """Return the step that computes further tokens of each row and wants the logits of all.

    Args:
        counts: How many tokens of each row.
        computed: How many tokens of each row are computed already; raised by ``counts``.
        options: Of the engine. A token's id, and where its key lies, follow from row and position.
    """
    size, blocks = options.block_size, options.max_blocks_per_row
    positions: list[int] = []
    rows: list[int] = []
    for row, count in enumerate(counts):
        positions += range(computed[row], computed[row] + count)
        rows += [row] * count
        computed[row] += count
    tables = np.arange(len(counts) * blocks, dtype=np.int32)
    tables = tables[::-1].reshape(len(counts), blocks).copy()
    position, row = np.array(positions, np.int32), np.array(rows, np.int32)
    slots = tables[row, position // size] * size + position % size
    # Equal for equal rows and positions, whatever the step.
    ids = (position * 7 + row * 13 + 3) % _VOCAB
    return StepInputs(
        token_ids=ids.astype(np.int32),
        positions=position,
        rows=row,
        sequence_lengths=np.array(computed[: len(counts)], np.int32),
        block_tables=tables,
        slot_mapping=slots.astype(np.int32),
        logit_positions=np.arange(len(position), dtype=np.int32),
    )
