"""Rotary frequencies against the formulas of the papers, pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest

from poot_models.components import frequencies

DIM, THETA = 64, 500000.0
PLAIN = [THETA ** (-2 * pair / DIM) for pair in range(DIM // 2)]


def close(found: tuple[float, ...], expected: list[float]) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_default() -> None:
    made = frequencies.default(DIM, THETA)
    close(made.inverse, PLAIN)
    assert made.scale == 1.0
    assert all(value == float(np.float32(value)) for value in made.inverse)


def test_linear_divides_every_pair() -> None:
    close(frequencies.linear(DIM, THETA, factor=4.0).inverse, [value / 4 for value in PLAIN])


def test_llama3_keeps_fast_pairs_and_divides_slow_ones() -> None:
    made = frequencies.llama3(
        DIM, THETA, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
    )
    expected = []
    for value in PLAIN:
        wavelength = 2 * math.pi / value
        if wavelength < 8192 / 4:
            expected.append(value)
        elif wavelength > 8192:
            expected.append(value / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected.append((1 - smooth) * value / 8 + smooth * value)
    close(made.inverse, expected)
    assert made.inverse[0] == 1.0
    assert made.scale == 1.0


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_blends_between_two_numbers_of_turns(truncate: bool) -> None:
    factor, original = 4.0, 4096
    made = frequencies.yarn(DIM, THETA, factor=factor, original_context=original, truncate=truncate)

    def pair_that_turns(times: float) -> float:
        # Solve original / (2 pi theta^(2 i / dim)) = times for i.
        return DIM / 2 * math.log(original / (2 * math.pi * times)) / math.log(THETA)

    low, high = pair_that_turns(32), pair_that_turns(1)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    expected = []
    for pair, value in enumerate(PLAIN):
        ramp = min(max((pair - low) / (high - low), 0), 1)
        expected.append(value / factor * ramp + value * (1 - ramp))
    close(made.inverse, expected)
    assert made.scale == pytest.approx(0.1 * math.log(factor) + 1, rel=1e-6)


def test_yarn_attention_factors() -> None:
    def scale(**options: float) -> float:
        return frequencies.yarn(DIM, THETA, factor=40.0, original_context=4096, **options).scale

    assert scale(attention_factor=1.25) == 1.25
    assert scale(mscale=1.0, mscale_all_dim=1.0) == 1.0
    expected = (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)
    assert scale(mscale=0.707, mscale_all_dim=1.0) == pytest.approx(expected, rel=1e-6)
    assert scale(mscale=0.707) == pytest.approx(0.1 * math.log(40) + 1, rel=1e-6)


def test_longrope_divides_pair_by_pair() -> None:
    factors = tuple(1 + pair / 10 for pair in range(DIM // 2))
    made = frequencies.longrope(DIM, THETA, factors=factors, factor=32.0, original_context=4096)
    close(made.inverse, [value / by for value, by in zip(PLAIN, factors, strict=True)])
    assert made.scale == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)), rel=1e-6)
    same = frequencies.longrope(DIM, THETA, factors=factors, factor=1.0, original_context=4096)
    assert same.scale == 1.0


def test_proportional_turns_the_first_pairs_only() -> None:
    made = frequencies.proportional(DIM, THETA, rotated=0.25)
    close(made.inverse, PLAIN[:8] + [0.0] * 24)


def test_ntk_alpha_stretches_the_base() -> None:
    base = THETA * 1000 ** (DIM / (DIM - 2))
    made = frequencies.ntk_alpha(DIM, THETA, alpha=1000.0)
    close(made.inverse, [base ** (-2 * pair / DIM) for pair in range(DIM // 2)])
