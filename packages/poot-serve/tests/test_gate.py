"""What refusals tell a client: when to come again, and who counts as one client."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from poot_core import RequestError
from poot_llm import OverloadedError
from poot_serve import EngineProcess, ServerState, make_app
from poot_serve._engine_process import Ticket
from poot_serve._frames import EngineMetrics, EngineOptionsFrame, Ready
from poot_serve._keys import ApiKeys
from poot_serve._patience import Patience
from poot_serve._settings import Limits


def statuses(keys: tuple[str, ...], headers: list[dict[str, str]]) -> list[int]:
    """Return the statuses of requests with these headers, of which one client may send two."""
    engine = EngineProcess(EngineOptionsFrame(model="none"))  # it is never started
    limits = Limits(rate_limit=1.0, rate_burst=2)
    state = ServerState(engine=engine, tokenizer=None, model_name="m", limits=limits)
    transport = httpx.ASGITransport(make_app(state, keys=ApiKeys(keys)))

    async def ask() -> list[int]:
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return [(await client.get("/version", headers=each)).status_code for each in headers]

    return asyncio.run(ask())


def test_a_rate_is_counted_by_key_where_keys_count() -> None:
    one, other = {"x-api-key": "one"}, {"x-api-key": "other"}
    assert statuses(("one", "other"), [one, one, one, other, one]) == [200, 200, 429, 200, 429]


def test_a_made_up_key_is_no_way_around_a_rate() -> None:
    made_up = [{"x-api-key": f"key-{number}"} for number in range(4)]
    assert statuses((), made_up) == [200, 200, 429, 429]


def test_waiting_times_follow_the_queue() -> None:
    engine = EngineProcess(
        EngineOptionsFrame(model="none"), max_requests=4, max_waiting_tokens=1000
    )
    engine.state.ready = Ready(
        backend="b", device="d", vocab_size=9, context_tokens=9, max_sequences=4
    )
    tickets = {key: Ticket(engine, key, 300, b"") for key in range(3)}
    engine._tickets.update(tickets)
    engine.state.metrics = EngineMetrics(prompt_tokens=500, step_s=10.0)
    with pytest.raises(OverloadedError) as caught:
        engine.check_room(1, 500)  # 400 too many, at 50 a second
    assert caught.value.retry_after_s == pytest.approx(8.0)
    with pytest.raises(OverloadedError) as caught:
        engine.check_room(3, 0)
    assert caught.value.retry_after_s == 1.0  # nobody has left yet
    engine.check_room(1, 100)
    with pytest.raises(RequestError, match="5 sequences were asked for") as refused:
        engine.check_room(5, 0)  # waiting would not help
    assert (refused.value.status, refused.value.field) == (400, "n")


def test_patience_has_bounds_and_grows_while_nobody_leaves() -> None:
    patience = Patience()
    assert patience.for_sequences(5, now_s=3.0) == 1.0
    for second in (0.0, 4.0, 8.0):
        patience.note_departure(now_s=second)
    assert patience.for_sequences(2, now_s=8.0) == pytest.approx(8.0)
    assert patience.for_sequences(2, now_s=16.0) == pytest.approx(16.0)
    assert patience.for_sequences(1000, now_s=16.0) == 60.0
    assert Patience.for_tokens(10, done=0, seconds=0.0) == 1.0
    assert Patience.for_tokens(10, done=10_000, seconds=1.0) == 1.0
    assert Patience.for_tokens(10**9, done=1, seconds=1.0) == 60.0
