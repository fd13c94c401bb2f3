"""``/v1/completions``: request, answer and chunks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from poot_serve._wire.common import SamplingFields, Usage

__all__ = [
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionChunkChoice",
    "CompletionLogprobs",
    "CompletionRequest",
]

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of a request; a prompt is text, token ids, or a list of either."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """Log-probabilities of a choice; the first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One continuation; ``token_ids`` come where the model has no tokenizer."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET
    stop_reason: str | UnsetType | None = UNSET
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """Body of an answer."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"


class CompletionChunkChoice(Struct, frozen=True, kw_only=True):
    """What a chunk adds to one continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    token_ids: list[int] | UnsetType = UNSET


class CompletionChunk(Struct, frozen=True, kw_only=True):
    """One event of a stream; the last one may have no choices and the usage."""

    id: str
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
