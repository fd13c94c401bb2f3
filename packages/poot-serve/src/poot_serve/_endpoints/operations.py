"""What operators and clients ask of the server itself: models, health, metrics, versions."""

from __future__ import annotations

import platform
from importlib.metadata import version

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_serve._endpoints.requests import state_of
from poot_serve._errors import JsonResponse, coded
from poot_serve._state import ServerState
from poot_serve._wire.common import ModelList, ModelObject
from poot_serve._wire.operations import Health, Version

__all__ = ["health", "list_models", "metrics", "show_model", "version_of"]


async def health(http: HttpRequest) -> Response:
    """Say whether requests are taken: 200, or 503 with what the engine does meanwhile."""
    state = state_of(http)
    engine = state.engine.state
    if state.is_draining:
        return JsonResponse(Health(status="draining"), status_code=503)
    if engine.ready is not None:
        return JsonResponse(Health(status="ok"))
    if engine.failure:
        return JsonResponse(Health(status="failed", detail=engine.failure), status_code=503)
    progress = None
    if engine.total:
        progress = (engine.done or 0) / engine.total
    body = Health(status="loading", detail=engine.stage, progress=progress)
    return JsonResponse(body, status_code=503, headers={"Retry-After": "1"})


async def list_models(http: HttpRequest) -> Response:
    """List the models served."""
    state = state_of(http)
    return JsonResponse(ModelList(data=[_model(state, name) for name in state.names]))


async def show_model(http: HttpRequest) -> Response:
    """Describe one model."""
    state = state_of(http)
    name = http.path_params["model"]
    if name not in state.names:
        raise coded(
            f"there is no model {name!r}; served: {', '.join(state.names)}",
            "model_not_found",
            status=404,
            field="model",
        )
    return JsonResponse(_model(state, name))


def _model(state: ServerState, name: str) -> ModelObject:
    return ModelObject(id=name, created=state.created, max_model_len=state.context_tokens)


async def metrics(http: HttpRequest) -> Response:
    """Return all series in Prometheus' text format."""
    return Response(state_of(http).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


async def version_of(http: HttpRequest) -> Response:
    """Return the versions of what runs."""
    found = Version(version=version("poot-serve"), python=platform.python_version())
    return JsonResponse(found)
