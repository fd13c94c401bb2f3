import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_fakes import FakeEngine, greedy_answer, logits_of, run_all, tokens_of

from poot_core import DeviceError, RequestError, SettingsError
from poot_llm import ContextLengthError, Driver, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=9)


def prompts(count: int, seed: int = 1, longest: int = 40) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 97, rng.integers(1, longest)).tolist() for _ in range(count)]


def test_one_request_gets_the_greedy_continuation() -> None:
    driver = Driver(FakeEngine())
    events = run_all(driver, [driver.add(Request(prompt_ids=[3, 1, 4], params=GREEDY))])[0]
    assert tokens_of(events) == greedy_answer([3, 1, 4], 9)
    assert [event.finish_reason for event in events] == [None] * 8 + ["length"]
    timings = events[-1].timings
    assert (timings.prompt_tokens, timings.output_tokens) == (3, 9)
    assert driver.stats.num_free_blocks == driver.stats.num_blocks


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 12)),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 5),
    st.integers(0, 12),
    st.sampled_from([1, 3, 4, 8]),
    st.integers(16, 40),
)
@settings(max_examples=60, deadline=None)
def test_any_mix_of_requests_gets_what_each_gets_alone(
    work, max_sequences, extra_tokens, block_size, pool_tokens
) -> None:
    context = 60
    blocks = -(-context // block_size) + pool_tokens // block_size
    engine = FakeEngine(
        context_tokens=context,
        max_sequences=max_sequences,
        block_size=block_size,
        max_step_tokens=max_sequences + extra_tokens,
        num_blocks=blocks,
    )
    driver = Driver(engine)
    rng = np.random.default_rng(3)
    pending = [
        (arrival, rng.integers(0, 97, size).tolist(), min(count, context - size))
        for size, count, arrival in work
    ]
    wanted, got, step = {}, {}, 0
    while pending or driver.has_work:
        for item in [item for item in pending if item[0] <= step]:
            pending.remove(item)
            params = SamplingParams(temperature=0.0, max_tokens=item[2])
            request_id = driver.add(Request(prompt_ids=item[1], params=params))
            wanted[request_id], got[request_id] = greedy_answer(item[1], item[2]), []
        for event in driver.step():
            got[event.request_id] += event.token_ids
        step += 1
    assert got == wanted
    assert driver.stats.num_free_blocks == blocks


def test_preemption_loses_and_changes_nothing() -> None:
    engine = FakeEngine(num_blocks=18, context_tokens=64)
    driver = Driver(engine)
    work = [[7, 7, index] for index in range(4)]
    params = SamplingParams(temperature=0.0, max_tokens=40)
    ids = [driver.add(Request(prompt_ids=prompt, params=params)) for prompt in work]
    events = run_all(driver, ids)
    assert driver.stats.preemptions > 0
    assert [tokens_of(events[i]) for i in ids] == [greedy_answer(prompt, 40) for prompt in work]
    assert sum(events[i][-1].timings.preemptions for i in ids) == driver.stats.preemptions


def test_sampled_answers_do_not_depend_on_company_or_chunks() -> None:
    params = [
        SamplingParams(
            temperature=0.9,
            top_k=20,
            top_p=0.9,
            min_p=0.01,
            seed=index,
            max_tokens=12,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            logprobs=3,
        )
        for index in range(6)
    ]
    work = prompts(6)

    def answers(together: bool, **options: int) -> list:
        driver = Driver(FakeEngine(**options))
        result = []
        if together:
            ids = [
                driver.add(Request(prompt_ids=p, params=q))
                for p, q in zip(work, params, strict=True)
            ]
            events = run_all(driver, ids)
            result = [events[i] for i in ids]
        else:
            for prompt, q in zip(work, params, strict=True):
                request_id = driver.add(Request(prompt_ids=prompt, params=q))
                result.append(run_all(driver, [request_id])[request_id])
        return [(tokens_of(e), [lp for x in e for lp in x.logprobs]) for e in result]

    alone = answers(together=False)
    assert answers(together=True) == alone
    assert answers(together=True, max_step_tokens=5, num_blocks=20) == alone
    assert len({tuple(tokens) for tokens, _ in alone}) == 6


def test_the_engine_samples_what_the_host_would() -> None:
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.4},
        {"temperature": 1.2, "top_k": 9, "min_p": 0.02},
        {"temperature": 0.0, "repetition_penalty": 1.5, "presence_penalty": 0.5},
        {"temperature": 2.0, "stop_token_ids": (3, 5, 8)},
    ]
    work = prompts(len(kinds))

    def answers(**more) -> tuple[list[list[int]], int, int]:
        # A small pool, so that rows are put back and their counts set anew in another slot.
        engine = FakeEngine(num_blocks=18, context_tokens=64)
        driver = Driver(engine, eos_token_ids=[1])
        ids = [
            driver.add(
                Request(
                    prompt_ids=prompt,
                    params=SamplingParams(seed=place, max_tokens=30, **kind, **more),
                )
            )
            for place, (prompt, kind) in enumerate(zip(work, kinds, strict=True))
        ]
        events = run_all(driver, ids)
        assert all(events[i][-1].finish_reason in {"stop", "length"} for i in ids)
        return [tokens_of(events[i]) for i in ids], engine.num_sampled, driver.stats.preemptions

    on_host, none, _ = answers(logprobs=0)  # log-probabilities need logits
    on_device, some, preemptions = answers()
    assert on_device == on_host
    assert none == 0
    assert some > 0
    assert preemptions > 0


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"frequency_penalty": 0.5}])
def test_a_sampled_row_that_is_not_finite_fails_alone(params) -> None:
    engine = FakeEngine()
    driver = Driver(engine)
    bad, good = (
        driver.add(Request(prompt_ids=[n], params=SamplingParams(seed=1, max_tokens=9, **params)))
        for n in (1, 2)
    )
    driver.step()
    forward = engine.forward

    def spoil(step) -> None:
        forward(step)
        engine._logits[0] = np.nan

    engine.forward = spoil
    events = driver.step()
    engine.forward = forward
    assert {e.request_id: e.finish_reason for e in events} == {bad: "error", good: None}
    assert "not finite" in next(e.error for e in events if e.error)
    rest = run_all(driver, [good])[good]
    assert len(tokens_of(rest)) == 9 - 2


