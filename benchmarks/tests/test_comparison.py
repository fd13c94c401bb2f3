"""The statistics against counting by hand, brute force, and known tables."""

from itertools import combinations

import numpy as np
import pytest

from benchmarks.harness.comparison import compare, rank_sum_p


def brute_force_p(before: list[float], after: list[float]) -> float:
    """Deal the pooled figures in every way; midranks by definition."""
    pooled = [*before, *after]
    ranks = [(sum(w < v for w in pooled) + sum(w <= v for w in pooled) + 1) / 2 for v in pooled]
    mean = sum(ranks) * len(before) / len(pooled)
    seen = abs(sum(ranks[: len(before)]) - mean)
    deals = [sum(c) for c in combinations(ranks, len(before))]
    return sum(abs(total - mean) >= seen - 1e-9 for total in deals) / len(deals)


@pytest.mark.parametrize("seed", range(20))
def test_p_is_what_dealing_all_ways_gives(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 7, 2)
    # Few distinct values, so that ties are common.
    before, after = (random.integers(1, 12, size).astype(float).tolist() for size in sizes)
    assert rank_sum_p(before, after) == pytest.approx(brute_force_p(before, after))


@pytest.mark.parametrize(
    ("size", "p"), [(5, 2 / 252), (6, 2 / 924), (8, 2 / 12870)], ids=["5", "6", "8"]
)
def test_sides_that_do_not_overlap(size: int, p: float) -> None:
    assert rank_sum_p(list(range(size)), list(range(100, 100 + size))) == pytest.approx(p)


def test_interval_has_the_ranks_of_the_table() -> None:
    # Two-sided 5%, 5 a side: the critical U is 2, so two quotients fall off each end of 25.
    before, after = [1.0, 2.0, 4.0, 8.0, 16.0], [3.0, 6.0, 12.0, 24.0, 48.0]
    quotients = sorted(b / a for a in before for b in after)
    found = compare(before, after)
    assert (found.low, found.high) == (quotients[2], quotients[-3])
    assert found.ratio == quotients[12]


def test_noise_is_not_called_and_a_clear_change_is() -> None:
    random = np.random.default_rng(1)
    noise = 100 * np.exp(0.05 * random.standard_normal((2, 5)))
    assert not compare(noise[0].tolist(), noise[1].tolist()).is_real
    faster = compare(noise[0].tolist(), (1.5 * noise[1]).tolist())
    assert faster.is_real
    assert faster.low < 1.5 < faster.high


def test_false_calls_are_as_rare_as_the_level_says() -> None:
    random = np.random.default_rng(2)
    draws = np.exp(0.05 * random.standard_normal((1000, 2, 5)))
    called = sum(compare(a.tolist(), b.tolist()).is_real for a, b in draws)
    # The level is 2/252; 1000 draws give 8 on average, and 25 is six deviations away.
    assert called < 25


def test_a_change_below_one_percent_is_not_called() -> None:
    before = [100.0 + 0.001 * i for i in range(8)]
    after = [100.5 + 0.001 * i for i in range(8)]
    found = compare(before, after)
    assert found.p < 0.001
    assert not found.is_real


def test_too_few_repeats_and_impossible_figures_are_refused() -> None:
    good = [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(ValueError, match="before has 4 repeats; a comparison needs 5 a side"):
        compare(good[:4], good)
    with pytest.raises(ValueError, match="after has a figure that is not positive"):
        compare(good, [*good[:4], 0.0])
