"""Bodies of requests: read leniently (unknown fields and nulls pass), then made into sampling."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest

from poot_core import RequestError
from poot_llm import SamplingParams

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "StreamOptions",
    "read_body",
    "receive_body",
    "sampling_of",
]

MOST_CHOICES = 128
_MOST_BODY_BYTES = 16 << 20  # text of a million tokens, escapes included
_DEFAULT_COMPLETION_TOKENS = 16


class StreamOptions(msgspec.Struct, frozen=True):
    """``stream_options`` of the OpenAI dialect."""

    include_usage: bool | None = None


class _Common(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that both endpoints share; None means not given."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    logit_bias: dict[int, float] | None = None


class ChatRequest(_Common, frozen=True, kw_only=True):
    """Body of ``/v1/chat/completions``."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(_Common, frozen=True, kw_only=True):
    """Body of ``/v1/completions``."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None


Body = TypeVar("Body", ChatRequest, CompletionRequest)


async def receive_body(http: HttpRequest) -> bytes:
    """Return the bytes of a body.

    Raises:
        RequestError: With status 413 as soon as it is longer than any request.
    """
    announced = http.headers.get("content-length", "0")
    length = int(announced) if announced.isdecimal() else 0
    body = bytearray()
    if length <= _MOST_BODY_BYTES:
        async for part in http.stream():
            body += part
            length = len(body)
            if length > _MOST_BODY_BYTES:
                break
    if length > _MOST_BODY_BYTES:
        raise RequestError(
            f"the body has {length} bytes or more; at most {_MOST_BODY_BYTES} are read", status=413
        )
    return bytes(body)


def read_body(data: bytes, kind: type[Body]) -> Body:
    """Return the body, checked.

    Raises:
        RequestError: If it is no JSON or a field has the wrong type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(str(error), field=_field_of(str(error))) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is no JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


def _field_of(message: str) -> str | None:
    _, found, path = message.partition("`$.")
    return path.rstrip("`") if found else None


def sampling_of(
    body: ChatRequest | CompletionRequest, defaults: dict[str, Any]
) -> tuple[SamplingParams, int]:
    """Return how to sample, and how many choices to make.

    Args:
        body: The request.
        defaults: The checkpoint's own sampling defaults, used where the request names none.

    Raises:
        RequestError: If a value is out of range.
    """
    count = 1 if body.n is None else body.n
    if not 1 <= count <= MOST_CHOICES:
        raise RequestError(f"n is {count}; it must be from 1 to {MOST_CHOICES}", field="n")
    values: dict[str, Any] = dict(defaults)
    for name in (
        "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids", "ignore_eos",
        "min_tokens", "max_tokens", "logit_bias",
    ):  # fmt: skip
        given = getattr(body, name)
        if given is not None:
            values[name] = tuple(given) if isinstance(given, list) else given
    if isinstance(body, ChatRequest):
        if body.max_completion_tokens is not None:
            values["max_tokens"] = body.max_completion_tokens
        if body.logprobs:
            values["logprobs"] = body.top_logprobs or 0
    else:
        values.setdefault("max_tokens", _DEFAULT_COMPLETION_TOKENS)
        if body.logprobs is not None:
            values["logprobs"] = body.logprobs
        if body.suffix:
            raise RequestError("suffix is not supported; send the whole prompt", field="suffix")
        if body.echo:
            raise RequestError("echo is not supported yet", field="echo")
    return SamplingParams(**values), count
