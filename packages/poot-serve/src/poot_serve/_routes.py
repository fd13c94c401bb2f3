"""Every operation of the API, once: path, handler, types, and what it is for.

The router and the OpenAPI document are both made of this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_serve._endpoints.chat import chat_completions
from poot_serve._endpoints.completions import completions
from poot_serve._endpoints.embeddings import embeddings, rerank
from poot_serve._endpoints.messages import count_tokens, messages
from poot_serve._endpoints.operations import (
    health,
    list_models,
    metrics,
    show_model,
    version_of,
)
from poot_serve._endpoints.responses import responses
from poot_serve._endpoints.tokens import apply_template, detokenize, tokenize, tokenizer_info
from poot_serve._wire import anthropic, chat, common, operations, tokens
from poot_serve._wire import completions as completion_wire
from poot_serve._wire import embeddings as embedding_wire
from poot_serve._wire import responses as response_wire

__all__ = ["OPERATIONS", "Operation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    Attributes:
        path: With the router's parameters.
        handler: Answers it.
        tag: Heading in the documentation.
        summary: What it does.
        answer: Type of the body, or None for plain text.
        request: Type of the body that it takes, or None for a GET.
        event: Type of an event where ``stream`` is true; ``dict`` where events differ.
        error: Type of the body of errors.
        is_open: Whether it needs no key.
        statuses: Further statuses that it may answer with.
    """

    path: str
    handler: Callable[[HttpRequest], Awaitable[Response]]
    tag: str
    summary: str
    answer: type[Struct] | None
    request: type[Struct] | None = None
    event: type | None = None
    error: type[Struct] = common.ErrorBody
    is_open: bool = False
    statuses: tuple[int, ...] = ()

    @property
    def method(self) -> str:
        """HTTP method."""
        return "GET" if self.request is None else "POST"


OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        handler=chat_completions,
        tag="Generation",
        summary="Answer a conversation",
        request=chat.ChatRequest,
        answer=chat.ChatCompletion,
        event=chat.ChatChunk,
    ),
    Operation(
        path="/v1/completions",
        handler=completions,
        tag="Generation",
        summary="Continue one or several prompts",
        request=completion_wire.CompletionRequest,
        answer=completion_wire.Completion,
        event=completion_wire.CompletionChunk,
    ),
    Operation(
        path="/v1/responses",
        handler=responses,
        tag="Generation",
        summary="Answer a conversation of items",
        request=response_wire.ResponsesRequest,
        answer=response_wire.ResponseObject,
        event=dict,
    ),
    Operation(
        path="/v1/messages",
        handler=messages,
        tag="Generation",
        summary="Answer a conversation in Anthropic's dialect",
        request=anthropic.MessagesRequest,
        answer=anthropic.AnthropicMessage,
        event=dict,
        error=anthropic.AnthropicError,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        handler=count_tokens,
        tag="Tokens",
        summary="Count the tokens of a conversation",
        request=anthropic.CountRequest,
        answer=anthropic.CountedTokens,
        error=anthropic.AnthropicError,
    ),
    Operation(
        path="/v1/embeddings",
        handler=embeddings,
        tag="Encoders",
        summary="Embed texts",
        request=embedding_wire.EmbeddingRequest,
        answer=embedding_wire.Embeddings,
    ),
    Operation(
        path="/v1/rerank",
        handler=rerank,
        tag="Encoders",
        summary="Order documents by a query",
        request=embedding_wire.RerankRequest,
        answer=embedding_wire.Reranking,
    ),
    Operation(
        path="/v2/rerank",
        handler=rerank,
        tag="Encoders",
        summary="Order documents by a query",
        request=embedding_wire.RerankRequest,
        answer=embedding_wire.Reranking,
    ),
    Operation(
        path="/tokenize",
        handler=tokenize,
        tag="Tokens",
        summary="Turn a text or a conversation into tokens",
        request=tokens.TokenizeRequest,
        answer=tokens.Tokenized,
    ),
    Operation(
        path="/detokenize",
        handler=detokenize,
        tag="Tokens",
        summary="Turn tokens into text",
        request=tokens.DetokenizeRequest,
        answer=tokens.Detokenized,
    ),
    Operation(
        path="/tokenizer_info",
        handler=tokenizer_info,
        tag="Tokens",
        summary="Special tokens and chat template",
        answer=tokens.TokenizerInfo,
        statuses=(400,),
    ),
    Operation(
        path="/apply-template",
        handler=apply_template,
        tag="Tokens",
        summary="Write a conversation as the model reads it",
        request=tokens.TemplateRequest,
        answer=tokens.RenderedTemplate,
    ),
    Operation(
        path="/v1/models",
        handler=list_models,
        tag="Server",
        summary="List the models served",
        answer=common.ModelList,
    ),
    Operation(
        path="/v1/models/{model:path}",
        handler=show_model,
        tag="Server",
        summary="Describe one model",
        answer=common.ModelObject,
        statuses=(404,),
    ),
    Operation(
        path="/health",
        handler=health,
        tag="Server",
        summary="Say whether requests are taken",
        answer=operations.Health,
        is_open=True,
        statuses=(503,),
    ),
    Operation(
        path="/version",
        handler=version_of,
        tag="Server",
        summary="Versions of what runs",
        answer=operations.Version,
    ),
    Operation(
        path="/metrics",
        handler=metrics,
        tag="Server",
        summary="Series in Prometheus' text format",
        answer=None,
    ),
)
