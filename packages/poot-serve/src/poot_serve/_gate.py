"""What every request passes first: its id, the size of its head, its key and its rate."""

from __future__ import annotations

import hashlib
import logging
import re
from time import perf_counter
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poot_core import PootError
from poot_llm import OverloadedError
from poot_serve._errors import coded, error_response
from poot_serve._keys import ApiKeys
from poot_serve._rate_limit import RateLimiter
from poot_serve._record import Record
from poot_serve._state import ServerState
from poot_serve._tracing import Tracer

__all__ = ["Gate", "OpenPaths"]

access_log = logging.getLogger("poot_serve.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
OpenPaths = frozenset[str]


class Gate:
    """ASGI middleware around the whole application.

    Args:
        app: The application.
        state: Of the server.
        keys: Keys that open it.
        open_paths: Paths that need no key.
        tracer: Records a span a request, or None.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        state: ServerState,
        keys: ApiKeys,
        open_paths: OpenPaths,
        tracer: Tracer | None,
    ) -> None:
        self._app = app
        self._state = state
        self._keys = keys
        self._open_paths = open_paths
        self._tracer = tracer
        limits = state.limits
        self._rates = RateLimiter(limits.rate_limit, limits.rate_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        record = Record(
            request_id=given_id if _REQUEST_ID.fullmatch(given_id) else uuid4().hex,
            method=scope["method"],
            path=scope["path"],
            client=_client_of(scope, headers if self._keys else None),
        )
        scope["poot.record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.request_id
            await send(message)

        span = self._tracer.begin(record, headers) if self._tracer is not None else None
        try:
            try:
                self._check(scope, headers, record)
            except PootError as error:
                record.error = error.message
                response = error_response(error, record.path, record.request_id)
                await response(scope, receive, send_with_id)
                return
            await self._app(scope, receive, send_with_id)
        except BaseException:
            record.outcome = record.outcome or "failed"
            raise
        finally:
            self._note(scope, record)
            if span is not None:
                span.end(record)

    def _check(self, scope: Scope, headers: Headers, record: Record) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in headers.raw)
        size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
        most = self._state.limits.max_header_bytes
        if size > most:
            raise coded(
                f"the head of the request has {size} bytes; at most {most} are read",
                "headers_too_large",
                status=431,
            )
        path = scope["path"]
        if path in self._open_paths:
            return
        is_preflight = scope["method"] == "OPTIONS" and "origin" in headers
        if self._keys and not is_preflight and not self._keys.accepts(_key_of(headers)):
            raise coded(
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                "invalid_api_key",
                status=401,
            )
        wait_s = self._rates.wait_s(record.client)
        if wait_s > 0:
            error = OverloadedError(
                f"this client sent too many requests; try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
            error.code = "rate_limit_exceeded"
            raise error

    def _note(self, scope: Scope, record: Record) -> None:
        duration_s = perf_counter() - record.started_s
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self._state.metrics.count(record, path, duration_s)
        if not access_log.isEnabledFor(logging.INFO):
            return
        facts = {
            "request_id": record.request_id,
            "method": record.method,
            "path": record.path,
            "status": record.status,
            "outcome": record.final_outcome,
            "duration_ms": round(duration_s * 1e3, 3),
            "client": record.client,
            "model": record.model,
            "stream": record.stream or None,
            "prompt_tokens": record.prompt_tokens or None,
            "cached_tokens": record.cached_tokens or None,
            "completion_tokens": record.completion_tokens or None,
            "first_token_ms": None
            if record.first_token_s is None
            else round(record.first_token_s * 1e3, 3),
            "finish_reasons": record.finish_reasons or None,
            "error": record.error,
        }
        given = {name: value for name, value in facts.items() if value is not None}
        access_log.info("request", extra={"facts": given})


def _key_of(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _client_of(scope: Scope, headers: Headers | None) -> str:
    """Return what rate limits count by: the key, hashed, or the address where keys mean nothing."""
    key = "" if headers is None else _key_of(headers)
    if key:
        return "key:" + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:12]
    return scope["client"][0] if scope.get("client") else "local"
