"""The ASGI application: routes, errors, and the life of the engine process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from poot_core import PootError, RequestError
from poot_serve._body import ClientLeftError
from poot_serve._errors import coded, error_response
from poot_serve._gate import Gate
from poot_serve._keys import ApiKeys
from poot_serve._pages import STATIC_FILES, documentation_routes, page_routes
from poot_serve._record import record_of
from poot_serve._routes import OPERATIONS
from poot_serve._state import ServerState
from poot_serve._tracing import Tracer

__all__ = ["make_app"]

log = logging.getLogger("poot_serve")


def make_app(
    state: ServerState,
    *,
    keys: ApiKeys | None = None,
    allow_origins: tuple[str, ...] = (),
    has_page: bool = True,
    tracer: Tracer | None = None,
) -> Starlette:
    """Return the application; the engine process lives as long as it runs.

    Args:
        state: Of the server.
        keys: Keys that open it; none opens it to everybody.
        allow_origins: Origins that browsers may call from.
        has_page: Serve the chat page.
        tracer: Records a span a request.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        task = asyncio.create_task(state.engine.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            if tracer is not None:
                await asyncio.to_thread(tracer.close)

    keys = keys or ApiKeys(())
    open_paths = frozenset(each.path for each in OPERATIONS if each.is_open)
    routes: list[BaseRoute] = [
        Route(each.path, each.handler, methods=[each.method]) for each in OPERATIONS
    ]
    routes += documentation_routes(needs_key=bool(keys))
    if has_page:
        routes += page_routes()
        open_paths |= STATIC_FILES | {"/"}
    middleware = [Middleware(Gate, state=state, keys=keys, open_paths=open_paths, tracer=tracer)]
    if allow_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=allow_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            PootError: _poot_error,
            HTTPException: _http_error,
            ClientLeftError: _client_left,
            Exception: _unexpected,
        },
        lifespan=lifespan,
    )
    app.state.poot = state
    return app


def _answer_error(http: HttpRequest, error: PootError) -> Response:
    record = record_of(http)
    record.error = error.message
    if getattr(error, "code", None) == "deadline_exceeded":
        record.outcome = "deadline"
    return error_response(error, http.url.path, record.request_id)


async def _poot_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, PootError)
    if not isinstance(error, RequestError):
        log.error("request %s: %s", record_of(http).request_id, error)
    return _answer_error(http, error)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{http.method} {http.url.path}: {error.detail}"
    found = coded(text, error.detail.lower().replace(" ", "_"), status=error.status_code)
    response = _answer_error(http, found)
    response.headers.update(error.headers or {})
    return response


async def _client_left(http: HttpRequest, _: Exception) -> Response:
    record_of(http).outcome = "cancelled"
    return Response(status_code=499)


async def _unexpected(http: HttpRequest, error: Exception) -> Response:
    # The traceback goes to the log; what broke inside is none of the client's business.
    text = f"internal error ({type(error).__name__}); the log says more"
    return _answer_error(http, PootError(text))
