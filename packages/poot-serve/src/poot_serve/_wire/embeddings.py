"""``/v1/embeddings``, ``/v1/rerank`` and ``/v2/rerank``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

__all__ = [
    "Embedding",
    "EmbeddingRequest",
    "EmbeddingUsage",
    "Embeddings",
    "RerankDocument",
    "RerankMeta",
    "RerankRequest",
    "RerankResult",
    "Reranking",
]

MOST_INPUTS = 2048
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class EmbeddingRequest(Struct, frozen=True, kw_only=True):
    """Texts, or token ids, to embed.

    ``truncate_prompt_tokens`` cuts longer ones to so many tokens, -1 to what the model takes; without it
    they are refused.
    """

    input: (
        str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=1 << 20)]
    )
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    user: str | None = None


class Embedding(Struct, frozen=True, kw_only=True):
    """One vector: numbers, or little-endian float32 in base64."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(Struct, frozen=True, kw_only=True):
    """Tokens that a request took."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Struct, frozen=True, kw_only=True):
    """Body of an answer."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class RerankDocument(Struct, frozen=True, kw_only=True):
    """A document as an object."""

    text: str


class RerankRequest(Struct, frozen=True, kw_only=True):
    """A query and the documents to order by it.

    ``max_tokens_per_doc`` cuts longer pairs of query and document to so many tokens, and to what the
    model takes; without it they are refused.
    """

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MOST_INPUTS)]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class RerankResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One document: its place in the request and how well it answers the query."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankMeta(Struct, frozen=True, kw_only=True):
    """``meta`` of the Cohere shape."""

    api_version: dict[str, Any]
    billed_units: dict[str, Any]


class Reranking(Struct, frozen=True, kw_only=True):
    """Body of an answer, best document first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage
    meta: RerankMeta
