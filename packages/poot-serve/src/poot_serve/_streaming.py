"""Runs the choices of one request and answers them whole or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from poot_core import PootError, RequestError
from poot_serve._generation import Generation, Piece
from poot_serve._responses import error_body, sse

__all__ = ["JsonResponse", "gather_choices", "merged_pieces", "stream_events"]

KEEP_ALIVE_S = 15.0
T = TypeVar("T")


class JsonResponse(Response):
    """A JSON answer, encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return msgspec.json.encode(content)


async def merged_pieces(
    generations: list[Generation],
) -> AsyncIterator[tuple[int, Piece] | None]:
    """Yield (choice, piece) of all choices as they come, and None after each silent interval.

    Every choice is cancelled when the iteration ends early.

    Raises:
        PootError: As the first choice that fails does.
    """
    queue: asyncio.Queue[tuple[int, Piece] | PootError] = asyncio.Queue()

    async def pump(place: int, generation: Generation) -> None:
        try:
            async for piece in generation.pieces():
                queue.put_nowait((place, piece))
        except PootError as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(i, g)) for i, g in enumerate(generations)]
    open_choices = len(generations)
    try:
        while open_choices:
            try:
                item = await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
            except TimeoutError:
                yield None
                continue
            if isinstance(item, PootError):
                raise item
            open_choices -= item[1].finish_reason is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()
        for generation in generations:
            generation.close()


async def gather_choices(
    http: HttpRequest, generations: list[Generation]
) -> list[list[Piece]] | None:
    """Return all pieces of every choice, or None where the client left first.

    Raises:
        PootError: As the first choice that fails does.
    """

    async def collect() -> list[list[Piece]]:
        found: list[list[Piece]] = [[] for _ in generations]
        async for item in merged_pieces(generations):
            if item is not None:
                found[item[0]].append(item[1])
        return found

    return await _unless_left(http, collect())


async def _unless_left(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what the work returns; where the client leaves first, cancel it and return None."""

    async def client_left() -> None:
        while True:
            message = await http.receive()
            if message["type"] == "http.disconnect":
                return

    working, leaving = asyncio.create_task(work), asyncio.create_task(client_left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def stream_events(
    http: HttpRequest,
    generations: list[Generation],
    *,
    head: list[Any],
    chunk: Callable[[int, Piece], Any],
    tail: Callable[[], list[Any]],
) -> Response:
    """Return the answer as a stream of events, or an empty one where the client left first.

    The first event is awaited before the answer begins, so that a request that the engine refuses
    still gets its own status.

    Args:
        http: The request.
        generations: The choices.
        head: Bodies sent first.
        chunk: Makes the body of a piece, or None where there is nothing to send.
        tail: Makes the bodies sent after the last piece.

    Raises:
        PootError: If the first piece cannot be had.
    """
    pieces = merged_pieces(generations)

    async def take_first() -> tuple[tuple[int, Piece] | None]:
        return (await anext(pieces),)

    try:
        taken = await _unless_left(http, take_first())
    except RequestError:
        await pieces.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        raise

    if taken is None:
        return Response(status_code=499)
    (first,) = taken

    async def events() -> AsyncIterator[bytes]:
        try:
            for body in head:
                yield sse(msgspec.json.encode(body))
            item: tuple[int, Piece] | None = first
            while True:
                if item is None:
                    yield b": keep-alive\n\n"
                elif (body := chunk(*item)) is not None:
                    yield sse(msgspec.json.encode(body))
                try:
                    item = await anext(pieces)
                except StopAsyncIteration:
                    break
            for body in tail():
                yield sse(msgspec.json.encode(body))
        except PootError as error:
            yield sse(msgspec.json.encode(error_body(error)[1]))
        finally:
            await pieces.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        yield sse(b"[DONE]")

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)
