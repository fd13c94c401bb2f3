"""Bodies of requests: read within a bound, then checked against their type."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from poot_core import RequestError
from poot_llm import OverloadedError
from poot_serve._errors import coded

__all__ = ["BodyBudget", "ClientLeftError", "decode_body", "receive_body"]

T = TypeVar("T")
_SLOWEST_BODY_S = 60.0


class ClientLeftError(Exception):
    """The client closed the connection before its request was complete."""


class BodyBudget:
    """Bytes of all bodies that are being read at once.

    Args:
        most_bytes: Of all together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0

    def take(self, size: int) -> None:
        """Count bytes in; a negative size gives them back.

        Raises:
            OverloadedError: If there are too many.
        """
        if size > 0 and self._bytes + size > self._most_bytes:
            raise OverloadedError("too many large requests are being read; try again soon")
        self._bytes += size


async def receive_body(http: HttpRequest, most_bytes: int, budget: BodyBudget) -> bytes:
    """Return the bytes of a body.

    Raises:
        RequestError: With status 413 as soon as it is longer than allowed, 408 where it does not come.
        OverloadedError: If the bodies of all requests together are too large.
        ClientLeftError: If the client left.
    """
    announced = http.headers.get("content-length", "0")
    length = int(announced) if announced.isdecimal() else 0
    body = bytearray()
    try:
        async with asyncio.timeout(_SLOWEST_BODY_S):
            if length <= most_bytes:
                async for part in http.stream():
                    budget.take(len(part))
                    body += part
                    length = len(body)
                    if length > most_bytes:
                        break
    except TimeoutError as error:
        raise coded("the body did not come in time", "body_timeout", status=408) from error
    except ClientDisconnect as error:
        raise ClientLeftError from error
    finally:
        budget.take(-len(body))
    if length > most_bytes:
        raise coded(
            f"the body has {length} bytes or more; at most {most_bytes} are read",
            "body_too_large",
            status=413,
        )
    return bytes(body)


def decode_body(data: bytes, kind: type[T]) -> T:
    """Return the body, checked.

    Raises:
        RequestError: If it is no JSON, or a field has the wrong type or leaves its range.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        field = _field_of(str(error))
        raise RequestError(_message(str(error), field), field=field) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is no JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


def _field_of(message: str) -> str | None:
    """Return the path of a field in a message of msgspec's; a missing field is named by itself."""
    _, found, path = message.partition("`$")
    field = path.rstrip("`").lstrip(".") if found else ""
    if missing := re.search(r"missing required field `([^`]+)`", message):
        field = f"{field}.{missing[1]}" if field else missing[1]
    return field or None


def _message(message: str, field: str | None) -> str:
    text = message.split(" - at `$", 1)[0]
    return f"{field}: {text}" if field and "missing required field" not in text else text
