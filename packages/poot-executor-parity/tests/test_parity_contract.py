"""What every device promises beside right numbers, on engines of small graphs.

Replay equals eager bit for bit, a row's bits depend on nothing else in its step, an index that leaves
its range costs that row alone, NaNs stay where they are, and the smallest and the largest steps run.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_core import DeviceError, Settings, ShapeError, UnsupportedError, bf16
from poot_executor import Engine, EngineOptions
from poot_executor_parity import CASES, Case, Context, open_case, step_inputs
from poot_graph_ir import Tracer, ops
from poot_kernelgen import sample_words
from poot_quant import FORMATS
from poot_test_util import device_parameters

OPTIONS = EngineOptions(
    context_tokens=640, max_sequences=4, max_step_tokens=320, block_size=16, num_blocks=160
)
BY_NAME = {case.name: case for case in CASES}
# Attention in one split and in several, products of plain and packed weights.
INVARIANT = ("attention/rotary", "attention f16/groups of 3", "product auto/bf16",
             "product auto/Q4_K", "product/Q8_0")  # fmt: skip
devices = pytest.mark.parametrize("device", device_parameters("cpu"))


@contextmanager
def opened(case: Case, device: str, options: EngineOptions = OPTIONS) -> Generator[Any]:
    with closing(open_case(case, device, Settings.from_environment(), options)) as engine:
        yield engine


def logits_of(engine: Engine, counts, computed):
    """Run a step and return its logits, one array a row of the step."""
    engine.forward(step_inputs(counts, computed, OPTIONS))
    assert engine.step_faults() == {}
    return np.split(engine.logits().copy(), np.cumsum(counts)[:-1])


@devices
@pytest.mark.parametrize("name", ["attention/rotary", "product auto/bf16", "reduce/softmax"])
def test_replay_gives_the_bits_of_the_first_run(device: str, name: str) -> None:
    with opened(BY_NAME[name], device) as engine:
        logits_of(engine, (30, 5, 300 - 35), [0, 0, 0])
        before = [30, 5, 265]
        # The same decode step again and again: eager, then recorded, then replayed; once more after
        # another step, and its neighbours in size in between.
        found = [logits_of(engine, (1, 1, 1), list(before)) for _ in range(4)]
        logits_of(engine, (1, 1, 0), list(before))
        found.append(logits_of(engine, (1, 1, 1), list(before)))
    assert np.isfinite(found[0]).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@devices
def test_steps_recorded_ahead_give_the_same_bits(device: str) -> None:
    """Contexts of one split and of several, every number of rows, in a device's own memory of them."""
    case, found = BY_NAME["attention/rotary"], []
    for is_ahead in (False, True):
        with opened(case, device) as engine:
            logits_of(engine, (30, 5, 3, 282), [0, 0, 0, 0])
            count = 0
            while is_ahead and engine.capture_ahead():
                count += 1
            assert engine.recordings.ahead == count
            assert (count > 4) == (is_ahead and device not in {"cpu", "reference"})
            computed = [30, 5, 3, 282]
            for counts in ((1, 1, 1, 1), (1, 1, 1, 1), (0, 1, 1, 1), (1, 0, 0, 1), (1, 1, 1, 1)):
                found.append(np.concatenate(logits_of(engine, counts, computed)))
    for eager, ahead in zip(found[:5], found[5:], strict=True):
        np.testing.assert_array_equal(eager, ahead)


@devices
@pytest.mark.parametrize("name", INVARIANT)
def test_a_rows_bits_depend_on_no_batch_and_no_chunk(device: str, name: str) -> None:
    """Row 0 whole; in pieces; token by token at the end; beside others, long and short."""
    length = 277
    with opened(BY_NAME[name], device) as engine:
        (whole,) = logits_of(engine, (length,), [0])
        for pieces in ((7, 1, 32, 200, 37), (271, 1, 1, 1, 1, 1, 1), (64, 65, 128, 20)):
            computed, found = [0], []
            for piece in pieces:
                found += logits_of(engine, (piece,), computed)
            np.testing.assert_array_equal(np.concatenate(found), whole)
        computed, found = [0, 0, 0, 0], []
        for counts in ((250, 1, 40, 9), (1, 1, 1, 1), (1, 30, 1, 260), (1, 1, 1, 1), (24, 1, 1, 1)):
            found.append(logits_of(engine, counts, computed)[0])
        np.testing.assert_array_equal(np.concatenate(found), whole)