def test_choices_of_one_request_differ_and_seeds_repeat() -> None:
    driver = Driver(FakeEngine())
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=10)
    ids = [driver.add(Request(prompt_ids=[5], params=params, choice=c)) for c in (0, 1, 0)]
    first, second, again = (tokens_of(e) for e in run_all(driver, ids).values())
    assert first == again != second
    unseeded = SamplingParams(temperature=1.0, max_tokens=10)
    ids = [driver.add(Request(prompt_ids=[5], params=unseeded)) for _ in range(2)]
    events = run_all(driver, ids)
    assert tokens_of(events[ids[0]]) != tokens_of(events[ids[1]])


def test_end_tokens() -> None:
    answer = greedy_answer([8, 9], 9)
    cut = answer[: answer.index(answer[4]) + 1]
    driver = Driver(FakeEngine(), eos_token_ids=[answer[4]])

    def run(**extra):
        params = SamplingParams(temperature=0.0, max_tokens=9, **extra)
        request_id = driver.add(Request(prompt_ids=[8, 9], params=params))
        events = run_all(driver, [request_id])[request_id]
        return tokens_of(events), events[-1].finish_reason

    assert run() == (cut, "stop")
    assert run(ignore_eos=True) == (answer, "length")
    stopped, reason = run(ignore_eos=True, stop_token_ids=(answer[1],))
    assert (stopped, reason) == (answer[: answer.index(answer[1]) + 1], "stop")
    longer, _ = run(min_tokens=7)
    assert len(longer) >= 7
    assert answer[4] not in longer[:7]
    assert longer[: len(cut) - 1] == cut[:-1]


