"""Streams without a server: a client that leaves while its request still waits."""

import asyncio

from poot_serve._streaming import stream_events


class Silent:
    """A choice that never gets its turn."""

    is_closed = False

    async def pieces(self):
        await asyncio.Event().wait()
        yield

    def close(self) -> None:
        self.is_closed = True


class LeavingClient:
    async def receive(self) -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}


def test_a_client_that_leaves_before_the_first_piece_frees_its_sequences() -> None:
    choices = [Silent(), Silent()]

    async def ask() -> int:
        answer = await stream_events(
            LeavingClient(), choices, head=[], chunk=lambda *_: None, tail=list
        )
        return answer.status_code

    assert asyncio.run(asyncio.wait_for(ask(), 5.0)) == 499
    assert all(choice.is_closed for choice in choices)
