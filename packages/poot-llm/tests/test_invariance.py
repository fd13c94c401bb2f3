"""What a request gets depends on nothing but itself: bit-equal tokens and log-probabilities.

On the host CPU, by the kernels that a server runs, in both precisions; the checkpoint is tiny, with
random weights, so that its logits are close to each other and any change of a bit would show.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poot_core import Settings
from poot_executor import Engine, EngineOptions, open_engine
from poot_llm import Driver, Logprobs, Request, SamplingParams
from poot_llm._open import read_model

CHECKPOINT = Path(__file__).parent / "data" / "llama"
OPTIONS = EngineOptions(
    backend="cpu", threads=2, context_tokens=256, max_sequences=33, max_step_tokens=64,
    block_size=16, num_blocks=1200,
)  # fmt: skip
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=5),
    SamplingParams(
        temperature=1.3, top_p=0.95, min_p=0.01, seed=5, repetition_penalty=1.1,
        frequency_penalty=0.2, max_tokens=24, ignore_eos=True, logprobs=3,
    ),
    SamplingParams(temperature=0.8, seed=9, max_tokens=24, ignore_eos=True, logprobs=0),
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
]  # fmt: skip
Answer = tuple[list[int], list[Logprobs]]


@pytest.fixture(scope="module", params=["f32", "auto"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    checkpoint, model = read_model(CHECKPOINT)
    with checkpoint:
        options = replace(OPTIONS, precision=request.param)
        engine = open_engine(
            model.trace, model.cache_key, checkpoint.weights, model.vocab_size, options,
            Settings.from_environment(),
        )  # fmt: skip
        yield engine
        engine.close()


def prompt_of(seed: int, size: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, size).tolist()


def answers(driver: Driver, requests: list[Request]) -> list[Answer]:
    found: dict[int, Answer] = {driver.add(request): ([], []) for request in requests}
    while driver.has_work:
        for event in driver.step():
            assert event.finish_reason != "error", event.error
            found[event.request_id][0].extend(event.token_ids)
            found[event.request_id][1].extend(event.logprobs or [])
    return list(found.values())


REQUESTS = [
    Request(prompt_ids=prompt_of(seed, size), params=params)
    for seed, (size, params) in enumerate(zip((70, 33, 150, 5), PARAMS, strict=True))
]


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[Answer]:
    driver = Driver(engine, shares_prefixes=False)
    return [answers(driver, [request])[0] for request in REQUESTS]


def test_in_a_batch_of_32(engine: Engine, alone: list[Answer]) -> None:
    company = [
        Request(prompt_ids=prompt_of(100 + n, 1 + 7 * n), params=PARAMS[n % 4]) for n in range(28)
    ]
    found = answers(Driver(engine), [*company[:14], *REQUESTS, *company[14:]])
    assert found[14:18] == alone


def test_after_a_prefix_hit(engine: Engine, alone: list[Answer]) -> None:
    # The next turns of a chat, which find the answers' own blocks in the cache.
    turns = [
        Request(prompt_ids=[*request.prompt_ids, *answer[0], 7, 8], params=request.params)
        for request, answer in zip(REQUESTS, alone, strict=True)
    ]
    fresh = Driver(engine, shares_prefixes=False)
    expected = [answers(fresh, [turn])[0] for turn in turns]
    longer = [
        Request(prompt_ids=[*request.prompt_ids[:-2], 1, 2, 3], params=PARAMS[0])
        for request in REQUESTS
    ]
    # Only one driver may use the pool from here on.
    driver = Driver(engine)
    answers(driver, longer)
    assert answers(driver, REQUESTS) == alone
    before = driver.stats.prefix_hit_tokens
    assert before > 200
    assert answers(driver, turns) == expected
    assert driver.stats.prefix_hit_tokens - before > 250


def test_with_any_chunks(engine: Engine, alone: list[Answer]) -> None:
    for most in (1, 7, 16, 40):
        driver = Driver(engine, shares_prefixes=False, max_prefill_tokens=most)
        # One that decodes meanwhile, so that the bound holds.
        params = SamplingParams(temperature=0.0, max_tokens=240, ignore_eos=True)
        company = driver.add(Request(prompt_ids=[3], params=params))
        driver.step()
        found = answers_among(driver, REQUESTS, company)
        assert found == alone


def answers_among(driver: Driver, requests: list[Request], company: int) -> list[Answer]:
    found: dict[int, Answer] = {driver.add(request): ([], []) for request in requests}
    left = set(found)
    while left:
        for event in driver.step():
            if event.request_id != company:
                found[event.request_id][0].extend(event.token_ids)
                found[event.request_id][1].extend(event.logprobs or [])
                if event.finish_reason:
                    left.discard(event.request_id)
    driver.cancel(company)
    return list(found.values())


def test_after_being_put_back(engine: Engine, alone: list[Answer]) -> None:
    driver = Driver(engine)
    # All blocks but a few are taken, so that what runs runs out of them: the company alone needs 36.
    blocks = driver._blocks
    held = blocks.allocate(blocks.num_blocks - 34)
    assert held is not None
    company = [
        Request(
            prompt_ids=prompt_of(200 + n, 20),
            params=replace(PARAMS[n], max_tokens=120),
            priority=-1,
        )
        for n in range(4)
    ]
    found = answers(driver, [*company, *REQUESTS])
    assert driver.stats.preemptions > 0
    assert found[4:] == alone
    assert blocks.num_free == 34


def test_prompt_logprobs_are_those_of_the_logits_whatever_the_chunks(engine: Engine) -> None:
    prompt = prompt_of(77, 90)
    driver = Driver(engine)
    request = Request(prompt_ids=prompt, scores_prompt=True)
    driver.add(request)
    logits = None
    while driver.has_work:
        for event in driver.step():
            logits = event.prompt_logits
    assert logits.shape == (90, 320)
    wide = logits.astype(np.float64)
    log = wide - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True))
    log -= wide.max(1, keepdims=True)
    found = []
    for most, company in ((None, False), (5, True), (33, True)):
        params = SamplingParams(prompt_logprobs=2, max_tokens=0)
        each = Driver(engine, max_prefill_tokens=most)
        if company:
            long = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
            each.add(Request(prompt_ids=prompt, params=long))  # its prefix is in the cache, too
            each.step()
            each.step()
        request_id = each.add(Request(prompt_ids=prompt, params=params))
        end = None
        while end is None:
            for event in each.step():
                if event.request_id == request_id and event.finish_reason:
                    end = event
        assert end.finish_reason == "length"
        assert end.token_ids == []
        found.append(end.prompt_logprobs)
    assert found[0] == found[1] == found[2]
    assert found[0][0] is None
    assert len(found[0]) == 90
    for place, entry in enumerate(found[0][1:]):
        assert entry.token_id == prompt[place + 1]
        assert entry.logprob == pytest.approx(log[place, prompt[place + 1]], abs=1e-5)
        best = np.argsort(-logits[place], kind="stable")[:2]
        assert [token_id for token_id, _ in entry.top] == best.tolist()


def test_prompt_logprobs_come_with_the_first_token(engine: Engine, alone: list[Answer]) -> None:
    driver = Driver(engine)
    answers(driver, REQUESTS[:1])
    request = replace(REQUESTS[0], params=replace(PARAMS[0], prompt_logprobs=0))
    driver.add(request)
    events = []
    while driver.has_work:
        events += driver.step()
    assert len(events[0].prompt_logprobs) == 70
    assert all(event.prompt_logprobs is None for event in events[1:])
    assert events[0].cached_tokens == 0  # a score needs every position computed
    assert [t for event in events for t in event.token_ids] == alone[0][0]
