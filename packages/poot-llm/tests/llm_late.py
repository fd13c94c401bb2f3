"""Engines and devices that do nothing before somebody waits for it: the latest that a queue may be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from poot_executor import EngineInfo, PendingBytes, Sampled, StepInputs, StepResults

_NOTHING = Sampled(np.zeros(0, np.int32), np.zeros(0, np.int32))


class Late:
    """What a queue owes."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.value: Any = None
        self.is_done = False

    def wait(self) -> Any:
        self._queue.run_until(self)
        return self.value


class Queue:
    """Work in order."""

    def __init__(self) -> None:
        self._work: list[tuple[Callable[[], Any], Late]] = []
        self.owed: list[Late] = []  # started, and not asked for yet

    def __len__(self) -> int:
        return len(self._work)

    def add(self, work: Callable[[], Any]) -> Late:
        late = Late(self)
        self._work.append((work, late))
        return late

    def start(self, work: Callable[[], Any]) -> Late:
        """Queue something whose value is asked for; of two at most."""
        late = self.add(work)
        self.owed = [*self.owed, late][-2:]
        return late

    def run_until(self, late: Late) -> None:
        assert late in self.owed, "two later ones were started, or it was asked for before"
        self.owed.remove(late)
        while not late.is_done:
            self._next()

    def run_all(self) -> None:
        while self._work:
            self._next()

    def _next(self) -> None:
        work, late = self._work.pop(0)
        late.value = work()
        late.is_done = True


class LateEngine:
    """Runs the steps of another engine as late as may be.

    Attributes:
        overlaps: How often results were asked for while a later step was handed over already: host
            work of that step was done while the device had this one to do.
        faults_at: Faults that steps find, by their numbers.
        dies_at: The step that the device does not survive.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._queue = Queue()
        self.overlaps = 0
        self.num_steps = 0
        self.faults_at: dict[int, dict[int, str]] = {}
        self.dies_at: int | None = None
        self._samples = False

    @property
    def info(self) -> EngineInfo:
        return replace(self.engine.info, runs_ahead=True)

    def forward(self, step: StepInputs) -> None:
        held = {name: getattr(step, name) for name in StepInputs.__dataclass_fields__}
        held = {name: None if array is None else array.copy() for name, array in held.items()}
        number, self.num_steps = self.num_steps, self.num_steps + 1
        self._samples = False

        def run() -> None:
            self.engine.fail_next = number == self.dies_at
            self.engine.faults = self.faults_at.get(number, {})
            self.engine.forward(StepInputs(**held))

        self._queue.add(run)

    def sample(self, params: np.ndarray) -> None:
        held = params.copy()
        self._samples = True
        self._queue.add(lambda: self.engine.sample(held))

    def set_counts(self, slot: int, entries: np.ndarray) -> None:
        held = entries.copy()
        self._queue.add(lambda: self.engine.set_counts(slot, held))

    def start_results(self) -> Any:
        samples = self._samples

        def read() -> StepResults:
            sampled = self.engine.sampled() if samples else _NOTHING
            return StepResults(sampled, dict(self.engine.step_faults()))

        late = self._queue.start(read)
        wait = late.wait

        def wait_and_count() -> StepResults:
            self.overlaps += len(self._queue.owed) == 2
            return wait()

        late.wait = wait_and_count  # type: ignore[method-assign]
        return late

    def greedy(self) -> np.ndarray:
        raise AssertionError("greedy rows are sampled where the tokens have to stay")

    def sampled(self) -> Sampled:
        raise AssertionError("a step further may be under way: its results are started")

    def step_faults(self) -> Mapping[int, str]:
        raise AssertionError("a step further may be under way: its results are started")

    def logits(self) -> np.ndarray:
        assert not len(self._queue), "the logits of a step are gone once another is handed over"
        return self.engine.logits()

    def close(self) -> None:
        self.engine.close()


class LateDevice:
    """Another device behind a queue; the host sees none of its memory."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._queue = Queue()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def view(self, buffer: Any) -> None:
        return None

    def upload(self, buffer: Any, data: np.ndarray, offset: int = 0) -> None:
        held = data.copy()
        self._queue.add(lambda: self._device.upload(buffer, held, offset))

    def run(self, prepared: Any, sizes: Mapping[str, int]) -> None:
        held = dict(sizes)
        self._queue.add(lambda: self._device.run(prepared, held))

    def capture(self, prepared: Any, sizes: Mapping[str, int]) -> bool:
        return False

    def start_download(self, pieces: Sequence[tuple[Any, int, int]]) -> PendingBytes:
        held = list(pieces)
        return self._queue.start(lambda: tuple(self._device.download(*piece) for piece in held))

    def download(self, buffer: Any, offset: int = 0, nbytes: int | None = None) -> Any:
        self._queue.run_all()
        return self._device.download(buffer, offset, nbytes)

    def synchronize(self) -> None:
        self._queue.run_all()


class StepByStep:
    """An engine that could run ahead and is not asked to."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        return replace(self._engine.info, runs_ahead=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class BusyEngine:
    """Another engine on a thread of its own, each step of which takes real time.

    Attributes:
        overlaps: Steps that were handed over while one before was not done.
    """

    def __init__(self, engine: Any, step_s: float) -> None:
        self.engine = engine
        self.overlaps = 0
        self._step_s = step_s
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    @property
    def info(self) -> EngineInfo:
        return replace(self.engine.info, runs_ahead=True)

    def forward(self, step: StepInputs) -> None:
        self.overlaps += self._last is not None and not self._last.done()
        held = {name: getattr(step, name) for name in StepInputs.__dataclass_fields__}
        held = {name: None if array is None else array.copy() for name, array in held.items()}

        def run() -> None:
            time.sleep(self._step_s)
            self.engine.forward(StepInputs(**held))

        self._last = self._thread.submit(run)

    def sample(self, params: np.ndarray) -> None:
        self._thread.submit(self.engine.sample, params.copy())

    def set_counts(self, slot: int, entries: np.ndarray) -> None:
        self._thread.submit(self.engine.set_counts, slot, entries.copy())

    def start_results(self) -> Any:
        def read() -> StepResults:
            return StepResults(self.engine.sampled(), dict(self.engine.step_faults()))

        late = Late(Queue())
        future = self._thread.submit(read)
        late.wait = future.result  # type: ignore[method-assign]
        return late

    def greedy(self) -> np.ndarray:
        return self._thread.submit(self.engine.greedy).result()

    def sampled(self) -> Sampled:
        return self._thread.submit(self.engine.sampled).result()

    def step_faults(self) -> Mapping[int, str]:
        return self._thread.submit(self.engine.step_faults).result()

    def close(self) -> None:
        self._thread.shutdown()
