"""What the endpoints that generate do first: refuse early, read the body, note the model."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct
from starlette.requests import Request as HttpRequest

from poot_core import RequestError
from poot_serve._body import decode_body, receive_body
from poot_serve._record import record_of
from poot_serve._state import ServerState

__all__ = ["check_count", "read_request", "state_of"]

T = TypeVar("T", bound=Struct)


def state_of(http: HttpRequest) -> ServerState:
    """Return the server's state."""
    return http.app.state.poot


async def read_request(http: HttpRequest, kind: type[T], *, needs_room: bool = True) -> T:
    """Return the body.

    Args:
        http: The request.
        kind: Type of the body.
        needs_room: Refuse before anything is read where the model does not generate or the engine
            has no room.

    Raises:
        OverloadedError: If there is no room.
        RequestError: If the body is malformed or names a model that is not served.
    """
    state = state_of(http)
    if needs_room:
        state.check_generates()
        state.check_room()
    data = await receive_body(http, state.limits.max_body_bytes, state.bodies)
    body = decode_body(data, kind)
    state.unknown_fields.note(data, kind)
    record_of(http).model = state.check_model(getattr(body, "model", None))
    return body


def check_count(state: ServerState, given: int | None) -> int:
    """Return how many answers are asked for.

    Raises:
        RequestError: If they are more than one request may have.
    """
    count = 1 if given is None else given
    most = state.limits.max_choices
    if count > most:
        raise RequestError(f"n is {count}; it must be at most {most}", field="n")
    return count
