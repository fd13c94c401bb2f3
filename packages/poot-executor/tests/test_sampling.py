"""Sampling through an engine: tokens where the logits are, and fed into the next step there."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from poot_core import Settings, ShapeError, f32
from poot_executor import Engine, EngineOptions, StepInputs, open_engine
from poot_graph_ir import Builder, Graph, TraceOptions, ops
from poot_kernelgen import reference as ref
from poot_kernelgen import sample_words

VOCAB, WIDTH, SEQUENCES = 700, 32, 4
OPTIONS = {
    "precision": "f32", "context_tokens": 64, "max_sequences": SEQUENCES, "max_step_tokens": 16,
    "block_size": 16, "num_blocks": 16,
}  # fmt: skip


class Weights:
    """Random matrices by name."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.table = (rng.standard_normal((VOCAB, WIDTH)) * 0.8).astype(np.float32)

    def raw(self, name: str) -> np.ndarray:
        assert name == "table"
        return self.table.view(np.uint8)

    def release(self, name: str) -> None:
        pass


def trace(options: TraceOptions) -> Graph:
    b = Builder("sampled")
    slots = b.step_slots(options.max_blocks_per_row)
    table = b.const("table", (VOCAB, WIDTH), f32)
    x = ops.gather(ops.embedding(table, slots.token_ids), slots.logit_positions)
    b.output("logits", ops.linear(x, table))
    return b.finish()


def step(tokens: list[int], feeds: list[tuple[int, int]] | None = None) -> StepInputs:
    count = len(tokens)
    numbers = np.arange(count, dtype=np.int32)
    return StepInputs(
        token_ids=np.array(tokens, np.int32), positions=np.zeros(count, np.int32), rows=numbers,
        sequence_lengths=np.ones(count, np.int32),
        block_tables=np.repeat(numbers[:, None], 4, axis=1), slot_mapping=numbers * 16,
        logit_positions=numbers,
        feeds=None if feeds is None else np.array(feeds, np.int32).reshape(-1, 2),
    )  # fmt: skip


@pytest.fixture(params=["oracle", "reference", "cpu"])
def engine(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    settings = Settings(kernel_cache_dir=tmp_path)
    options = EngineOptions(backend=request.param, **OPTIONS)  # type: ignore[arg-type]
    found = open_engine(trace, "sampled", Weights(), VOCAB, options, settings)
    yield found
    found.close()


def words(position: int, **more: Any) -> np.ndarray:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.7, "top_k": 20, "min_p": 0.01},
        {"temperature": 1.3},
    ]
    return np.stack(
        [
            sample_words(
                **kind, **more, seed=40 + place, position=position, logits_row=place,
                slot=SEQUENCES - 1 - place,
            )
            for place, kind in enumerate(kinds)
        ]
    )  # fmt: skip


def test_tokens_are_those_of_the_logits_and_feed_the_next_step(engine: Engine) -> None:
    tokens = [3, 600, 41, 7]
    for position in range(6):
        feeds = None if position == 0 else [(i, SEQUENCES - 1 - i) for i in range(SEQUENCES)]
        # What stands at a place that is fed is not read.
        engine.forward(step(tokens if position == 0 else [0] * SEQUENCES, feeds))
        logits = engine.logits().copy()
        np.testing.assert_allclose(
            logits, (Weights().table[tokens] @ Weights().table.T), rtol=1e-4, atol=1e-4
        )
        params = words(position)
        engine.sample(params)
        sampled = engine.sampled()
        assert not sampled.faults.any()
        assert not engine.step_faults()
        wanted, _ = ref.sample(logits, params)
        np.testing.assert_array_equal(sampled.token_ids, wanted)
        tokens = wanted.tolist()


def test_a_step_may_run_before_the_tokens_of_the_last_are_read(engine: Engine) -> None:
    engine.forward(step([3, 600, 41, 7]))
    first = ref.sample(engine.logits().copy(), words(0))[0]
    engine.sample(words(0))
    engine.forward(step([0, 9, 0], [(0, 3), (2, 0)]))  # the token of one is known
    np.testing.assert_array_equal(engine.sampled().token_ids, first)
    table = Weights().table
    known = [int(first[0]), 9, int(first[3])]
    np.testing.assert_allclose(engine.logits(), table[known] @ table.T, rtol=1e-4, atol=1e-4)


def test_penalties_count_on_the_device(engine: Engine) -> None:
    counts = np.zeros((SEQUENCES, VOCAB), np.uint32)
    rng = np.random.default_rng(6)
    for slot in range(SEQUENCES):
        ids = rng.permutation(VOCAB)[: 100 * slot]
        counts[slot, ids] = rng.integers(1, 9, ids.size)
        entries = np.stack([ids.astype(np.uint32), counts[slot, ids]], 1)
        engine.set_counts(slot, entries.reshape(-1, 2).astype(np.uint32))
    more = {
        "counts_tokens": True, "repetition_penalty": 1.2, "frequency_penalty": 0.3,
        "presence_penalty": 0.1,
    }  # fmt: skip
    for position in range(4):
        engine.forward(step([3, 600, 41, 7]))
        params = words(position, **more)
        wanted, _ = ref.sample(engine.logits().copy(), params, counts)
        engine.sample(params)
        np.testing.assert_array_equal(engine.sampled().token_ids, wanted)


@pytest.mark.parametrize("engine", ["reference", "cpu"], indirect=True)
def test_rows_that_do_not_exist_are_refused(engine: Engine) -> None:
    engine.forward(step([3, 600]))
    with pytest.raises(ShapeError, match="there are 4 and 2"):
        engine.sample(words(0))


def test_the_forecast_of_memory_is_what_the_device_gives(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the device's own tally, before anything is sampled and with every table of the sampler."""
    from poot_executor import _backends

    real = _backends.open_backend
    held: dict[int, int] = {}

    def open_and_watch(*arguments: Any) -> Any:
        opened = real(*arguments)
        allocate = opened.device.allocate

        def counted(nbytes: int, label: str) -> Any:
            buffer = allocate(nbytes, label)
            number, free = len(held), buffer.free
            held[number] = buffer.nbytes

            def freed() -> None:
                held[number] = 0
                free()

            buffer.free = freed
            return buffer

        opened.device.allocate = counted
        return opened

    def tally() -> int:
        return sum(held.values())

    monkeypatch.setattr(_backends, "open_backend", open_and_watch)
    options = EngineOptions(backend="cpu", **{**OPTIONS, "max_sequences": 12})  # type: ignore[arg-type]
    settings = Settings(kernel_cache_dir=tmp_path)
    with closing(open_engine(trace, "sampled", Weights(), VOCAB, options, settings)) as engine:
        info = engine.info
        forecast = info.weight_bytes + info.state_bytes + info.workspace_bytes
        assert info.sampler_bytes > 4 * 12 * VOCAB  # the counts alone
        assert tally() == pytest.approx(forecast, rel=0.05)
        engine.forward(step([3, 600, 41, 7]))
        engine.sample(words(0))
        engine.sampled()
        plain = tally()
        assert forecast < plain < forecast + info.sampler_bytes
        engine.set_counts(1, np.array([[5, 3]], np.uint32))
        engine.sample(words(1, counts_tokens=True, repetition_penalty=1.2))
        engine.sampled()
        assert tally() - plain == 4 * 12 * VOCAB
        assert tally() == pytest.approx(forecast + info.sampler_bytes, rel=0.05)
