"""What crosses a process border does so through msgspec, which a server uses."""

import msgspec
from llm_fakes import FakeEngine

from poot_llm import Driver, Logprobs, Request, SamplingParams, Timings, TokenEvent


def across(value, kind):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


def test_requests_and_events_survive_the_wire() -> None:
    params = SamplingParams(
        temperature=0.5, stop=("a", "b"), logit_bias={3: -1.5}, seed=2**63, logprobs=2, max_tokens=3
    )
    request = Request(prompt_ids=[1, 2, 3], params=params, choice=1)
    assert across(request, Request) == request
    driver = Driver(FakeEngine())
    driver.add(request)
    events = [event for _ in range(3) for event in driver.step()]
    assert [across(event, TokenEvent) for event in events] == events
    assert isinstance(across(events[0], TokenEvent).logprobs[0], Logprobs)
    assert isinstance(across(events[-1], TokenEvent).timings, Timings)
