"""Errors as clients see them: status, headers and body, in the dialect of the path."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from poot_core import PootError, RequestError
from poot_serve._wire.anthropic import AnthropicError, AnthropicErrorObject
from poot_serve._wire.common import ErrorBody, ErrorObject

__all__ = [
    "JsonResponse",
    "anthropic_error",
    "coded",
    "error_response",
    "openai_error",
    "status_of",
]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_RETRY_AFTER_S = 1.0


class JsonResponse(Response):
    """A JSON answer, encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the body."""
        return msgspec.json.encode(content)


def coded(message: str, code: str, *, status: int = 400, field: str | None = None) -> RequestError:
    """Return a refusal with a word that programs can test."""
    error = RequestError(message, status=status, field=field)
    error.code = code
    return error


def status_of(error: PootError) -> int:
    """Return the status that reports an error."""
    return error.status if isinstance(error, RequestError) else 500


def openai_error(error: PootError) -> ErrorBody:
    """Return the body that reports an error in the OpenAI dialect."""
    status = status_of(error)
    field, code = (error.field, error.code) if isinstance(error, RequestError) else (None, None)
    default = "invalid_request_error" if status < 500 else "server_error"
    kind = _TYPES.get(status, default)
    return ErrorBody(error=ErrorObject(message=error.message, type=kind, param=field, code=code))


def anthropic_error(error: PootError, request_id: str | None = None) -> AnthropicError:
    """Return the body that reports an error in the Anthropic dialect."""
    status = status_of(error)
    default = "invalid_request_error" if status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(status, default)
    if isinstance(error, RequestError):
        found = AnthropicErrorObject(
            type=kind, message=error.message, param=error.field, code=error.code
        )
    else:
        found = AnthropicErrorObject(type=kind, message=error.message)
    return AnthropicError(error=found, request_id=request_id)


def error_response(error: PootError, path: str, request_id: str | None = None) -> Response:
    """Return the answer that reports an error."""
    status = status_of(error)
    headers: dict[str, str] = {}
    if status in {429, 503}:
        wait_s = getattr(error, "retry_after_s", None) or _RETRY_AFTER_S
        headers["Retry-After"] = str(max(1, round(wait_s)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if path.startswith("/v1/messages"):
        return JsonResponse(anthropic_error(error, request_id), status, headers)
    return JsonResponse(openai_error(error), status, headers)
