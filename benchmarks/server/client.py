"""A light client: one connection a request, events counted as they come, JSON read once at the end.

On few cores the client takes its time from the server that it measures, so it does as little as it can.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httptools

__all__ = ["Answer", "completion", "post", "together"]

HOST = "127.0.0.1"


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one request gave.

    Attributes:
        started_s: Before the connection was opened (``perf_counter``).
        ended_s: When the last byte had come.
        status: Of HTTP; 0 where the connection broke before there was one.
        arrivals_s: When each event with text came; several may come at once.
        usage: What the server says it counted.
        body: Of an answer that is no stream, or of an error.
    """

    started_s: float
    ended_s: float = 0.0
    status: int = 0
    arrivals_s: list[float] = field(default_factory=list[float])
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    body: bytes = b""

    @property
    def first_token_s(self) -> float:
        """Seconds from the start to the first text."""
        return self.arrivals_s[0] - self.started_s

    @property
    def tokens(self) -> int:
        """Generated tokens, as the server counted them."""
        return self.usage.get("completion_tokens", 0)


class _Exchange(asyncio.Protocol):
    """Sends one request and reads its answer."""

    def __init__(self, request: bytes) -> None:
        self.answer = Answer(started_s=perf_counter())
        self.done = asyncio.get_running_loop().create_future()
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._pending = b""
        self._is_stream = False
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_body(self, data: bytes) -> None:
        if not self._is_stream:
            self.answer.body += data
            return
        now_s = perf_counter()
        *events, self._pending = (self._pending + data).split(b"\n\n")
        for event in events:
            if b'"text":"' in event and b'"text":""' not in event:
                self.answer.arrivals_s.append(now_s)
            if b'"usage":{' in event:
                self.answer.usage = json.loads(event.removeprefix(b"data: "))["usage"]

    def on_message_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()
        self._end()
        self._transport.close()

    def _end(self) -> None:
        if not self.done.done():
            self.answer.ended_s = perf_counter()
            self.done.set_result(None)


def completion(prompt: Sequence[int], max_tokens: int, *, stream: bool = True) -> dict[str, Any]:
    """Return the body of a greedy completion of so many tokens, whatever they are."""
    body: dict[str, Any] = {
        "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True,
    }  # fmt: skip
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def request_bytes(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    """Return an HTTP request, the connection of which ends with its answer."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data


async def post(port: int, body: dict[str, Any]) -> Answer:
    """Return what one request gave; a connection that is refused is an answer of status 0."""
    exchange = _Exchange(request_bytes(body))
    try:
        await asyncio.get_running_loop().create_connection(lambda: exchange, HOST, port)
    except OSError:
        exchange.answer.ended_s = perf_counter()
        return exchange.answer
    await exchange.done
    return exchange.answer


async def together(port: int, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Return what requests gave that were sent at once.

    Raises:
        ValueError: If one was not answered, or with fewer tokens than it asked for.
    """
    answers = await asyncio.gather(*(post(port, body) for body in bodies))
    for body, answer in zip(bodies, answers, strict=True):
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.body[:300]!r}")
        if body.get("stream") and answer.tokens != body["max_tokens"]:
            raise ValueError(f"{answer.tokens} tokens; {body['max_tokens']} were asked for")
    return answers