@devices
def test_keys_of_several_splits_give_the_same_bits_in_every_cut(device: str) -> None:
    """A prompt whole, where a device may join its splits; in pieces and token by token, where not."""
    length = 809
    options = replace(
        OPTIONS, context_tokens=1024, max_sequences=2, max_step_tokens=length, num_blocks=128
    )

    def ends(engine: Engine, pieces: tuple[int, ...], others: int = 0) -> np.ndarray:
        """Return the logits of the last tokens, run in pieces beside tokens of another row."""
        computed, found = [0, 0], []
        for piece in pieces:
            engine.forward(step_inputs((piece, others), computed, options))
            assert engine.step_faults() == {}
            found.append(engine.logits()[:piece].copy())
        return np.concatenate(found)[-9:]

    with opened(BY_NAME["attention f16/groups of 3"], device, options) as engine:
        whole = ends(engine, (length,))
        assert np.isfinite(whole).all()
        for pieces in ((800, *[1] * 9), (65, 400, 344), (512, 297)):
            np.testing.assert_array_equal(ends(engine, pieces), whole)
        np.testing.assert_array_equal(ends(engine, (300, 500, 9), others=2), whole)


@devices
def test_an_index_out_of_range_fails_its_row_alone(device: str) -> None:
    with opened(BY_NAME["attention/rotary"], device) as engine:
        expected = logits_of(engine, (5, 9, 4), [0, 0, 0])
        for wrong in (64, 1 << 30, -1):
            step = step_inputs((5, 9, 4), [0, 0, 0], OPTIONS)
            ids = step.token_ids.copy()
            ids[5 + 3] = wrong
            engine.forward(replace(step, token_ids=ids))
            assert set(engine.step_faults()) == {1}
            found = np.split(engine.logits().copy(), [5, 14])
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[2], expected[2])
        slots = step_inputs((5, 9, 4), [0, 0, 0], OPTIONS)
        mapped = slots.slot_mapping.copy()
        mapped[0] = 1 << 20
        engine.forward(replace(slots, slot_mapping=mapped))
        assert set(engine.step_faults()) == {0}
        again = logits_of(engine, (5, 9, 4), [0, 0, 0])
    for one, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def _with_nans(c: Context) -> Tracer:
    """0 times infinity in every second column, where an element is below 0."""
    factors = np.where(np.arange(64) % 2, np.inf, 1).astype(np.float32)
    return ops.maximum(c.x, 0.0) * c.builder.literal(factors) + 1.0


@devices
def test_a_nan_stays_where_it_arises(device: str) -> None:
    case = Case(name="contract/NaN", build=_with_nans)
    found = []
    for backend in (device, "oracle"):
        with opened(case, backend) as engine:
            found.append(np.concatenate(logits_of(engine, (9, 1), [0, 0])))
    here, there = found
    assert np.isnan(there[:, 1::2]).any()
    assert np.isposinf(there[:, 1::2]).any()
    assert np.isfinite(there[:, ::2]).all()
    np.testing.assert_allclose(here, there, atol=1e-6, rtol=0)  # NaN equals NaN, inf equals inf


@devices
def test_steps_that_want_no_logits_and_odd_sizes(device: str) -> None:
    with opened(BY_NAME["attention/plain"], device) as engine:
        step = step_inputs((31, 7), [0, 0], OPTIONS)
        engine.forward(replace(step, logit_positions=np.zeros(0, np.int32)))
        assert engine.logits().shape == (0, 64)
        assert engine.greedy().shape == (0,)
        some = np.array([37, 0, 5], np.int32)  # in any order
        engine.forward(replace(step, logit_positions=some))
        part = engine.logits().copy()
        engine.forward(step)
        np.testing.assert_array_equal(part, engine.logits()[some])
        empty = np.zeros(0, np.int32)
        with pytest.raises(ShapeError, match="a step of 0 tokens"):
            engine.forward(replace(step, token_ids=empty, positions=empty, rows=empty))
        for odd in (1, 3, 13, 63, 65, 127, 319, 320):
            (found,) = logits_of(engine, (odd,), [0])
            assert np.isfinite(found).all()


def _doubled(c: Context) -> Tracer:
    return c.x * ops.linear(c.x, c.declare("w", (8, 8), bf16))


