"""Answers choices as server-sent events or in one body, and ends their work when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from poot_core import DeviceError, PootError, RequestError
from poot_llm import Logprobs
from poot_serve._choice import Choice, Update
from poot_serve._errors import JsonResponse, coded
from poot_serve._parsing.deltas import CallArguments, CallBegin, Content, Reasoning
from poot_serve._record import Record, record_of

__all__ = ["Collected", "CollectedCall", "Dialect", "answer_with", "sse", "unless_left"]

log = logging.getLogger("poot_serve")
T = TypeVar("T")
_ENCODE = msgspec.json.Encoder().encode
_CLIENT_LEFT = 499  # nobody reads it; the log says it


def sse(body: Any, event: str | None = None) -> bytes:
    """Return one server-sent event."""
    if event is None:
        return b"data: " + _ENCODE(body) + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + _ENCODE(body) + b"\n\n"


@dataclass(slots=True)
class CollectedCall:
    """A whole call."""

    name: str
    call_id: str | None
    arguments: str = ""


@dataclass(slots=True)
class Collected:
    """A whole answer."""

    content: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[CollectedCall] = field(default_factory=list[CollectedCall])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[Logprobs] = field(default_factory=list[Logprobs])
    prompt_logprobs: list[Logprobs | None] | None = None
    finish_reason: str = "stop"
    stop: str | None = None

    def add(self, update: Update) -> None:
        """Take what came next."""
        for delta in update.deltas:
            match delta:
                case Content(text):
                    self.content.append(text)
                case Reasoning(text):
                    self.reasoning.append(text)
                case CallBegin(name, call_id):
                    self.calls.append(CollectedCall(name, call_id))
                case CallArguments(text):
                    self.calls[-1].arguments += text
        self.token_ids += update.token_ids
        if update.logprobs:
            self.logprobs += update.logprobs
        if update.prompt_logprobs is not None:
            self.prompt_logprobs = update.prompt_logprobs
        if update.finish_reason is not None:
            self.finish_reason = update.finish_reason

    @property
    def text(self) -> str:
        """All content."""
        return "".join(self.content)


class Dialect(Protocol):
    """Writes an answer the way an API wants it."""

    def begin(self) -> bytes:
        """Return the events that come before any token."""
        ...

    def update(self, index: int, update: Update) -> bytes:
        """Return the events of what came for one choice, often none."""
        ...

    def end(self) -> bytes:
        """Return the events after the last choice ended."""
        ...

    def failed(self, error: PootError) -> bytes:
        """Return the events that end a stream that broke."""
        ...

    def whole(self, found: list[Collected]) -> Any:
        """Return the body of an answer that is no stream."""
        ...


async def answer_with(
    http: HttpRequest,
    choices: list[Choice],
    dialect: Dialect,
    *,
    stream: bool,
    timeout_s: float,
    keep_alive_s: float,
) -> Response:
    """Return the answer; where the client leaves first its sequences are cancelled.

    The first update of a stream is awaited before the answer begins, so that a request that the engine
    refuses still gets its own status.

    Raises:
        PootError: If the answer, or the first update of a stream, cannot be had.
    """
    record = record_of(http)
    record.stream = stream
    updates = _updates(choices)
    try:
        if stream:
            first = await unless_left(http, anext(updates), timeout_s)
            if first is not None:
                return _EventStream(
                    record, choices, updates, first, dialect, timeout_s, keep_alive_s
                )
        else:
            found = await unless_left(http, _collect(choices, updates), timeout_s)
            if found is not None:
                return JsonResponse(dialect.whole(found))
    except BaseException:
        await _abandon(choices, updates)
        raise
    await _abandon(choices, updates)
    record.outcome = "cancelled"
    return Response(status_code=_CLIENT_LEFT)


async def _abandon(choices: list[Choice], updates: AsyncGenerator[Any]) -> None:
    await updates.aclose()
    for choice in choices:
        choice.close()


async def _collect(
    choices: list[Choice], updates: AsyncGenerator[tuple[int, Update]]
) -> list[Collected]:
    found = [Collected() for _ in choices]
    async for index, update in updates:
        found[index].add(update)
    for each, choice in zip(found, choices, strict=True):
        each.stop = choice.stop
    return found


async def _updates(choices: list[Choice]) -> AsyncGenerator[tuple[int, Update]]:
    """Yield (choice, update) of all choices as they come.

    Raises:
        PootError: As the first choice that fails does.
    """
    if len(choices) == 1:  # the usual case needs no task
        (choice,) = choices
        while True:
            update = await choice.next_update()
            yield 0, update
            if update.finish_reason is not None:
                return
    queue: asyncio.Queue[tuple[int, Update] | PootError] = asyncio.Queue()

    async def pump(index: int, choice: Choice) -> None:
        try:
            while True:
                update = await choice.next_update()
                queue.put_nowait((index, update))
                if update.finish_reason is not None:
                    return
        except PootError as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(i, choice)) for i, choice in enumerate(choices)]
    open_choices = len(choices)
    try:
        while open_choices:
            item = await queue.get()
            if isinstance(item, PootError):
                raise item
            open_choices -= item[1].finish_reason is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()


async def unless_left(
    http: HttpRequest, work: Coroutine[Any, Any, T], timeout_s: float
) -> T | None:
    """Return what the work returns; where the client leaves first, cancel it and return None.

    Raises:
        RequestError: With status 504 if the work takes longer than ``timeout_s``.
    """

    async def client_left() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.create_task(client_left())
    try:
        done, _ = await asyncio.wait(
            {working, leaving}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise _time_is_up(timeout_s)
        return await working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _time_is_up(timeout_s: float) -> RequestError:
    return coded(f"the answer took longer than {timeout_s:g} s", "deadline_exceeded", status=504)


class _EventStream(Response):
    """Sends updates as they come; one task watches for the client leaving and for silence."""

    def __init__(
        self,
        record: Record,
        choices: list[Choice],
        updates: AsyncGenerator[tuple[int, Update]],
        first: tuple[int, Update],
        dialect: Dialect,
        timeout_s: float,
        keep_alive_s: float,
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._record = record
        self._choices = choices
        self._updates = updates
        self._first = first
        self._dialect = dialect
        self._timeout_s = timeout_s
        self._keep_alive_s = keep_alive_s
        self._last_s = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        sending = asyncio.create_task(self._send_all(send))
        watching = asyncio.create_task(self._watch(receive, send))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            else:
                self._record.outcome = "cancelled"
        finally:
            for task in (sending, watching):
                task.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
            await _abandon(self._choices, self._updates)

    async def _send_all(self, send: Send) -> None:
        try:
            async with asyncio.timeout(max(0.0, self._timeout_s)):
                await self._send_updates(send)
        except TimeoutError:
            await self._fail(send, _time_is_up(self._timeout_s))
        except PootError as error:
            await self._fail(send, error)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_updates(self, send: Send) -> None:
        dialect = self._dialect
        data = dialect.begin() + dialect.update(*self._first)
        if data:
            await self._write(send, data)
        async for index, update in self._updates:
            data = dialect.update(index, update)
            if data:
                await self._write(send, data)
        await self._write(send, dialect.end())

    async def _write(self, send: Send, data: bytes) -> None:
        self._last_s = monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _fail(self, send: Send, error: PootError) -> None:
        is_late = getattr(error, "code", None) == "deadline_exceeded"
        self._record.outcome = "deadline" if is_late else "failed"
        self._record.error = error.message
        if isinstance(error, DeviceError):
            log.error("request %s: %s", self._record.request_id, error)
        await self._write(send, self._dialect.failed(error))

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Return when the client has left; meanwhile fill silences with comments."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._keep_alive_s):
                    if (await receive())["type"] == "http.disconnect":
                        return
            if monotonic() - self._last_s >= self._keep_alive_s:
                await self._write(send, b": keep-alive\n\n")
