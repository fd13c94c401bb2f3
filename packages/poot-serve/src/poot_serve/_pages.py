"""The chat page, the documentation and their static files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poot_serve._docs import docs_page
from poot_serve._errors import JsonResponse
from poot_serve._openapi import openapi_document

__all__ = ["STATIC_FILES", "documentation_routes", "page_routes"]

_FOLDER = Path(__file__).parent / "_static"
STATIC_FILES = frozenset(
    f"/static/{path.relative_to(_FOLDER).as_posix()}"
    for path in _FOLDER.rglob("*")
    if path.is_file()
)
# The page talks to its own server and to nobody else, whatever an answer makes it show.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class _Secured:
    """Adds the security headers to what an application answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_secured)


def page_routes() -> list[Route | Mount]:
    """Return the routes of the chat page."""

    async def index(_: HttpRequest) -> Response:
        return FileResponse(_FOLDER / "index.html", headers=_HEADERS)

    return [Route("/", index), Mount("/static", _Secured(StaticFiles(directory=_FOLDER)))]


def documentation_routes(*, needs_key: bool) -> list[Route]:
    """Return ``/openapi.json`` and ``/docs``."""
    document = openapi_document(needs_key=needs_key)
    page = docs_page(document)

    async def openapi(_: HttpRequest) -> Response:
        return JsonResponse(document)

    async def docs(_: HttpRequest) -> Response:
        return HTMLResponse(page, headers=_HEADERS)

    routes: list[tuple[str, Callable[..., object]]] = [("/openapi.json", openapi), ("/docs", docs)]
    return [Route(path, handler) for path, handler in routes]