def test_the_context_ends_an_answer() -> None:
    driver = Driver(FakeEngine())
    prompt = prompts(1)[0][:30]
    request_id = driver.add(Request(prompt_ids=prompt, params=SamplingParams(temperature=0.0)))
    events = run_all(driver, [request_id])[request_id]
    assert len(tokens_of(events)) == 64 - len(prompt)
    assert events[-1].finish_reason == "length"


def test_cancel_while_waiting_prefilling_and_decoding() -> None:
    engine = FakeEngine(max_sequences=2, max_step_tokens=8)
    driver = Driver(engine)
    long, short, third = [1] * 30, [2, 3], [4, 5]
    ids = [driver.add(Request(prompt_ids=p, params=GREEDY)) for p in (long, short, third)]
    driver.step()
    assert driver.cancel(ids[0])
    assert driver.cancel(ids[2])
    assert not driver.cancel(ids[2])
    driver.step()
    events = run_all(driver, ids)
    assert not events[ids[0]]
    assert driver.stats.num_free_blocks == 64
    request_id = driver.add(Request(prompt_ids=third, params=GREEDY))
    driver.step()
    driver.step()
    assert driver.cancel(request_id)
    assert not driver.has_work
    assert driver.stats.num_free_blocks == 64


def test_prompt_logits_share_steps_with_others() -> None:
    driver = Driver(FakeEngine())
    prompt = prompts(1, seed=4)[0]
    other = driver.add(Request(prompt_ids=[9, 9], params=GREEDY))
    score = driver.add(Request(prompt_ids=prompt, scores_prompt=True))
    events = run_all(driver, [other, score])
    expected = np.stack([logits_of(prompt[: i + 1], 97) for i in range(len(prompt))])
    np.testing.assert_array_equal(events[score][-1].prompt_logits, expected)
    assert events[score][-1].finish_reason == "scored"
    assert tokens_of(events[other]) == greedy_answer([9, 9], 9)


def test_prompt_logits_survive_being_put_back() -> None:
    driver = Driver(FakeEngine(num_blocks=17, max_sequences=2, max_step_tokens=2))
    prompt = prompts(1, seed=4)[0][:30]
    params = SamplingParams(temperature=0.0, max_tokens=60)
    other = driver.add(Request(prompt_ids=[9] * 4, params=params))
    score = driver.add(Request(prompt_ids=prompt + prompt[:6], scores_prompt=True))
    events = run_all(driver, [other, score])
    assert driver.stats.preemptions > 0
    whole = prompt + prompt[:6]
    expected = np.stack([logits_of(whole[: i + 1], 97) for i in range(len(whole))])
    np.testing.assert_array_equal(events[score][-1].prompt_logits, expected)
    assert tokens_of(events[other]) == greedy_answer([9] * 4, 60)


def test_prompts_share_steps_with_decoding() -> None:
    engine = FakeEngine(max_step_tokens=8)
    driver = Driver(engine)
    first = driver.add(Request(prompt_ids=[1], params=GREEDY))
    driver.step()
    driver.add(Request(prompt_ids=[2] * 20, params=GREEDY))
    driver.step()  # shows what a step of one row takes by itself
    seen = [{event.request_id for event in driver.step()} for _ in range(2)]
    assert seen == [{first}, {first}]
    assert engine.steps[1:] == [(1, 1), (8, 2), (8, 2)]


def test_requests_that_come_together_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]  # a clock that hardly goes, so that only the order counts

    def tick() -> float:
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr("poot_llm._driver.perf_counter", tick)
    driver = Driver(FakeEngine(max_step_tokens=16), shares_prefixes=False)
    first = driver.add(Request(prompt_ids=[5] * 16, params=GREEDY))
    run_all(driver, [first])  # it shows what a prompt costs
    work = [[number] * 16 for number in range(1, 4)]
    ids = [driver.add(Request(prompt_ids=prompt, params=GREEDY)) for prompt in work]
    order, got = [], {}
    late = None
    while driver.has_work:
        events = driver.step()
        order.append([event.request_id for event in events])
        for event in events:
            got.setdefault(event.request_id, []).extend(event.token_ids)
        if len(order) == 4:  # all of them are under way: the next does not stop them
            late = driver.add(Request(prompt_ids=[9] * 16, params=GREEDY))
    assert order[:4] == [[ids[0]], [ids[1]], [ids[2]], ids]
    assert all(set(ids) <= set(each) for each in order[4:11])
    assert late is not None
    wanted = [greedy_answer(prompt, 9) for prompt in [*work, [9] * 16]]
    assert [got[request_id] for request_id in [*ids, late]] == wanted


