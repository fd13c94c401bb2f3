"""The OpenAI-compatible HTTP server.

Names are imported when they are first used: the engine process is of this package and needs no HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poot_serve._app import make_app
    from poot_serve._engine_process import EngineProcess
    from poot_serve._state import ServerState

_HOME = {"EngineProcess": "_engine_process", "ServerState": "_state", "make_app": "_app"}

__all__ = ["EngineProcess", "ServerState", "make_app"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
