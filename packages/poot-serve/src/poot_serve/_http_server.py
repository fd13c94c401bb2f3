"""The HTTP server: uvicorn with a bound on heads, TLS settings, and signals that drain."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import httptools
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poot_serve._settings import Settings
from poot_serve._state import ServerState

__all__ = ["HttpServer", "http_config"]

_SLOWEST_HEAD_S = 30.0


def http_config(app: Starlette, settings: Settings) -> uvicorn.Config:
    """Return how the application is served."""
    # A head that grows beyond the bound is cut off while it comes; the gate, whose bound is the exact
    # one, answers those just above it.
    most_bytes = 2 * settings.limits.max_header_bytes

    class Protocol(_BoundedProtocol):
        most_head_bytes = most_bytes

    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(settings.limits.drain_timeout_s),
        ssl_certfile=settings.access.ssl_certfile,
        ssl_keyfile=settings.access.ssl_keyfile,
    )


class _BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose head is too large or does not come."""

    most_head_bytes = 1 << 16
    _head_bytes = 0
    _head_timer: Any = None

    def connection_made(self, transport: Any) -> None:
        """Begin the time that a first head may take."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(_SLOWEST_HEAD_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """End that time."""
        self._head_timer.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the path came."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._head_timer.cancel()
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.most_head_bytes:
            raise httptools.HttpParserError("the head is too large")

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class HttpServer(uvicorn.Server):
    """Stops taking requests at the first signal and lets those under way end; stops at the second."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._state.is_draining = True
        # An interrupt ends with its own exit code; a SIGTERM is the ordinary way to stop.
        if sig == signal.SIGINT:
            self._captured_signals.append(sig)
