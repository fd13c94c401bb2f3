"""Streams without a server: a client that leaves while its request still waits."""

import asyncio

import pytest

from poot_core import RequestError
from poot_serve._event_stream import answer_with
from poot_serve._record import Record


class Silent:
    """A choice that never gets its turn."""

    is_closed = False

    async def next_update(self):
        await asyncio.Event().wait()

    def close(self) -> None:
        self.is_closed = True


class Client:
    """A connection; ``leaves`` says whether it ends before anything is sent."""

    def __init__(self, *, leaves: bool) -> None:
        self.leaves = leaves
        self.scope = {"poot.record": Record(request_id="r", method="POST", path="/", client="c")}

    async def receive(self) -> dict[str, str]:
        await asyncio.sleep(0.01 if self.leaves else 1e3)
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_the_first_update_frees_its_sequences(stream) -> None:
    choices = [Silent(), Silent()]
    client = Client(leaves=True)

    async def ask() -> int:
        answer = await answer_with(
            client, choices, None, stream=stream, timeout_s=60, keep_alive_s=60
        )
        return answer.status_code

    assert asyncio.run(asyncio.wait_for(ask(), 5.0)) == 499
    assert all(choice.is_closed for choice in choices)
    assert client.scope["poot.record"].outcome == "cancelled"


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_takes_too_long_ends_and_frees_its_sequences(stream) -> None:
    choices = [Silent()]

    async def ask() -> None:
        await answer_with(
            Client(leaves=False), choices, None, stream=stream, timeout_s=0.05, keep_alive_s=60
        )

    with pytest.raises(RequestError) as caught:
        asyncio.run(asyncio.wait_for(ask(), 5.0))
    assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
    assert choices[0].is_closed
