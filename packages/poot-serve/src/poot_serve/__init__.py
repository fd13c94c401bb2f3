"""The OpenAI-compatible HTTP server."""

from poot_serve._app import make_app
from poot_serve._engine_process import EngineProcess
from poot_serve._state import ServerState

__all__ = ["EngineProcess", "ServerState", "make_app"]
