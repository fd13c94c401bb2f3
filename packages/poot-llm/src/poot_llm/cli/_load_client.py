"""A light client: one streamed completion over a connection of its own, with the time of each piece.

It speaks just as much HTTP/1.1 as that takes. A client that does more would take the cores that the
server under test runs on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from poot_core import RequestError

__all__ = ["Served", "Target", "send"]

_MOST_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go.

    Attributes:
        url: Base of the API, such as ``http://127.0.0.1:8080/v1``.
        model: Name that requests carry, or None.
        api_key: Sent as a bearer token, or None.
    """

    url: str
    model: str | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise RequestError(
                f"{self.url!r} is no URL of a server; write it as http://127.0.0.1:8080",
                field="url",
            )

    @property
    def path(self) -> str:
        """Path of the endpoint; ``/v1`` is added where the base has no path."""
        return (urlsplit(self.url).path.rstrip("/") or "/v1") + "/completions"


@dataclass(slots=True)
class Served:
    """How one request went.

    Attributes:
        prompt_tokens: Tokens sent.
        start_s: When it was sent (``time.perf_counter``).
        pieces_s: When each piece with text came.
        end_s: When the stream ended.
        output_tokens: As the server counts them, or one a piece where it does not say.
        cached_tokens: Prompt tokens that the server had in its cache, where it says so.
        status: HTTP status, or 0 where there was no connection.
        error: What went wrong, or None.
    """

    prompt_tokens: int
    start_s: float = 0.0
    pieces_s: list[float] = field(default_factory=list[float])
    end_s: float = 0.0
    output_tokens: int = 0
    cached_tokens: int = 0
    status: int = 0
    error: str | None = None


async def send(target: Target, prompt: list[int], num_tokens: int) -> Served:
    """Send one request, read its stream to the end, and return how it went; never raises."""
    served = Served(len(prompt))
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.model is not None:
        body["model"] = target.model
    served.start_s = perf_counter()
    try:
        await _exchange(target, json.dumps(body).encode(), served)
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
        served.error = served.error or f"{type(error).__name__}: {error}"
    served.end_s = perf_counter()
    if served.error is None and served.status != 200:
        served.error = f"status {served.status}"
    if served.error is None and not served.pieces_s:
        served.error = "the answer has no text"
    served.output_tokens = served.output_tokens or len(served.pieces_s)
    return served


async def _exchange(target: Target, body: bytes, served: Served) -> None:
    parts = urlsplit(target.url)
    is_secure = parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    reader, writer = await asyncio.open_connection(
        parts.hostname, port, ssl=is_secure or None, limit=1 << 20
    )
    try:
        key = f"Authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        served.status = int(answer.split(None, 2)[1])
        is_chunked = "transfer-encoding: chunked" in answer.lower()
        pieces = _chunks(reader) if is_chunked else _rest(reader)
        if served.status != 200:
            text = b"".join([piece async for piece in pieces])
            served.error = f"status {served.status}: {text[:300].decode('utf-8', 'replace')}"
            return
        await _read_events(pieces, served)
    finally:
        writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        data = await reader.readexactly(size + 2)
        if not size:
            return
        yield data[:-2]


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(_MOST_HEAD_BYTES):
        yield data


async def _read_events(pieces: AsyncIterator[bytes], served: Served) -> None:
    rest = b""
    async for piece in pieces:
        now_s = perf_counter()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                served.error = str(event["error"])
                return
            usage = event.get("usage")
            if usage:
                served.output_tokens = usage.get("completion_tokens", 0)
                details = usage.get("prompt_tokens_details") or {}
                served.cached_tokens = details.get("cached_tokens") or 0
            choices = event.get("choices")
            if choices and (choices[0].get("text") or choices[0].get("token_ids")):
                served.pieces_s.append(now_s)
