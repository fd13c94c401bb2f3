"""The sampler's kernels, on this host and as a GPU gets them, against their meaning in NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_core import DeviceCaps, Target
from poot_kernel.targets.nvptx import assemble_ptx, find_ptxas, package_kernels
from poot_kernelgen import (
    SAMPLE_FIELDS,
    CountRequest,
    FeedRequest,
    SampleRequest,
    generate,
    reference,
    sample_words,
)

Launch = Callable[..., None]


def run(
    launch: Launch, logits: np.ndarray, params: np.ndarray, counts: np.ndarray | None = None,
    *, slots: int = 14, chunk: int = 512, block: int = 128,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return tokens, faults and last tokens; logits and counts change where rows count."""
    request = SampleRequest(counted=counts is not None, chunk=chunk, block=block)
    (rows, columns), samples = logits.shape, len(params)
    chunks, blocks = -(-columns // chunk), -(-columns // block)
    values = np.full((samples, chunks), np.nan, np.float32)
    ids = np.full((samples, chunks), -9, np.int32)
    stats = np.full((samples, 6), 77, np.uint32)
    sums = np.full((samples, blocks, 4), 77, np.uint32)
    last = np.full(slots, -5, np.int32)
    result, faults = np.full((2, samples), -7, np.int32)
    table: list[Any] = [] if counts is None else [counts]
    size: list[Any] = [] if counts is None else [slots]
    launch(request, [logits, *table, params, values, ids, rows, columns, samples, *size], "best")
    launch(request, [logits, params, values, ids, stats, rows, columns, samples, chunks], "limits")
    launch(request, [logits, params, stats, sums, rows, columns, samples], "masses")
    launch(
        request,
        [logits, params, stats, sums, last, *table, result, faults, rows, columns, samples, slots,
         blocks],
        "draw",
    )  # fmt: skip
    return result, faults, last


def mixed_rows(rng: np.random.Generator, columns: int) -> np.ndarray:
    """Return parameters of many kinds, greedy rows among them."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 3.0, "top_k": 5},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 0.9, "top_k": columns + 5},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.05},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 2.0, "min_p": 1.0},
        {"temperature": 1.0, "top_k": 12, "top_p": 0.95, "min_p": 0.05},
        {"temperature": 1e-6, "top_p": 0.9},
        {"temperature": 1e6, "top_p": 0.5, "top_k": 40},
    ]
    return np.stack(
        [
            sample_words(
                **kind, seed=int(rng.integers(2**63)), choice=int(rng.integers(9)),
                position=int(rng.integers(2**20)), logits_row=place, slot=place,
            )
            for place, kind in enumerate(kinds)
        ]
    )  # fmt: skip


def with_position(params: np.ndarray, position: int) -> np.ndarray:
    changed = params.copy()
    changed[:, SAMPLE_FIELDS.index("position")] += position
    return changed


LOGITS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(0, 3, shape),
    "peaked": lambda rng, shape: rng.normal(0, 12, shape),
    "flat": lambda rng, shape: rng.normal(0, 1e-3, shape),
    "ties": lambda rng, shape: rng.integers(-3, 4, shape),
    "equal": lambda rng, shape: np.broadcast_to(rng.normal(0, 3, (shape[0], 1)), shape),
    "masked": lambda rng, shape: np.where(
        rng.random(shape) < 0.9, -np.inf, rng.normal(0, 3, shape)
    ),
    "far": lambda rng, shape: rng.normal(0, 1, shape) * 1e30,
}


def rows_of(kind: str, seed: int, columns: int, rows: int = 14) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = np.ascontiguousarray(LOGITS[kind](rng, (rows, columns)), np.float32)
    # One finite logit a row at least, whatever was masked.
    logits[:, columns // 2] = np.where(
        np.isfinite(logits[:, columns // 2]), logits[:, columns // 2], 0.5
    )
    return logits


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("columns", [1, 7, 128, 1000, 5003])
def test_tokens_on_the_host(launch: Launch, kind: str, columns: int) -> None:
    logits = rows_of(kind, columns, columns)
    params = mixed_rows(np.random.default_rng(columns + 1), columns)
    for position in range(4):
        moved = with_position(params, position)
        wanted, no_faults = reference.sample(logits, moved)
        found, faults, _ = run(launch, logits, moved)
        np.testing.assert_array_equal(found, wanted)
        assert not faults.any()
        assert not no_faults.any()


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("columns", [5, 700])
def test_tokens_of_gpu_kernels(gpu: Launch, kind: str, columns: int) -> None:
    logits = rows_of(kind, columns, columns)
    params = mixed_rows(np.random.default_rng(columns + 2), columns)
    wanted, _ = reference.sample(logits, params)
    found, faults, _ = run(gpu, logits, params)
    np.testing.assert_array_equal(found, wanted)
    assert not faults.any()


def test_a_row_gets_the_same_alone_and_among_others(launch: Launch) -> None:
    logits = rows_of("normal", 3, 3000)
    params = mixed_rows(np.random.default_rng(4), 3000)
    together, _, _ = run(launch, logits, params)
    for place in range(len(params)):
        alone, _, _ = run(launch, logits, params[place : place + 1])
        assert alone[0] == together[place]
    # Nor does it matter how columns are split.
    split, _, _ = run(launch, logits, params, chunk=4096, block=1024)
    np.testing.assert_array_equal(split, together)
    order = np.random.default_rng(5).permutation(len(params))
    shuffled, _, _ = run(launch, logits, params[order])
    np.testing.assert_array_equal(shuffled, together[order])


def test_a_real_vocabulary(launch: Launch) -> None:
    columns = 151_936
    logits = rows_of("normal", 11, columns)
    params = mixed_rows(np.random.default_rng(12), columns)
    wanted, _ = reference.sample(logits, params)
    found, _, _ = run(launch, logits, params, chunk=4096, block=1024)
    np.testing.assert_array_equal(found, wanted)


def counted_case(columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(columns)
    logits = rows_of("normal", 21, columns, rows=6)
    counts = np.zeros((6, columns), np.uint32)
    seen = rng.random(counts.shape) < 0.3
    counts[seen] = 1 + 2 * rng.integers(0, 4, seen.sum()).astype(np.uint32)
    kinds = [(1.3, 0.0, 0.0), (1.0, 0.5, 0.0), (1.0, 0.0, 0.7), (0.8, -0.3, 0.4), (1.0, 0.0, 0.0)]
    params = [
        sample_words(
            temperature=0.0 if place % 2 else 0.9, top_p=0.9, seed=place, position=5,
            repetition_penalty=repetition, frequency_penalty=frequency,
            presence_penalty=presence, counts_tokens=place != 4, logits_row=5 - place, slot=place,
        )
        for place, (repetition, frequency, presence) in enumerate(kinds)
    ]  # fmt: skip
    return logits, counts, np.stack(params)


@pytest.mark.parametrize("columns", [40, 1000])
def test_penalties_and_counts(launch: Launch, gpu: Launch, columns: int) -> None:
    for where in (launch, gpu):
        logits, counts, params = counted_case(columns)
        logits2, counts2 = logits.copy(), counts.copy()
        for position in range(3):
            moved = with_position(params, position)
            wanted, _ = reference.sample(logits2, moved, counts2)
            found, faults, last = run(where, logits, moved, counts, slots=6)
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(counts, counts2)
            assert not faults.any()
            assert last[:5].tolist() == found.tolist()
            assert last[5] == -5  # nobody's
        np.testing.assert_array_equal(logits, logits2)  # of the row without penalties too


def test_rows_that_are_not_finite_are_at_fault_and_others_are_not(
    launch: Launch, gpu: Launch
) -> None:
    logits = rows_of("normal", 31, 600, rows=5)
    logits[0, 3] = np.nan
    logits[1, 599] = np.inf
    logits[2] = -np.inf
    logits[3, 4] = -np.inf
    for temperature in (0.0, 1.0):
        rows = [
            sample_words(temperature=temperature, top_p=0.9, logits_row=i, slot=i) for i in range(5)
        ]
        params = np.stack(rows)
        for where in (launch, gpu):
            found, faults, _ = run(where, logits, params)
            assert faults.tolist() == [1, 1, 1, 0, 0]
            assert found[3:].tolist() == reference.sample(logits, params)[0][3:].tolist()
            assert ((found >= 0) & (found < 600)).all()


def test_feeding_and_setting_counts(launch: Launch, gpu: Launch) -> None:
    for where in (launch, gpu):
        token_ids = np.arange(100, 110, dtype=np.int32)
        last = np.array([7, 8, 9, 10], np.int32)
        feeds = np.array([[2, 3], [9, 0], [0, 3]], np.int32)
        where(FeedRequest(), [token_ids, last, feeds, 10, 4, 3])
        assert token_ids.tolist() == [10, 101, 10, 103, 104, 105, 106, 107, 108, 7]
        counts = np.random.default_rng(0).integers(1, 99, (3, 5000)).astype(np.uint32)
        before = counts.copy()
        entries = np.array([[4999, 3], [0, 1], [77, 6]], np.uint32)
        where(CountRequest(), [counts, 3, 5000, 1], "clear")
        where(CountRequest(), [counts, entries, 3, 5000, 1, 3], "main")
        before[1] = 0
        before[1, [4999, 0, 77]] = [3, 1, 6]
        np.testing.assert_array_equal(counts, before)


# The meaning itself, against what it says in the documentation.


def test_weights_are_powers_of_the_distance() -> None:
    rng = np.random.default_rng(1)
    for temperature in (0.2, 1.0, 7.0):
        logits = rng.normal(0, 4, 20_000).astype(np.float32)
        scale = np.float32(np.log2(np.e) / temperature)
        found = reference.sampled_weights(logits, scale).astype(np.float64)
        exact = 2.0**31 * np.exp((logits.astype(np.float64) - logits.max()) / temperature)
        # Rounding the product, 2**-24 of at most 32, then half a unit.
        assert (np.abs(found - exact) <= 2e-6 * exact + 0.6).all()


@given(
    seed=st.integers(0, 10**6), size=st.integers(1, 40), temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 45), top_p=st.floats(0.01, 1), min_p=st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_only_what_the_filters_keep_is_drawn(seed, size, temperature, top_k, top_p, min_p) -> None:
    logits = np.random.default_rng(seed).integers(-20, 20, (1, size)).astype(np.float32) / 4
    p = np.exp((logits[0].astype(np.float64) - logits.max()) / temperature)
    order = sorted(range(size), key=lambda i: (-logits[0, i], i))
    if top_k:
        order = [i for i in order if logits[0, i] >= logits[0, order[min(top_k, size) - 1]]]
    if top_p < 1:
        so_far = np.cumsum(p[order])
        order = order[: 1 + int((so_far < so_far[-1] * top_p - 1e-5).sum())]
    allowed = {i for i in order if p[i] >= min_p - 1e-5}
    drawn = set()
    for position in range(60):
        words = sample_words(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
            position=position,
        )  # fmt: skip
        drawn.add(int(reference.sample(logits, words[None])[0][0]))
    assert drawn <= allowed


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([[0.4, 0.05, 0.3, 0.25]], np.float32))
    params = [sample_words(temperature=1.0, seed=9, position=i) for i in range(8000)]
    found, _ = reference.sample(logits, np.stack(params))
    counts = np.bincount(found, minlength=4)
    wanted = 8000 * np.array([0.4, 0.05, 0.3, 0.25])
    assert ((counts - wanted) ** 2 / wanted).sum() < 18  # chi-square, 3 degrees: p < 5e-4


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_kernels_assemble(arch: str) -> None:
    assert find_ptxas() is not None, "install the development dependencies: ptxas comes with them"
    caps = DeviceCaps(
        name="gpu", vector_bytes=16, subgroup_size=32, num_workers=132, shared_bytes=99 << 10,
        memory_bytes=1 << 37, max_workgroup=1024,
    )  # fmt: skip
    target = Target("ptx", arch)
    requests = (
        SampleRequest(), SampleRequest(counted=True), FeedRequest(), CountRequest(),
    )  # fmt: skip
    functions = [k.function for r in requests for k in generate(r, target, caps)]
    assert len(functions) == 11
    for package in package_kernels(functions, target, caps, None):
        spilled = assemble_ptx(package.code.decode(), arch=arch).spill_bytes
        assert spilled < 256, package.name  # 1024 invocations leave 64 registers each
