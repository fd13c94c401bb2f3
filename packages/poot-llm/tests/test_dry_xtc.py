"""DRY and XTC against their plain definitions, and the pace of prompts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_fakes import FakeEngine, greedy_answer, run_all, tokens_of
from llm_tokenizers import byte_level

from poot_llm import Driver, Request, SamplingParams, Tokenizer, Vocabulary
from poot_llm._dry import dry_penalties
from poot_llm._filters import exclude_top
from poot_llm._pace import Pace


def plain_dry(tokens, multiplier, base, allowed, search_range, breakers) -> dict[int, float]:
    """By comparing the end of the text with every earlier place, token by token."""
    tokens = tokens if search_range is None else tokens[max(0, len(tokens) - search_range) :]
    longest: dict[int, int] = {}
    for end in range(len(tokens) - 1):
        length = 0
        while (
            length <= end
            and tokens[end - length] == tokens[len(tokens) - 1 - length]
            and tokens[end - length] not in breakers
        ):
            length += 1
        if length >= allowed:
            follower = tokens[end + 1]
            longest[follower] = max(longest.get(follower, 0), length)
    return {token: multiplier * base ** (n - allowed) for token, n in longest.items()}


@given(
    tokens=st.lists(st.integers(0, 4), max_size=40),
    allowed=st.integers(1, 4),
    search_range=st.one_of(st.none(), st.integers(0, 45)),
    breakers=st.sets(st.integers(0, 4), max_size=2),
    base=st.sampled_from([1.0, 1.5, 1.75]),
)
@settings(max_examples=300, deadline=None)
def test_dry_is_its_definition(tokens, allowed, search_range, breakers, base) -> None:
    expected = plain_dry(tokens, 0.8, base, allowed, search_range, breakers)
    ids, penalties = dry_penalties(
        np.array(tokens, np.int32), multiplier=0.8, base=base, allowed_length=allowed,
        search_range=search_range, breakers=np.isin(np.arange(5), list(breakers)),
    )  # fmt: skip
    assert ids.tolist() == sorted(expected)
    for token, penalty in zip(ids.tolist(), penalties.tolist(), strict=True):
        assert penalty == pytest.approx(expected[token], rel=1e-6)


def test_dry_ends_a_repetition() -> None:
    tokenizer = Tokenizer(byte_level())
    engine = FakeEngine(tokenizer.vocab_size, context_tokens=200)
    # Logits that always want the token from two places before.
    engine.greedy = lambda: None

    def logits() -> np.ndarray:
        return engine._wish

    forward = engine.forward

    def follow(step) -> None:
        forward(step)
        engine._wish = np.zeros((len(step.logit_positions), engine.vocab_size), np.float32)
        for row, place in enumerate(step.logit_positions):
            at = int(step.positions[place]) - 1
            table = step.block_tables[step.rows[place]]
            wish = engine.pool_tokens[table[at // 4] * 4 + at % 4]
            engine._wish[row, wish] = 3.0
            engine._wish[row, wish + 1] = 1.0

    engine.forward, engine.logits = follow, logits
    driver = Driver(engine, vocabulary=Vocabulary(tokenizer, tokenizer.vocab_size, [0]))

    def run(**more) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=12, logit_bias={0: -1.0}, **more)
        request_id = driver.add(Request(prompt_ids=[70, 90], params=params))
        return tokens_of(run_all(driver, [request_id])[request_id])

    assert run() == [70, 90] * 6
    assert run(dry_multiplier=5.0)[:3] == [70, 90, 71]
    assert run(dry_multiplier=5.0, dry_allowed_length=4)[:5] == [70, 90, 70, 90, 71]
    assert run(dry_multiplier=5.0, dry_range=2) == [70, 90] * 6
    breaker = tokenizer.table.bytes_of(90).decode()
    assert run(dry_multiplier=5.0, dry_sequence_breakers=(breaker,)) == [70, 90] * 6


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_xtc_is_its_definition(weights, threshold) -> None:
    probabilities = np.array(weights) / sum(weights)
    ids = np.arange(len(weights)) * 3
    kept, left = exclude_top(ids, np.array(weights, np.uint64), threshold)
    above = [i for i, p in zip(ids, probabilities, strict=True) if p >= threshold]
    if len(above) < 2:
        assert kept.tolist() == ids.tolist()
        return
    least = min(p for p in probabilities if p >= threshold)
    stays = max(i for i, p in zip(ids, probabilities, strict=True) if p == least)
    assert kept.tolist() == [i for i in ids if i == stays or i not in above]
    assert left.tolist() == [weights[i // 3] for i in kept]


def test_xtc_acts_as_often_as_asked_and_the_same_each_time() -> None:
    def run(probability: float) -> list[list[int]]:
        driver = Driver(FakeEngine(context_tokens=64))
        ids = [
            driver.add(
                Request(
                    prompt_ids=[seed],
                    params=SamplingParams(
                        seed=seed, temperature=0.05, xtc_probability=probability,
                        xtc_threshold=0.001, max_tokens=30,
                    ),
                )
            )
            for seed in range(8)
        ]  # fmt: skip
        return [tokens_of(events) for events in run_all(driver, ids).values()]

    assert run(0.5) == run(0.5)
    assert run(0.0) != run(1.0) != run(0.5)


def test_the_pace_keeps_steps_short() -> None:
    pace = Pace()
    assert pace.allowance(8) == 0  # nothing is known yet: the step without a prompt tells
    pace.observe(8, 0, 0.006)
    assert pace.allowance(8) == 32
    for _ in range(60):
        pace.observe(8, 0, 0.006)
        pace.observe(8, 40, 0.006 + 40 * 0.0003)
    assert pace.allowance(8) == 16  # 6 ms and 16 x 0.3 ms are 1.8 steps
    pace.observe(8, 0, 5.0)  # one stall is forgotten soon
    for _ in range(40):
        pace.observe(8, 0, 0.006)
    assert pace.allowance(8) == pytest.approx(16, abs=1)
    for _ in range(63):
        pace.observe(8, 16, 1.0)
    assert pace.allowance(8) == 8  # prompts get on in any case
    pace.observe(8, 16, 1.0)
    assert pace.allowance(8) == 0  # what decoding takes may have changed
    pace.observe(8, 0, 0.006)
    assert pace.allowance(8) == 8
    assert Pace(7).allowance(8) == 7


def test_a_bound_on_prompt_tokens_holds_only_beside_decoding() -> None:
    engine = FakeEngine(max_step_tokens=16)
    driver = Driver(engine, max_prefill_tokens=3)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    first = driver.add(Request(prompt_ids=list(range(20)), params=params))
    driver.step()
    driver.step()
    second = driver.add(Request(prompt_ids=list(range(50, 60)), params=params))
    events = run_all(driver, [first, second])
    assert engine.steps[:6] == [(16, 1), (4, 1), (4, 2), (4, 2), (4, 2), (2, 2)]
    assert tokens_of(events[second]) == greedy_answer(list(range(50, 60)), 20)


def test_streams_hardly_notice_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that the engine moves: 3 ms a step, 0.37 ms a row, 0.33 ms a token of a prompt.
    now = [100.0]
    monkeypatch.setattr("poot_llm._driver.perf_counter", lambda: now[0])
    engine = FakeEngine(
        context_tokens=2100, block_size=32, num_blocks=1000, max_sequences=16, max_step_tokens=512
    )

    def forward(step) -> None:
        rows, tokens = len(step.sequence_lengths), len(step.token_ids)
        now[0] += 0.003 + 0.00037 * rows + 0.00033 * (tokens - rows)
        engine._logits = np.zeros((len(step.logit_positions), engine.vocab_size), np.float32)

    engine.forward = forward
    driver = Driver(engine)
    params = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    streams = {driver.add(Request(prompt_ids=[n] * 20, params=params)): [] for n in range(8)}
    steps = 0
    long = None
    while driver.has_work:
        if steps == 100:
            long = driver.add(Request(prompt_ids=list(range(96)) * 21, params=params))
        for event in driver.step():
            streams.setdefault(event.request_id, []).append(now[0])
        steps += 1
    gaps = np.concatenate([np.diff(times) for request, times in streams.items() if request != long])
    assert np.percentile(gaps, 99) <= 3 * np.median(gaps)
    assert streams[long][0] - now[0] < 0  # it got its answer, too
    # Of 1.8 steps' time 0.8 are the prompt's: 2.25 times what it takes alone, 2,016 x 0.33 ms.
    assert streams[long][0] - streams[0][99] < 2.4 * 2016 * 0.00033