def test_streams_that_have_just_begun_do_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("poot_llm._driver.perf_counter", lambda: now[0])
    engine = FakeEngine(max_step_tokens=16)
    forward = engine.forward

    def slow(step) -> None:
        now[0] += 0.05 * len(step.token_ids)  # 0.8 s for a prompt
        forward(step)

    monkeypatch.setattr(engine, "forward", slow)
    driver = Driver(engine, shares_prefixes=False)
    run_all(driver, [driver.add(Request(prompt_ids=[5] * 16, params=GREEDY))])
    ids = [driver.add(Request(prompt_ids=[i] * 16, params=GREEDY)) for i in range(1, 4)]
    order = [[event.request_id for event in driver.step()] for _ in range(4)]
    # After the second prompt 0.2 s are left, which is time for a part of the third.
    assert order == [[ids[0]], [ids[1]], [], ids[:2]]
    assert 0 < engine.steps[3][0] < 16


def test_a_fault_ends_its_own_request_alone() -> None:
    engine = FakeEngine()
    driver = Driver(engine)
    ids = [driver.add(Request(prompt_ids=[i], params=GREEDY)) for i in (1, 2, 3)]
    driver.step()
    engine.faults = {1: "token id out of range"}
    events = driver.step()
    engine.faults = {}
    reasons = {event.request_id: (event.finish_reason, event.error) for event in events}
    assert reasons == {0: (None, None), 1: ("error", "token id out of range"), 2: (None, None)}
    rest = run_all(driver, ids)
    assert len(tokens_of(rest[ids[0]])) == 7
    assert not rest[ids[1]]


def test_a_failed_device_refuses_further_work() -> None:
    engine = FakeEngine()
    driver = Driver(engine)
    driver.add(Request(prompt_ids=[1], params=GREEDY))
    engine.fail_next = True
    with pytest.raises(DeviceError, match="on fire"):
        driver.step()
    with pytest.raises(DeviceError, match=r"opened anew.*on fire"):
        driver.add(Request(prompt_ids=[1], params=GREEDY))


def test_bad_prompts_are_refused() -> None:
    driver = Driver(FakeEngine())
    with pytest.raises(RequestError, match="empty"):
        driver.add(Request(prompt_ids=[]))
    with pytest.raises(RequestError, match=r"prompt_ids\[1\] is 97.*0 to 96"):
        driver.add(Request(prompt_ids=[0, 97]))
    with pytest.raises(RequestError, match=r"prompt_ids\[0\] is -1"):
        driver.add(Request(prompt_ids=[-1]))
    with pytest.raises(RequestError, match="whole numbers"):
        driver.add(Request(prompt_ids=[1.5]))
    with pytest.raises(RequestError, match="logit_bias names token 97"):
        driver.add(Request(prompt_ids=[1], params=SamplingParams(logit_bias={97: 1})))
    with pytest.raises(ContextLengthError, match="64 tokens and the context holds 64") as caught:
        driver.add(Request(prompt_ids=[1] * 64))
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (64, 64)
    assert not driver.has_work


def test_impossible_bounds_are_refused() -> None:
    with pytest.raises(SettingsError, match="15 blocks"):
        Driver(FakeEngine(num_blocks=15))
    with pytest.raises(SettingsError, match="max_step_tokens"):
        Driver(FakeEngine(max_step_tokens=3))


def test_logits_that_are_not_finite_end_the_request() -> None:
    engine = FakeEngine()
    driver = Driver(engine)
    engine.logits = lambda: np.full((1, 97), np.nan, np.float32)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, logprobs=1)
        driver.add(Request(prompt_ids=[1], params=params))
        (event,) = driver.step()
        assert event.finish_reason == "error"
        assert "not finite" in event.error
