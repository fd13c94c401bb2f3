"""The ASGI application: routes, errors, and the life of the engine process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from poot_core import PootError, RequestError
from poot_serve._chat import chat_completions
from poot_serve._completions import completions
from poot_serve._responses import error_body
from poot_serve._state import ServerState
from poot_serve._streaming import JsonResponse

__all__ = ["make_app"]

RETRY_AFTER_S = 1


def make_app(state: ServerState) -> Starlette:
    """Return the application; the engine process lives as long as it runs."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        task = asyncio.create_task(state.engine.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", show_model),
            Route("/health", health),
        ],
        exception_handlers={
            PootError: _poot_error,
            HTTPException: _http_error,
            Exception: _unexpected,
        },
        lifespan=lifespan,
    )
    app.state.poot = state
    return app


async def health(http: HttpRequest) -> Response:
    """Say whether requests are taken: 200, or 503 with what the engine does meanwhile."""
    engine = http.app.state.poot.engine.state
    if engine.ready is not None:
        return JsonResponse({"status": "ok"})
    body = {
        "status": "failed" if engine.failure else "loading",
        "detail": engine.failure or engine.stage,
    }
    return JsonResponse(body, status_code=503)


async def list_models(http: HttpRequest) -> Response:
    """List the models served."""
    state: ServerState = http.app.state.poot
    names = state.served_names or (state.model_name,)
    return JsonResponse({"object": "list", "data": [_model(state, name) for name in names]})


async def show_model(http: HttpRequest) -> Response:
    """Describe one model."""
    state: ServerState = http.app.state.poot
    name = http.path_params["name"]
    if name not in (state.served_names or (state.model_name,)):
        raise RequestError(f"there is no model {name!r}", status=404, field="model")
    return JsonResponse(_model(state, name))


def _model(state: ServerState, name: str) -> dict[str, Any]:
    ready = state.engine.state.ready
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "poot",
        "max_model_len": None if ready is None else ready.context_tokens,
    }


def _answer_error(error: PootError) -> Response:
    status, body = error_body(error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in {429, 503} else None
    return JsonResponse(body, status_code=status, headers=headers)


async def _poot_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, PootError)
    return _answer_error(error)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{http.method} {http.url.path}: {error.detail}"
    return _answer_error(RequestError(text, status=error.status_code))


async def _unexpected(_: HttpRequest, error: Exception) -> Response:
    # The traceback goes to the log; what broke inside is none of the client's business.
    return _answer_error(PootError(f"internal error ({type(error).__name__}); the log says more"))
