"""What is known of one HTTP request while it is served: for logs, metrics and traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

from starlette.requests import Request as HttpRequest

__all__ = ["Outcome", "Record", "record_of"]

Outcome = Literal["ok", "refused", "overloaded", "failed", "cancelled", "deadline"]


@dataclass(slots=True, kw_only=True)
class Record:
    """Facts of a request; no text of it.

    Attributes:
        request_id: The client's own or a new one.
        method: HTTP method.
        path: Path without the query.
        client: Key or address that rate limits count by, hashed where it is a key.
        started_s: Arrival, of ``perf_counter``.
        status: HTTP status, 0 until one is sent.
        outcome: How it ended, where that is not told by the status.
        model: Name that was asked for.
        stream: Whether the answer is a stream.
        prompt_tokens: Tokens of all prompts.
        cached_tokens: Those that the prefix cache held.
        completion_tokens: Tokens generated.
        first_token_s: From arrival to the first token.
        queue_s: The longest time that a sequence of it waited in the engine.
        finish_reasons: One a choice.
        error: Message of the error that it ended with.
    """

    request_id: str
    method: str
    path: str
    client: str
    started_s: float = field(default_factory=perf_counter)
    status: int = 0
    outcome: Outcome | None = None
    model: str | None = None
    stream: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    queue_s: float | None = None
    finish_reasons: list[str] = field(default_factory=list[str])
    error: str | None = None

    @property
    def final_outcome(self) -> Outcome:
        """How it ended."""
        if self.outcome is not None:
            return self.outcome
        if self.status in {429, 503}:
            return "overloaded"
        if self.status >= 500:
            return "failed"
        return "refused" if self.status >= 400 else "ok"


def record_of(http: HttpRequest) -> Record:
    """Return the record of a request; the gate made it."""
    return http.scope["poot.record"]
