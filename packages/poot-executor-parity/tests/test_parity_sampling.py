"""The sampler's kernels on every device: tokens equal their meaning in NumPy, bit for bit.

Weights are whole numbers made of one rounded product, so no tolerance is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

from poot_core import Settings, i64
from poot_executor import BufferArgument, Device, GridDim, Launch, ScalarArgument
from poot_kernel import compile_kernels
from poot_kernel.compile import CompileService
from poot_kernelgen import CountRequest, FeedRequest, SampleRequest, generate, sample_words
from poot_kernelgen import reference as ref
from poot_test_util import device_parameters

ROWS, COLUMNS = 12, 5003


class Runner:
    """Launches kernels of requests on a device, and reads back what they wrote."""

    def __init__(self, device: Device, service: CompileService) -> None:
        self.device, self.service = device, service
        self._kernels: dict[Any, Any] = {}

    def __call__(self, request: Any, arguments: list[Any], role: str = "main") -> None:
        kernel, handle = self._kernel(request, role)
        names = [parameter.name for parameter in kernel.function.parameters]
        numbers = {n: a for n, a in zip(names, arguments, strict=True) if isinstance(a, int)}
        axes = [size.evaluate(numbers) for size in kernel.function.grid]
        launch = Launch(
            kernel=handle,
            arguments=tuple(
                ScalarArgument(a, i64) if isinstance(a, int) else BufferArgument(a)
                for a in arguments
            ),
            grid=tuple(GridDim(coefficient=axis) for axis in axes),
            grain=kernel.grain,
            scratch_bytes=kernel.scratch_bytes,
            workgroup=(kernel.function.workgroup_size or 1, 1, 1),
        )
        self.device.run(self.device.prepare([launch]), {})

    def _kernel(self, request: Any, role: str) -> Any:
        if (request, role) not in self._kernels:
            target, caps = self.device.target, self.device.caps
            (kernel,) = (k for k in generate(request, target, caps) if k.role == role)
            (made,) = compile_kernels([kernel.function], target, self.service, caps)
            self._kernels[request, role] = kernel, self.device.load([made])[0][kernel.name]
        return self._kernels[request, role]

    def buffer(self, array: np.ndarray) -> Any:
        found = self.device.allocate(array.nbytes, "argument")
        self.device.upload(found, np.ascontiguousarray(array))
        return found

    def sample(
        self, logits: np.ndarray, params: np.ndarray, counts: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Return tokens, faults, last tokens and counts after one step."""
        request = SampleRequest(counted=counts is not None)
        (rows, columns), samples, slots = logits.shape, len(params), ROWS + 1
        chunks, blocks = -(-columns // request.chunk), -(-columns // request.block)
        x, words = self.buffer(logits), self.buffer(params)
        sizes = (samples * chunks * 4, samples * chunks * 4, samples * 24, samples * blocks * 16)
        values, ids, stats, sums = (self.device.allocate(size, "work") for size in sizes)
        last = self.buffer(np.full(slots, -5, np.int32))
        result, faults = (self.device.allocate(4 * samples, "results") for _ in range(2))
        table = [] if counts is None else [self.buffer(counts)]
        size = [] if counts is None else [slots]
        self(request, [x, *table, words, values, ids, rows, columns, samples, *size], "best")
        self(request, [x, words, values, ids, stats, rows, columns, samples, chunks], "limits")
        self(request, [x, words, stats, sums, rows, columns, samples], "masses")
        self(
            request,
            [x, words, stats, sums, last, *table, result, faults, rows, columns, samples, slots,
             blocks],
            "draw",
        )  # fmt: skip
        found = [self.device.download(b).view(np.int32).copy() for b in (result, faults, last)]
        after = self.device.download(table[0]).view(np.uint32).copy() if table else None
        return found[0], found[1], found[2], after


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest) -> Iterator[Runner]:
    settings = Settings.from_environment()
    (entry,) = entry_points(group="poot.devices", name=request.param)
    device = entry.load()(settings)
    with CompileService(settings, num_workers=1) as service:
        yield Runner(device, service)
    device.close()


ON_EVERY_DEVICE = pytest.mark.parametrize("run", device_parameters("cpu"), indirect=True)
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.4, "top_k": 7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.7, "top_p": 0.2},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 5.0, "top_k": 1000},
    {"temperature": 1e-6, "top_p": 0.9},
    {"temperature": 1e6, "top_p": 0.5},
    {"temperature": 0.7},
    {"temperature": 0.0},
]


