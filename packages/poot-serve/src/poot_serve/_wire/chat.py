"""``/v1/chat/completions``: request, answer and chunks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from poot_serve._wire.common import SamplingFields, Tool, Usage

__all__ = [
    "AnswerMessage",
    "CallDelta",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatDelta",
    "ChatLogprobs",
    "ChatRequest",
    "ChatTool",
    "ContentPart",
    "FunctionCall",
    "FunctionCallDelta",
    "Message",
    "NamedTool",
    "TokenLogprob",
    "ToolCall",
    "ToolChoice",
]


class ContentPart(Struct, frozen=True, kw_only=True):
    """One part of a message's content; only text is read."""

    type: str
    text: str | None = None
    refusal: str | None = None


class GivenFunction(Struct, frozen=True, kw_only=True):
    """The function of a call that stands in the conversation."""

    name: str
    arguments: str | dict[str, Any] | None = None


class GivenCall(Struct, frozen=True, kw_only=True):
    """A call that stands in the conversation."""

    function: GivenFunction
    id: str | None = None
    type: Literal["function"] | None = None


class Message(Struct, frozen=True, kw_only=True):
    """One message of the conversation."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[GivenCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class NamedFunction(Struct, frozen=True, kw_only=True):
    """The function that has to be called."""

    name: str


class NamedTool(Struct, frozen=True, kw_only=True):
    """A tool choice that names a function."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedTool
ChatTool = Tool


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of a request."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    tools: Annotated[list[ChatTool], Meta(max_length=512)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


class FunctionCall(Struct, frozen=True, kw_only=True):
    """What is called, with its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True):
    """One call."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The answer; ``reasoning`` and ``reasoning_content`` are the same text under both names in use."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class TopLogprob(Struct, frozen=True, kw_only=True):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True, kw_only=True):
    """The token chosen at a position, and the most likely ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    """Log-probabilities of a choice, of the raw logits."""

    content: list[TokenLogprob]
    refusal: None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: ChatLogprobs | None = None


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """Body of an answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


class FunctionCallDelta(Struct, frozen=True, kw_only=True):
    """A part of a call: the name comes once, the arguments come in pieces."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CallDelta(Struct, frozen=True, kw_only=True):
    """A part of one call."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    """What a chunk adds to one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    """One event of a stream; the last one may have no choices and the usage."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
