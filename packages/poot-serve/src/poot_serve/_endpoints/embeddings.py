"""``POST /v1/embeddings``, ``/v1/rerank`` and ``/v2/rerank``."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Coroutine
from typing import Any, TypeVar, cast
from uuid import uuid4

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_core import RequestError
from poot_serve._body import ClientLeftError
from poot_serve._endpoints.requests import read_request, state_of
from poot_serve._errors import JsonResponse, coded
from poot_serve._event_stream import unless_left
from poot_serve._record import record_of
from poot_serve._state import Encoder, ServerState
from poot_serve._wire.embeddings import (
    Embedding,
    EmbeddingRequest,
    Embeddings,
    EmbeddingUsage,
    RerankDocument,
    Reranking,
    RerankMeta,
    RerankRequest,
    RerankResult,
)

__all__ = ["embeddings", "rerank"]

_MOST_INPUTS = 2048
_UNBOUNDED = 2**31 - 1  # what the model takes is less
T = TypeVar("T")


async def embeddings(http: HttpRequest) -> Response:
    """Return a vector for each input."""
    state, record = state_of(http), record_of(http)
    body = await read_request(http, EmbeddingRequest, needs_room=False)
    encoder = _encoder(state, "embeddings")
    if encoder.dimensions is None:
        raise _wrong_model("embeddings")
    dimensions = body.dimensions
    if dimensions is not None and dimensions > encoder.dimensions:
        raise RequestError(
            f"dimensions is {dimensions}; this model's vectors have {encoder.dimensions}",
            field="dimensions",
        )
    cut = body.truncate_prompt_tokens
    work = encoder.embed(_inputs(body), truncate=_UNBOUNDED if cut == -1 else cut)
    vectors, tokens = await _while_there(http, work)
    record.prompt_tokens = tokens
    if dimensions is not None:
        vectors = [_shortened(vector, dimensions) for vector in vectors]
    is_packed = body.encoding_format == "base64"
    data = [
        Embedding(index=index, embedding=_packed(vector) if is_packed else vector)
        for index, vector in enumerate(vectors)
    ]
    usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    return JsonResponse(Embeddings(data=data, model=record.model or "", usage=usage))


async def rerank(http: HttpRequest) -> Response:
    """Order documents by how well they answer a query."""
    state, record = state_of(http), record_of(http)
    body = await read_request(http, RerankRequest, needs_room=False)
    encoder = _encoder(state, "rerank")
    if not encoder.scores_pairs:
        raise _wrong_model("rerank")
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    work = encoder.score(body.query, texts, truncate=body.max_tokens_per_doc)
    scores, tokens = await _while_there(http, work)
    record.prompt_tokens = tokens
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
    results = [
        RerankResult(
            index=index,
            relevance_score=scores[index],
            document=RerankDocument(text=texts[index]) if body.return_documents else None,
        )
        for index in order[: body.top_n]
    ]
    number = http.url.path.split("/")[1].removeprefix("v")
    return JsonResponse(
        Reranking(
            id=f"rerank-{uuid4().hex}",
            model=record.model or "",
            results=results,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
            meta=RerankMeta(api_version={"version": number}, billed_units={"search_units": 1}),
        )
    )


async def _while_there(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns; it ends when the client leaves or its time is up.

    Raises:
        ClientLeftError: If the client left.
        RequestError: With status 504 if it takes too long.
    """
    found = await unless_left(http, work, state_of(http).limits.request_timeout_s)
    if found is None:
        raise ClientLeftError
    return found


def _encoder(state: ServerState, task: str) -> Encoder:
    if state.encoder is None:
        raise _wrong_model(task)
    return state.encoder


def _wrong_model(task: str) -> RequestError:
    return coded(
        f"the model served here does not answer {task}; start the server with an encoder for it",
        "unsupported_task",
        field="model",
    )


def _inputs(body: EmbeddingRequest) -> list[str] | list[list[int]]:
    items = cast(list[Any], [body.input] if isinstance(body.input, str) else body.input)
    if isinstance(items[0], int):
        items = [items]
    if len(items) > _MOST_INPUTS:
        raise RequestError(f"{len(items)} inputs; at most {_MOST_INPUTS}", field="input")
    kind = type(items[0])
    if not all(type(item) is kind and len(item) for item in items):
        raise RequestError(
            "input must be texts or lists of token ids, none of them empty", field="input"
        )
    return items


def _shortened(vector: list[float], dimensions: int) -> list[float]:
    """Return the first numbers of a vector, of unit length again (Matryoshka, arXiv:2205.13147)."""
    head = vector[:dimensions]
    length = math.sqrt(sum(value * value for value in head)) or 1.0
    return [value / length for value in head]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
