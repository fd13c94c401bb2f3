"""One step ahead over compiled kernels: a queue over the host CPU, and devices that queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llm_late import LateDevice, StepByStep

from poot_core import Settings
from poot_executor import Engine, EngineOptions, _backends, open_engine
from poot_llm import Driver, Request, SamplingParams
from poot_llm._open import read_model
from poot_test_util import device_parameters

CHECKPOINT = Path(__file__).parent / "data" / "llama"
OPTIONS = EngineOptions(
    threads=2, context_tokens=128, max_sequences=6, max_step_tokens=48, block_size=16, num_blocks=40,
)  # fmt: skip
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=1.3, top_p=0.95, min_p=0.01, seed=5, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=9, repetition_penalty=1.2, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.0, frequency_penalty=0.4, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True, logprobs=1),
]
QUEUE = "queue over the cpu"
NAMES = device_parameters(QUEUE)


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    name: str = request.param
    patch = pytest.MonkeyPatch()
    if name == QUEUE:
        real = _backends.open_backend

        def open_late(_: str, settings: Settings, threads: int | None = None) -> Any:
            found = real("cpu", settings, threads)
            return replace(found, device=LateDevice(found.device))

        patch.setattr(_backends, "open_backend", open_late)
    checkpoint, model = read_model(CHECKPOINT)
    with checkpoint, patch.context():
        engine = open_engine(
            model.trace, model.cache_key, checkpoint.weights, model.vocab_size,
            replace(OPTIONS, backend=name), Settings.from_environment(),
        )  # fmt: skip
        patch.undo()
        yield engine
        engine.close()


def requests() -> list[Request]:
    rng = np.random.default_rng(8)
    prompts = [rng.integers(0, 320, size).tolist() for size in (40, 3, 77, 21, 5, 60, 1, 33)]
    prompts[5][:32] = prompts[2][:32]  # two blocks are shared
    return [Request(prompt_ids=p, params=PARAMS[n % len(PARAMS)]) for n, p in enumerate(prompts)]


def answers(driver: Driver, work: list[Request], abort: int | None = None) -> list[Any]:
    found: dict[int, Any] = {driver.add(request): ([], []) for request in work}
    while driver.has_work:
        for event in driver.step():
            assert event.finish_reason != "error", event.error
            found[event.request_id][0].extend(event.token_ids)
            found[event.request_id][1].extend(event.logprobs or [])
        if abort is not None and len(found[abort][0]) >= 5:
            driver.cancel(abort)
            abort = None
    stats = driver.stats
    assert stats.num_free_blocks == stats.num_blocks
    return list(found.values())


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[Any]:
    """Return what each request gets alone, step by step."""
    driver = Driver(StepByStep(engine), shares_prefixes=False)
    found = [answers(driver, [request])[0] for request in requests()]
    assert driver.stats.steps_ahead == 0
    return found


def test_every_device_queues_but_for_vulkan(engine: Engine) -> None:
    assert engine.info.runs_ahead == (engine.info.backend != "vulkan")


def test_each_alone(engine: Engine, alone: list[Any]) -> None:
    driver = Driver(engine, shares_prefixes=False)
    assert [answers(driver, [request])[0] for request in requests()] == alone
    assert (driver.stats.steps_ahead > 200) == engine.info.runs_ahead


def test_all_together_and_put_back_and_found_again(engine: Engine, alone: list[Any]) -> None:
    driver = Driver(engine)
    for _ in range(2):  # the second time blocks of the first are found
        assert answers(driver, requests()) == alone
    assert driver.stats.prefix_hit_tokens >= 32
    assert (driver.stats.steps_ahead > 0) == engine.info.runs_ahead
    # Eight sequences of up to 117 tokens in 40 blocks of 16 do not fit at once.
    many = [replace(request, priority=n) for n, request in enumerate(requests())]
    small = Driver(_Smaller(engine), shares_prefixes=False)
    assert answers(small, many) == alone
    assert small.stats.preemptions > 0


def test_an_abort_in_flight(engine: Engine, alone: list[Any]) -> None:
    driver = Driver(engine, shares_prefixes=False)
    work = [request for request in requests() if request.params.logprobs is None]
    wanted = [a for a, r in zip(alone, requests(), strict=True) if r.params.logprobs is None]
    got = answers(driver, work, abort=1)
    assert got[1][0] == wanted[1][0][: len(got[1][0])]
    assert len(got[1][0]) == 5
    assert got[:1] + got[2:] == wanted[:1] + wanted[2:]
    assert (driver.stats.surplus_rows > 0) == engine.info.runs_ahead


class _Smaller:
    """An engine of which only some blocks are used."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def info(self) -> Any:
        info = self._engine.info
        return replace(info, options=replace(info.options, num_blocks=12))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