def run_large(device: str, tokens: int) -> None:
    """Run a step of many tokens, a workgroup or more for each, and compare it to the oracle."""
    options = EngineOptions(
        context_tokens=tokens, max_sequences=1, max_step_tokens=tokens, block_size=16,
        num_blocks=-(-tokens // 16),
    )  # fmt: skip
    found = []
    for backend in (device, "oracle"):
        with opened(
            Case(name="contract/large", build=_doubled, width=8), backend, options
        ) as engine:
            engine.forward(step_inputs((tokens,), [0], options))
            found.append(engine.logits().copy())
    assert found[0].shape == (tokens, 8)
    np.testing.assert_allclose(found[0], found[1], atol=1e-4, rtol=0)


@devices
def test_the_largest_grid_that_every_device_takes(device: str) -> None:
    run_large(device, 65535)


@devices
def test_a_larger_grid_runs_or_is_refused_with_what_to_lower(device: str) -> None:
    try:
        run_large(device, 70_000)
    except (DeviceError, ShapeError) as error:
        assert re.search(r"grid of \(70000.*lower", error.message)  # noqa: PT017


def _memory_case() -> Case:
    """Attention, and two products whose weights and intermediates are larger than any padding."""

    def build(c: Context) -> Tracer:
        mixed = BY_NAME["attention/plain"].build(c)
        wide = ops.gelu(ops.linear(mixed, c.declare("up", (8192, 64), bf16)))
        return ops.linear(wide, c.declare("down", (64, 8192), FORMATS["Q8_0"]))

    return Case(name="contract/memory", build=build)


class _Held:
    """Counts the bytes of the buffers that a device has given and not got back."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}

    def watch(self, device: Any) -> None:
        allocate = device.allocate

        def counted(nbytes: int, label: str) -> Any:
            buffer = allocate(nbytes, label)
            number, free = len(self.bytes), buffer.free
            self.bytes[number] = buffer.nbytes

            def freed() -> None:
                self.bytes[number] = 0
                free()

            buffer.free = freed
            return buffer

        device.allocate = counted


@devices
def test_memory_is_what_the_plan_says(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights once as they are stored, states, the workspace of 64 rows, and what sampling takes."""
    held, case = _Held(), _memory_case()
    options = replace(OPTIONS, max_sequences=64, max_step_tokens=64)
    backends = importlib.import_module("poot_executor._backends")
    really_open = backends.open_backend

    def open_and_watch(*arguments: Any) -> Any:
        opened = really_open(*arguments)
        held.watch(opened.device)
        return opened

    monkeypatch.setattr(backends, "open_backend", open_and_watch)
    with opened(case, device, options) as engine:
        info = engine.info
        stored = 2 * 8192 * 64 + 34 * 8192 * 64 // 32 + 4 * 64 * (64 + 64 + 32 + 32)
        forecast = info.weight_bytes + info.state_bytes + info.workspace_bytes
        assert info.weight_bytes == pytest.approx(stored, rel=0.05)
        assert info.state_bytes == 2 * 160 * 16 * 2 * 16 * 4
        assert info.workspace_bytes > 4 * 64 * 8192
        assert sum(held.bytes.values()) == pytest.approx(forecast, rel=0.05)
        before = sum(held.bytes.values())
        assert held.bytes
        engine.forward(step_inputs((3, 1), [0, 0], options))
        engine.set_counts(5, np.array([[7, 3], [60, 1]], np.uint32))
        words = [
            sample_words(
                temperature=0.8, seed=1, position=3, logits_row=row, slot=row + 4,
                repetition_penalty=1.1, counts_tokens=row == 1,
            )
            for row in range(2)
        ]  # fmt: skip
        engine.sample(np.stack(words))
        engine.sampled()
        # Tables of the sampler, those of 64 rows that count every token among them, and no more.
        assert sum(held.bytes.values()) - before == info.sampler_bytes > 4 * 64 * 64


@devices
@pytest.mark.parametrize("damage", ["cut", "bit", "empty"])
def test_a_damaged_cache_is_made_anew(device: str, damage: str, tmp_path: Path) -> None:
    """Programs, objects, cubins, what a device keeps: every entry is damaged, no bit changes."""
    settings = replace(Settings.from_environment(), kernel_cache_dir=tmp_path)
    case, found = BY_NAME["attention/plain"], []
    for turn in range(2):
        with closing(open_case(case, device, settings, OPTIONS)) as engine:
            found += logits_of(engine, (30,), [0])
        entries = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(entries) > 3
        for path in entries if turn == 0 else ():
            data = bytearray(path.read_bytes())
            if damage == "bit" and data:
                data[len(data) // 2] ^= 4
            path.write_bytes({"cut": data[: len(data) * 2 // 3], "bit": data, "empty": b""}[damage])
    np.testing.assert_array_equal(found[0], found[1])


@devices
def test_what_no_kernel_covers_is_refused_by_name(device: str) -> None:
    """Not by what a device has: the equation, its place, and what is missing."""
    case = Case(name="contract/uncovered", build=lambda c: ops.cumsum(c.x, 1) * 2.0)
    with pytest.raises(UnsupportedError, match=r"cumsum") as caught:
        open_case(case, device, Settings.from_environment(), OPTIONS)
    assert "test_parity_contract" in caught.value.message or "%" in caught.value.message
