"""Whether two sides differ: an exact rank test over repeats, and a ratio with its interval.

The statistic: the two-sided Mann-Whitney (Wilcoxon rank-sum) test, exact by counting all ways to deal
the pooled ranks to the two sides, ties by midranks. It assumes no distribution and no single run can
carry it. The size of a change is the Hodges-Lehmann estimate on the ratio scale, the median of all
after/before quotients, with the interval that the same test leaves (95%).

A change is called real if p <= 0.01 *and* the ratio is at least 1% away from 1. With 5 repeats a side
that takes sides which do not overlap at all (p = 2/252 = 0.0079); fewer repeats can never be called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEAST_REPEATS", "Comparison", "compare", "rank_sum_p"]

LEAST_REPEATS = 5
LEVEL = 0.01
LEAST_CHANGE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides of one metric.

    Attributes:
        ratio: After over before (Hodges-Lehmann).
        low: Lower end of the 95% interval of the ratio.
        high: Upper end.
        p: Of no difference, exact, two-sided.
        is_real: Whether it is outside the noise and large enough to matter.
    """

    ratio: float
    low: float
    high: float
    p: float
    is_real: bool


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Return how two sides of positive figures differ.

    Raises:
        ValueError: If a side has fewer than 5 figures, or one that is not positive.
    """
    for side, values in (("before", before), ("after", after)):
        if len(values) < LEAST_REPEATS:
            raise ValueError(
                f"{side} has {len(values)} repeats; a comparison needs {LEAST_REPEATS} a side"
            )
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError(f"{side} has a figure that is not positive: {list(values)}")
    quotients = sorted(b / a for a in before for b in after)
    ratio = _median(quotients)
    cut = _interval_cut(len(before), len(after))
    p = rank_sum_p(before, after)
    return Comparison(
        ratio=ratio,
        low=quotients[cut],
        high=quotients[len(quotients) - 1 - cut],
        p=p,
        is_real=p <= LEVEL and abs(math.log(ratio)) >= math.log1p(LEAST_CHANGE),
    )


def rank_sum_p(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the exact two-sided probability of a rank sum at least this far from its mean.

    >>> round(rank_sum_p([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), 4)
    0.0079
    """
    ranks = _doubled_midranks([*before, *after])
    observed = sum(ranks[: len(before)])
    ways = _subset_sums(ranks, len(before))
    mean = sum(ranks) * len(before) / len(ranks)
    distance = abs(observed - mean)
    extreme = sum(n for total, n in ways.items() if abs(total - mean) >= distance - 1e-9)
    return extreme / math.comb(len(ranks), len(before))


def _doubled_midranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value, ties sharing their mean rank (so all are integers)."""
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in set(values)}
    count = {value: ordered.count(value) for value in set(values)}
    return [2 * first[value] + count[value] + 1 for value in values]


def _subset_sums(numbers: Sequence[int], size: int) -> dict[int, int]:
    """Return how many subsets of a size have each sum."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for number in numbers:
        for used in range(size, 0, -1):
            for total, n in ways[used - 1].items():
                ways[used][total + number] = ways[used].get(total + number, 0) + n
    return ways[size]


def _interval_cut(before: int, after: int) -> int:
    """Return how many quotients lie outside of the 95% interval at each end."""
    total = math.comb(before + after, before)
    least = before * (before + 1)  # twice the smallest rank sum
    ways = _subset_sums(range(2, 2 * (before + after) + 1, 2), before)
    below, cut = 0, 0
    while True:
        below += ways.get(least + 2 * cut, 0)
        if below / total > 0.025:
            return max(cut - 1, 0)
        cut += 1


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
