"""One step ahead: what a driver gives over an engine that queues is what it gives step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_fakes import FakeEngine, greedy_answer, run_all, tokens_of
from llm_late import BusyEngine, LateEngine, StepByStep

from poot_core import DeviceError
from poot_llm import Driver, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=9)


def late(**options: int) -> LateEngine:
    return LateEngine(FakeEngine(**options))


def facts(events: list[Any]) -> tuple[Any, ...]:
    """Return everything that a client sees of an answer, but for when."""
    logprobs = [entry for event in events for entry in event.logprobs or []]
    scored = [event.prompt_logprobs for event in events if event.prompt_logprobs is not None]
    last = events[-1]
    return tokens_of(events), logprobs, scored, last.finish_reason, last.error


def test_the_next_step_is_handed_over_before_the_last_one_is_read() -> None:
    engine = late()
    driver = Driver(engine)
    ids = [driver.add(Request(prompt_ids=[3, 1, index], params=GREEDY)) for index in range(3)]
    events = run_all(driver, ids)
    for index, request_id in enumerate(ids):
        assert tokens_of(events[request_id]) == greedy_answer([3, 1, index], 9)
    stats = driver.stats
    # But for the first two, as nobody knew what a prompt costs, every step was planned, built and handed
    # over while the device had one to do, and nothing was computed for nothing: ends by count are known.
    assert stats.steps == engine.num_steps == 9
    assert stats.steps_ahead == engine.overlaps == 7
    assert stats.surplus_rows == 0
    assert stats.num_free_blocks == stats.num_blocks


@pytest.mark.parametrize("is_ahead", [False, True])
def test_host_work_is_done_while_a_device_of_real_step_times_is_busy(is_ahead: bool) -> None:
    engine = BusyEngine(FakeEngine(), step_s=0.003)
    driver = Driver(engine if is_ahead else StepByStep(engine))
    ids = [driver.add(Request(prompt_ids=[3, 1, index], params=GREEDY)) for index in range(3)]
    events = run_all(driver, ids)
    engine.close()
    for index, request_id in enumerate(ids):
        assert tokens_of(events[request_id]) == greedy_answer([3, 1, index], 9)
    # Step by step a step is never planned while another runs; how many of the seven are otherwise
    # depends on the machine, and a host that is held up for each whole step would be no test.
    assert (engine.overlaps > 0) == is_ahead
    assert driver.stats.steps_ahead == (7 if is_ahead else 0)


def test_an_engine_that_does_not_queue_is_never_ahead() -> None:
    driver = Driver(FakeEngine())
    run_all(driver, [driver.add(Request(prompt_ids=[3, 1], params=GREEDY))])
    assert driver.stats.steps_ahead == 0


def test_an_end_token_is_found_one_step_late_and_nobody_sees_it() -> None:
    wanted = greedy_answer([5, 6], 30)
    end = next(t for place, t in enumerate(wanted) if place > 3 and t not in wanted[:place])
    engine = late()
    driver = Driver(engine, eos_token_ids=[end])
    params = SamplingParams(temperature=0.0, max_tokens=30)
    beside = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    first = driver.add(Request(prompt_ids=[5, 6], params=params))
    second = driver.add(Request(prompt_ids=[8], params=beside))
    events = run_all(driver, [first, second])
    assert tokens_of(events[first]) == wanted[: wanted.index(end) + 1]
    assert events[first][-1].finish_reason == "stop"
    assert tokens_of(events[second]) == greedy_answer([8], 40)
    assert driver.stats.surplus_rows == 1
    assert driver.stats.num_free_blocks == driver.stats.num_blocks


def test_a_stop_token_of_the_only_request_leaves_an_empty_driver() -> None:
    wanted = greedy_answer([5, 6], 3)
    params = SamplingParams(temperature=0.0, max_tokens=30, stop_token_ids=(wanted[2],))
    driver = Driver(late())
    request_id = driver.add(Request(prompt_ids=[5, 6], params=params))
    events = run_all(driver, [request_id])[request_id]
    assert tokens_of(events) == wanted
    assert (driver.stats.surplus_rows, driver.stats.steps) == (1, 4)
    assert not driver.has_work
    assert driver.step() == []


def test_an_abort_in_flight_harms_nobody_and_its_row_is_used_at_once() -> None:
    driver = Driver(late(max_sequences=2))
    params = SamplingParams(temperature=0.0, max_tokens=20)
    ids = [driver.add(Request(prompt_ids=[4, index], params=params)) for index in range(3)]
    got: dict[int, list[int]] = {request_id: [] for request_id in ids}
    for _ in range(6):
        for event in driver.step():
            got[event.request_id] += event.token_ids
    assert got[ids[0]]
    assert not got[ids[2]]  # both rows are taken
    assert driver.cancel(ids[0]) is not None
    assert driver.cancel(ids[0]) is None
    before = list(got[ids[0]])
    while driver.has_work:
        for event in driver.step():
            got[event.request_id] += event.token_ids
    assert got[ids[0]] == before == greedy_answer([4, 0], 20)[: len(before)]
    assert [got[i] for i in ids[1:]] == [greedy_answer([4, index], 20) for index in (1, 2)]
    assert driver.stats.surplus_rows >= 1
    assert driver.stats.num_free_blocks == driver.stats.num_blocks


def test_all_are_aborted_in_flight() -> None:
    driver = Driver(late())
    ids = [driver.add(Request(prompt_ids=[4, index], params=GREEDY)) for index in range(2)]
    for _ in range(3):
        driver.step()
    for request_id in ids:
        driver.cancel(request_id)
    assert driver.has_work  # a step is under way
    assert driver.step() == []
    assert not driver.has_work
    assert driver.stats.num_free_blocks == driver.stats.num_blocks


@pytest.mark.parametrize("dies_at", [0, 1, 4])
def test_a_device_that_is_lost_in_flight_gives_a_prefix_and_one_clean_error(dies_at: int) -> None:
    engine = late()
    engine.dies_at = dies_at
    driver = Driver(engine)
    request_id = driver.add(Request(prompt_ids=[2, 7], params=GREEDY))
    got: list[int] = []

    def run() -> None:
        for _ in range(20):
            got.extend(tokens_of(driver.step()))

    with pytest.raises(DeviceError, match="on fire"):
        run()
    assert got == greedy_answer([2, 7], 9)[:dies_at]
    with pytest.raises(DeviceError, match="opened anew"):
        driver.add(Request(prompt_ids=[1], params=GREEDY))
    with pytest.raises(DeviceError, match="opened anew"):
        driver.step()
    assert driver.cancel(request_id) is not None


def test_preemption_loses_nothing_that_is_under_way() -> None:
    driver = Driver(late(num_blocks=18, context_tokens=64))
    params = SamplingParams(temperature=0.0, max_tokens=40)
    ids = [driver.add(Request(prompt_ids=[7, 7, index], params=params)) for index in range(4)]
    events = run_all(driver, ids)
    assert driver.stats.preemptions > 0
    assert driver.stats.steps_ahead > 0
    assert driver.stats.surplus_rows == 0
    assert [tokens_of(events[i]) for i in ids] == [greedy_answer([7, 7, n], 40) for n in range(4)]
    assert driver.stats.num_free_blocks == driver.stats.num_blocks


def test_a_prefix_is_found_once_its_step_has_been_read() -> None:
    driver = Driver(late())
    prompt = list(range(30, 43))
    first = driver.add(Request(prompt_ids=prompt, params=GREEDY))
    run_all(driver, [first])
    known = prompt + greedy_answer(prompt, 9)
    again = driver.add(Request(prompt_ids=known, params=GREEDY))
    events = run_all(driver, [again])[again]
    assert tokens_of(events) == greedy_answer(known, 9)
    # 22 tokens are known, the last of them was never computed: 5 blocks of 4 are full.
    assert events[0].cached_tokens == 20


def test_what_waits_for_a_shared_block_goes_on_when_its_maker_is_aborted_in_flight() -> None:
    driver = Driver(late(max_step_tokens=16))
    prompt = list(range(30, 43))
    first = driver.add(Request(prompt_ids=prompt, params=GREEDY))
    second = driver.add(Request(prompt_ids=[*prompt, 9], params=GREEDY))
    driver.step()
    driver.cancel(first)
    events = run_all(driver, [second])[second]
    assert tokens_of(events) == greedy_answer([*prompt, 9], 9)


def test_a_fault_in_flight_ends_its_own_request_alone_and_is_not_shared() -> None:
    engine = late()
    driver = Driver(engine)
    params = SamplingParams(temperature=0.0, max_tokens=12)
    ids = [driver.add(Request(prompt_ids=[6, index], params=params)) for index in range(2)]
    engine.faults_at = {3: {0: "a slot is out of range"}, 4: {0: "and again"}}
    events = run_all(driver, ids)
    assert tokens_of(events[ids[0]]) == greedy_answer([6, 0], 3)
    assert events[ids[0]][-1].error == "a slot is out of range"
    assert tokens_of(events[ids[1]]) == greedy_answer([6, 1], 12)
    stats = driver.stats
    assert (stats.faults, stats.surplus_rows) == (1, 1)
    assert stats.num_free_blocks == stats.num_blocks


def test_rows_that_need_the_host_have_every_step_read_first() -> None:
    engine = late()
    driver = Driver(engine)
    beside = driver.add(
        Request(prompt_ids=[3], params=SamplingParams(temperature=0.0, max_tokens=30))
    )
    for _ in range(4):
        driver.step()
    before = driver.stats.steps_ahead
    scored = SamplingParams(temperature=0.0, max_tokens=8, logprobs=2)
    request_id = driver.add(Request(prompt_ids=[4, 4], params=scored))
    events: list[Any] = []
    while not events or events[-1].finish_reason is None:
        events += [event for event in driver.step() if event.request_id == request_id]
    # The step that it joined was ahead of another; its own ones were not.
    assert driver.stats.steps_ahead <= before + 1
    assert tokens_of(events) == greedy_answer([4, 4], 8)
    assert len([entry for event in events for entry in event.logprobs]) == 8
    run_all(driver, [beside])
    assert driver.stats.steps_ahead > before + 8  # and then it runs ahead again


def test_a_first_burst_is_not_planned_blindly() -> None:
    engine = late(max_step_tokens=16)
    driver = Driver(engine, shares_prefixes=False)
    work = [[number] * 16 for number in range(1, 4)]
    ids = [driver.add(Request(prompt_ids=prompt, params=GREEDY)) for prompt in work]
    events = run_all(driver, ids)
    assert [tokens_of(events[i]) for i in ids] == [greedy_answer(prompt, 9) for prompt in work]
    # What the first prompt costs was read before the second step was planned: the others go first.
    assert engine.engine.steps[:4] == [(16, 1), (16, 1), (16, 1), (3, 3)]
    assert driver.stats.steps_ahead == len(engine.engine.steps) - 2


KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 4, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.1, "seed": 5, "top_k": 20},
    {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.6},
    {"temperature": 0.8, "seed": 6, "presence_penalty": 0.9},
    {"temperature": 0.7, "seed": 7, "logprobs": 2},
    {"temperature": 0.0, "min_tokens": 4},
    {"temperature": 0.0, "prompt_logprobs": 1},
    {"temperature": 0.6, "seed": 8, "stop_token_ids": (1, 2, 3, 4, 5, 6, 7, 8, 9)},
]
ITEMS = st.tuples(
    st.integers(1, 40),  # tokens of the prompt
    st.integers(0, 20),  # most of the answer
    st.integers(0, 12),  # when it comes
    st.integers(0, len(KINDS) - 1),
    st.booleans(),  # whether the prompt begins as others do
    st.one_of(st.none(), st.integers(1, 10)),  # tokens after which it is aborted
)


@given(
    st.lists(ITEMS, min_size=1, max_size=9),
    st.integers(1, 5),
    st.integers(0, 12),
    st.sampled_from([1, 3, 4, 8]),
    st.integers(0, 40),
)
@settings(max_examples=80, deadline=None)
def test_any_mix_gets_what_steps_one_by_one_give(
    work: list[Any], max_sequences: int, extra_tokens: int, block_size: int, pool_tokens: int
) -> None:
    context = 60
    options = {
        "context_tokens": context,
        "max_sequences": max_sequences,
        "block_size": block_size,
        "max_step_tokens": max_sequences + extra_tokens,
        "num_blocks": -(-context // block_size) + pool_tokens // block_size,
    }
    rng = np.random.default_rng(3)
    shared = rng.integers(0, 97, context).tolist()
    requests: list[tuple[int, Request, int | None]] = []
    for size, count, arrival, kind, is_shared, abort in work:
        prompt = shared[:size] if is_shared else rng.integers(0, 97, size).tolist()
        chosen: dict[str, Any] = KINDS[kind]
        least = chosen.get("min_tokens", int("prompt_logprobs" not in chosen))
        params = SamplingParams(max_tokens=max(least, count), **chosen)
        requests.append((arrival, Request(prompt_ids=prompt, params=params), abort))
    wanted: list[Any] = []
    for _, request, _ in requests:
        driver = Driver(FakeEngine(**options), eos_token_ids=[90, 91, 92, 93])
        request_id = driver.add(request)
        wanted.append(facts(run_all(driver, [request_id])[request_id]))
    engine = late(**options)
    driver = Driver(engine, eos_token_ids=[90, 91, 92, 93])
    pending = dict(enumerate(requests))
    numbers: dict[int, int] = {}
    got: dict[int, list[Any]] = {}
    aborted: set[int] = set()
    step = 0
    while pending or driver.has_work:
        for number, (arrival, request, _) in list(pending.items()):
            if arrival <= step:
                del pending[number]
                request_id = driver.add(request)
                numbers[request_id], got[request_id] = number, []
        for event in driver.step():
            assert event.request_id not in aborted
            got[event.request_id].append(event)
        for request_id, number in numbers.items():
            abort = requests[number][2]
            if abort is not None and len(tokens_of(got[request_id])) >= abort:
                aborted.add(request_id)
                driver.cancel(request_id)
        step += 1
        assert step < 10_000, "the driver makes no progress"
    for request_id, number in numbers.items():
        if request_id in aborted:
            found = tokens_of(got[request_id])
            assert found == wanted[number][0][: len(found)]
        else:
            assert facts(got[request_id]) == wanted[number]
    stats = driver.stats
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.steps == engine.num_steps
