"""What load a benchmark puts on a server: lengths of prompts and answers, and times of arrival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import RequestError

__all__ = ["Lengths", "arrivals_s", "prompts"]

_Draw = Callable[[np.random.Generator, int], NDArray[np.floating[Any]]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts, at least 1 each.

    Attributes:
        text: ``128``, ``uniform:64:192``, ``normal:128:32`` or ``lognormal:128:0.5`` (median and sigma
            of the logarithm).

    >>> Lengths("uniform:3:3").draw(np.random.default_rng(0), 2).tolist()
    [3, 3]
    """

    text: str

    def __post_init__(self) -> None:
        self._parse()

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Return (count,) token counts."""
        return np.maximum(1, np.rint(self._parse()(rng, count))).astype(np.int64)

    def _parse(self) -> _Draw:
        kind, *rest = ["fixed", self.text] if self.text.isdecimal() else self.text.split(":")
        try:
            values = [float(each) for each in rest]
            match kind, values:
                case "fixed", [size]:
                    return lambda _, count: np.full(count, size)
                case "uniform", [low, high] if 0 < low <= high:
                    return lambda rng, count: rng.integers(int(low), int(high) + 1, count).astype(
                        float
                    )
                case "normal", [mean, sigma] if sigma >= 0:
                    return lambda rng, count: rng.normal(mean, sigma, count)
                case "lognormal", [median, sigma] if median > 0 and sigma >= 0:
                    return lambda rng, count: rng.lognormal(np.log(median), sigma, count)
                case _:
                    pass
        except ValueError:
            pass
        raise RequestError(
            f"{self.text!r} is no distribution of lengths; write 128, uniform:64:192, normal:128:32 or "
            "lognormal:128:0.5",
            field="lengths",
        )


def arrivals_s(
    rng: np.random.Generator, count: int, rate: float | None, burstiness: float
) -> NDArray[np.float64]:
    """Return (count,) seconds from the start at which requests are due; all 0 without a rate.

    Args:
        rng: Source of the gaps.
        count: Requests.
        rate: Requests a second.
        burstiness: Shape of the gamma distribution of the gaps: 1 is a Poisson process, less comes in
            bursts, more is more even.
    """
    if rate is None:
        return np.zeros(count)
    gaps = rng.gamma(burstiness, 1.0 / (rate * burstiness), count)
    return np.cumsum(gaps) - gaps[0]


def prompts(
    rng: np.random.Generator,
    sizes: NDArray[np.int64],
    *,
    num_shared: int,
    vocabulary: tuple[int, int],
) -> list[list[int]]:
    """Return random prompts.

    Args:
        rng: Source of the tokens.
        sizes: (count,) tokens of each, without the shared ones.
        num_shared: Tokens that all begin with.
        vocabulary: Lowest id, and the id past the highest.
    """
    low, high = vocabulary
    shared = rng.integers(low, high, num_shared).tolist()
    return [[*shared, *rng.integers(low, high, size).tolist()] for size in sizes.tolist()]
