"""``/v1/messages`` and ``/v1/messages/count_tokens`` in Anthropic's dialect."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = [
    "AnthropicError",
    "AnthropicErrorObject",
    "AnthropicMessage",
    "AnthropicTool",
    "AnthropicUsage",
    "CountRequest",
    "CountedTokens",
    "GivenBlock",
    "GivenMessage",
    "MessagesRequest",
    "TextBlock",
    "ThinkingBlock",
    "ToolUseBlock",
]


class GivenBlock(Struct, frozen=True, kw_only=True):
    """A block of the conversation: text, thinking, tool_use or tool_result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[GivenBlock] | None = None
    is_error: bool | None = None


class GivenMessage(Struct, frozen=True, kw_only=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[GivenBlock]


class AnthropicTool(Struct, frozen=True, kw_only=True):
    """A tool that the model may use."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    type: str | None = None


class AnthropicToolChoice(Struct, frozen=True, kw_only=True):
    """Whether tools may or must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True, kw_only=True):
    """Whether the model reasons before it answers."""

    type: str
    budget_tokens: int | None = None


class CountRequest(Struct, frozen=True, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: Annotated[list[GivenMessage], Meta(min_length=1)]
    model: str | None = None
    system: str | list[GivenBlock] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=512)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """A conversation to continue."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    stream: bool | None = None
    stop_sequences: (
        Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=64)] | None
    ) = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    metadata: dict[str, Any] | None = None


class CountedTokens(Struct, frozen=True, kw_only=True):
    """Tokens of a conversation."""

    input_tokens: int


class TextBlock(Struct, frozen=True, kw_only=True):
    """Text of the answer."""

    text: str
    type: Literal["text"] = "text"


class ThinkingBlock(Struct, frozen=True, kw_only=True):
    """Reasoning of the model; its signature is empty, for nobody checks it."""

    thinking: str
    signature: str = ""
    type: Literal["thinking"] = "thinking"


class ToolUseBlock(Struct, frozen=True, kw_only=True):
    """A tool that the model uses."""

    id: str
    name: str
    input: dict[str, Any]
    type: Literal["tool_use"] = "tool_use"


class AnthropicUsage(Struct, frozen=True, kw_only=True):
    """Tokens that a request took; those read from the cache are not among ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class AnthropicMessage(Struct, frozen=True, kw_only=True):
    """Body of an answer."""

    id: str
    model: str
    # Which kind of block stands there is told by its ``type``; a schema cannot say it without tags.
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    usage: AnthropicUsage
    stop_sequence: str | None = None
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class AnthropicErrorObject(Struct, frozen=True, kw_only=True):
    """Why a request failed."""

    type: str
    message: str
    param: str | UnsetType | None = UNSET
    code: str | UnsetType | None = UNSET


class AnthropicError(Struct, frozen=True, kw_only=True):
    """The body of every answer that reports an error."""

    error: AnthropicErrorObject
    type: Literal["error"] = "error"
    request_id: str | None = None