def case(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(kind))
    logits = {
        "normal": lambda: rng.normal(0, 4, (ROWS, COLUMNS)),
        "flat": lambda: rng.normal(0, 1e-2, (ROWS, COLUMNS)),
        "ties": lambda: rng.integers(-4, 5, (ROWS, COLUMNS)),
        "masked": lambda: np.where(
            rng.random((ROWS, COLUMNS)) < 0.99, -np.inf, rng.normal(0, 4, (ROWS, COLUMNS))
        ),
    }[kind]().astype(np.float32)
    params = [
        sample_words(
            **each, seed=int(rng.integers(2**63)), choice=place % 3, position=17 * place,
            logits_row=ROWS - 1 - place, slot=place,
        )
        for place, each in enumerate(KINDS)
    ]  # fmt: skip
    return logits, np.stack(params)


@ON_EVERY_DEVICE
@pytest.mark.parametrize("kind", ["normal", "flat", "ties", "masked"])
def test_tokens_of_the_sampler(run: Runner, kind: str) -> None:
    logits, params = case(kind)
    wanted, _ = ref.sample(logits, params)
    found, faults, last, _ = run.sample(logits, params, None)
    np.testing.assert_array_equal(found, wanted)
    assert not faults.any()
    assert last.tolist() == [*wanted.tolist(), -5]
    for place in (1, 3, 6):
        alone, _, _, _ = run.sample(logits, params[place : place + 1], None)
        assert alone[0] == wanted[place]


@ON_EVERY_DEVICE
def test_penalties_counts_and_feeding(run: Runner) -> None:
    logits, _ = case("normal")
    rng = np.random.default_rng(8)
    counts = rng.integers(0, 2**32, (ROWS + 1, COLUMNS), np.uint32)
    table = run.buffer(counts)
    entries = np.stack([rng.permutation(COLUMNS)[:800], rng.integers(1, 9, 800)], 1)
    counts[2] = 0
    counts[2, entries[:, 0]] = entries[:, 1]
    run(CountRequest(), [table, ROWS + 1, COLUMNS, 2], "clear")
    given = run.buffer(entries.astype(np.uint32))
    run(CountRequest(), [table, given, ROWS + 1, COLUMNS, 2, 800])
    set_counts = run.device.download(table).view(np.uint32).reshape(counts.shape)
    np.testing.assert_array_equal(set_counts, counts)

    counts = np.where(rng.random(counts.shape) < 0.2, rng.integers(1, 9, counts.shape), 0)
    counts = counts.astype(np.uint32)
    params = [
        sample_words(
            temperature=0.8 * (place % 3), top_p=0.9, seed=place, counts_tokens=place % 4 != 3,
            repetition_penalty=1.25, frequency_penalty=0.5, presence_penalty=-0.25,
            logits_row=place, slot=ROWS - place,
        )
        for place in range(ROWS)
    ]  # fmt: skip
    words, after = np.stack(params), counts.copy()
    wanted, _ = ref.sample(logits.copy(), words, after)
    found, _, last, counted = run.sample(logits, words, counts)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(counted.reshape(after.shape), after)

    token_ids = run.buffer(np.arange(20, dtype=np.int32))
    feeds = np.array([[3, ROWS], [19, 1]], np.int32)
    run(FeedRequest(), [token_ids, run.buffer(last), run.buffer(feeds), 20, ROWS + 1, 2])
    fed = run.device.download(token_ids).view(np.int32)
    expected = np.arange(20)
    expected[[3, 19]] = last[[ROWS, 1]]
    assert fed.tolist() == expected.tolist()


@ON_EVERY_DEVICE
def test_a_row_that_is_not_finite_is_at_fault_alone(run: Runner) -> None:
    logits, params = case("normal")
    logits[ROWS - 1 - 3, 77] = np.nan
    logits[ROWS - 1 - 5, 78] = np.inf
    logits[ROWS - 1 - 11] = -np.inf
    wanted, expected = ref.sample(logits, params)
    found, faults, _, _ = run.sample(logits, params, None)
    assert faults.tolist() == expected.tolist()
    assert np.flatnonzero(faults).tolist() == [3, 5, 11]
    np.testing.assert_array_equal(found[faults == 0], wanted[faults == 0])
