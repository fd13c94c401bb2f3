"""The OpenAPI document, made of the table of operations and the types of their bodies."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import msgspec

from poot_serve._routes import OPERATIONS, Operation

__all__ = ["openapi_document"]

_ERRORS = {
    400: "A field is wrong; param names it",
    401: "The API key is missing or wrong",
    404: "There is no such model",
    408: "The body did not come in time",
    413: "The body is too large",
    429: "There is no room; Retry-After says when to try again",
    431: "The head of the request is too large",
    500: "Something broke",
    503: "The model is loading or the server stops",
    504: "The answer took too long",
}
_WITH_BODY = (400, 401, 404, 408, 413, 429, 431, 500, 503, 504)
_WITHOUT_BODY = (401, 429, 431)


def openapi_document(*, needs_key: bool) -> dict[str, Any]:
    """Return the document.

    Args:
        needs_key: Whether clients must send a key.
    """
    types = {
        kind
        for operation in OPERATIONS
        for kind in (operation.request, operation.answer, operation.event, operation.error)
        if kind is not None and kind is not dict
    }
    ordered = sorted(types, key=lambda kind: (kind.__module__, kind.__name__))
    schemas, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        path = operation.path.replace(":path", "")
        paths.setdefault(path, {})[operation.method.lower()] = _operation(
            operation, schema_of, needs_key=needs_key
        )
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "poot-serve",
            "version": version("poot-serve"),
            "description": "Language models over HTTP, in the dialects of OpenAI and Anthropic.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _operation(
    operation: Operation, schema_of: dict[Any, dict[str, Any]], *, needs_key: bool
) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if operation.answer is not None:
        content = {"application/json": {"schema": schema_of[operation.answer]}}
    if operation.event is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
        if operation.event is not dict:
            content["text/event-stream"]["x-event-schema"] = schema_of[operation.event]
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.handler.__name__ + ("_v2" if "/v2/" in operation.path else ""),
        "tags": [operation.tag],
        "responses": {"200": {"description": "The answer", "content": content}},
    }
    statuses = _WITHOUT_BODY if operation.request is None else _WITH_BODY
    for status in sorted({*statuses, *operation.statuses}):
        error = operation.error
        if operation.path == "/health":
            if status != 503:
                continue
            assert operation.answer is not None, "health has a type"
            error = operation.answer
        found["responses"][str(status)] = {
            "description": _ERRORS[status],
            "content": {"application/json": {"schema": schema_of[error]}},
        }
    parameters = re.findall(r"\{(\w+)", operation.path)
    if parameters:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if operation.request is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[operation.request]}},
        }
    if needs_key and not operation.is_open:
        found["security"] = [{"key": []}]
    return found
