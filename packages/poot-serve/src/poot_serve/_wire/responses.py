"""``/v1/responses``: request and answer; its stream is made of dictionaries, one a kind of event."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from poot_serve._wire.common import StructuredOutputs

__all__ = [
    "InputItem",
    "InputPart",
    "NamedFunctionTool",
    "ResponseObject",
    "ResponseTool",
    "ResponseUsage",
    "ResponsesRequest",
    "TextFormat",
    "TextOptions",
]


class InputPart(Struct, frozen=True, kw_only=True):
    """One part of an item's content; only text is read."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(Struct, frozen=True, kw_only=True):
    """One item of the conversation: a message, a call, what it gave, or reasoning."""

    type: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class ResponseTool(Struct, frozen=True, kw_only=True):
    """A tool; functions are the only kind that is called."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunctionTool(Struct, frozen=True, kw_only=True):
    """A tool choice that names a function."""

    type: Literal["function"]
    name: str


class TextFormat(Struct, frozen=True, kw_only=True):
    """Shape of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(Struct, frozen=True, kw_only=True):
    """``text`` of a request."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(Struct, frozen=True, kw_only=True):
    """``reasoning`` of a request."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(Struct, frozen=True, kw_only=True):
    """Body of a request."""

    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=512)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    """Tokens of the prompt that cost nothing."""

    cached_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    """Tokens of the answer that nobody reads as the answer."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Tokens that a request took."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails

    @classmethod
    def of(cls, prompt: int, completion: int, *, cached: int, reasoning: int) -> ResponseUsage:
        """Return the usage of a request."""
        return cls(
            input_tokens=prompt,
            output_tokens=completion,
            total_tokens=prompt + completion,
            input_tokens_details=InputTokensDetails(cached_tokens=cached),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
        )


class ResponseObject(Struct, frozen=True, kw_only=True):
    """Body of an answer, and what a stream's first and last events hold."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    # Which kind of item stands there is told by its ``type``; a schema cannot say it without tags.
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    object: Literal["response"] = "response"
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any]
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: dict[str, Any]
    store: bool = False
    temperature: float | None = None
    text: dict[str, Any]
    tool_choice: str | NamedFunctionTool = "auto"
    tools: list[ResponseTool]
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"
    background: bool = False
    service_tier: str = "default"
    user: str | None = None
