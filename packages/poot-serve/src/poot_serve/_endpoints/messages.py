"""``POST /v1/messages`` and ``/v1/messages/count_tokens`` in Anthropic's dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal
from uuid import uuid4

from msgspec import to_builtins
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_core import PootError, RequestError
from poot_llm import SamplingParams
from poot_serve._chat_run import ChatAsk, begin_choices, prepare_chat
from poot_serve._choice import Choice, Update
from poot_serve._conversation import template_messages
from poot_serve._endpoints.requests import read_request, state_of
from poot_serve._errors import JsonResponse, anthropic_error
from poot_serve._event_stream import Collected, answer_with, sse
from poot_serve._parsing.deltas import CallArguments, CallBegin, Content, Delta, Reasoning
from poot_serve._record import record_of
from poot_serve._sampling import params_of
from poot_serve._state import ServerState
from poot_serve._wire.anthropic import (
    AnthropicMessage,
    AnthropicTool,
    AnthropicUsage,
    CountedTokens,
    CountRequest,
    GivenBlock,
    GivenMessage,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from poot_serve._wire.chat import GivenCall, GivenFunction, Message
from poot_serve._wire.common import FunctionSpec, SamplingFields, Tool

__all__ = ["count_tokens", "messages"]

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


async def messages(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state, record = state_of(http), record_of(http)
    body = await read_request(http, MessagesRequest)
    fields = SamplingFields(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
    )
    params = params_of(fields, state.sampling_defaults)
    prepared = await prepare_chat(state, _ask_of(state, body, params))
    choices = begin_choices(
        state,
        record,
        [prepared.prompt_ids],
        prepared.params,
        1,
        readers=lambda: prepared.reader(state),
    )
    answer = _Answer(record.model or "", len(prepared.prompt_ids), choices[0])
    return await answer_with(
        http,
        choices,
        answer,
        stream=bool(body.stream),
        timeout_s=state.limits.request_timeout_s,
        keep_alive_s=state.limits.keep_alive_s,
    )


async def count_tokens(http: HttpRequest) -> Response:
    """Count the tokens of a conversation."""
    state = state_of(http)
    body = await read_request(http, CountRequest, needs_room=False)
    prepared = await prepare_chat(state, _ask_of(state, body, SamplingParams()))
    return JsonResponse(CountedTokens(input_tokens=len(prepared.prompt_ids)))


def _ask_of(state: ServerState, body: CountRequest, params: SamplingParams) -> ChatAsk:
    given: list[Message] = []
    if body.system:
        given.append(Message(role="system", content=_plain(body.system, "system")))
    for place, message in enumerate(body.messages):
        given += _turn(message, f"messages[{place}]")
    tools = tuple(_tool(tool, place) for place, tool in enumerate(body.tools or ()))
    choice = "auto" if tools else "none"
    wish = body.tool_choice
    if wish is not None and wish.type == "tool":
        if not wish.name:
            raise RequestError("tool_choice.name is missing", field="tool_choice.name")
        choice = wish.name
    elif wish is not None:
        choice = {"auto": choice, "any": "required", "none": "none"}[wish.type]
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    return ChatAsk(
        messages=template_messages(given, state.answer_format),
        params=params,
        tools=tools,
        choice=choice,
        parallel=not (wish and wish.disable_parallel_tool_use),
        variables=variables,
    )


def _tool(tool: AnthropicTool, place: int) -> Tool:
    if tool.type not in {None, "custom"}:
        raise RequestError(
            f"tools[{place}] is of type {tool.type!r}; this server runs no tools of its own",
            field=f"tools[{place}].type",
        )
    return Tool(
        function=FunctionSpec(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict,
        )
    )


def _turn(message: GivenMessage, where: str) -> list[Message]:
    """Return the messages of a turn: what tools gave becomes messages of its own, before the text."""
    if isinstance(message.content, str):
        return [Message(role=message.role, content=message.content)]
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[GivenCall] = []
    results: list[Message] = []
    for place, block in enumerate(message.content):
        match block.type:
            case "text":
                texts.append(block.text or "")
            case "thinking":
                thinking.append(block.thinking or "")
            case "redacted_thinking":
                pass
            case "tool_use":
                function = GivenFunction(name=block.name or "", arguments=block.input)
                calls.append(GivenCall(id=block.id, function=function))
            case "tool_result":
                text = _plain(block.content or "", f"{where}.content[{place}]")
                results.append(Message(role="tool", tool_call_id=block.tool_use_id, content=text))
            case _:
                raise _not_text(block, f"{where}.content[{place}]")
    found = results
    if texts or calls or thinking or not results:
        found = [
            *results,
            Message(
                role=message.role,
                content="".join(texts),
                reasoning="".join(thinking) or None,
                tool_calls=calls or None,
            ),
        ]
    return found


def _plain(content: str | Sequence[GivenBlock], where: str) -> str:
    if isinstance(content, str):
        return content
    for place, block in enumerate(content):
        if block.type != "text":
            raise _not_text(block, f"{where}[{place}]")
    return "\n".join(block.text or "" for block in content)


def _not_text(block: GivenBlock, where: str) -> RequestError:
    return RequestError(
        f"{where} is of type {block.type!r}; this model reads text alone", field=f"{where}.type"
    )


class _Answer:
    """Writes one answer: blocks of thinking, text and tool use, in the order they come."""

    def __init__(self, model: str, prompt_tokens: int, choice: Choice) -> None:
        self._id = f"msg_{uuid4().hex}"
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._choice = choice
        self._block: str | None = None  # type of the open block
        self._index = -1
        self._reason: StopReason | None = None

    def begin(self) -> bytes:
        """Return the event that opens the message."""
        opened = AnthropicMessage(
            id=self._id, model=self._model, content=[], stop_reason=None, usage=self._usage()
        )
        return sse({"type": "message_start", "message": to_builtins(opened)}, "message_start")

    def update(self, index: int, update: Update) -> bytes:
        """Return the events of an update."""
        parts = [self._delta(delta) for delta in update.deltas]
        if update.finish_reason is not None:
            self._reason = _stop_reason(update.finish_reason, self._choice.stop)
        return b"".join(parts)

    def end(self) -> bytes:
        """Return the events that close the message."""
        # No client expects a message without any block.
        head = self._open(TextBlock(text="")) if self._index < 0 else b""
        delta = {"stop_reason": self._reason, "stop_sequence": self._choice.stop}
        usage = to_builtins(self._usage())
        return (
            head
            + self._close()
            + sse({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
            + sse({"type": "message_stop"}, "message_stop")
        )

    def failed(self, error: PootError) -> bytes:
        """Return the event of an error."""
        return sse(anthropic_error(error), "error")

    def whole(self, found: list[Collected]) -> AnthropicMessage:
        """Return the body of an answer."""
        (answer,) = found
        blocks: list[Any] = []
        if answer.reasoning:
            blocks.append(ThinkingBlock(thinking="".join(answer.reasoning)))
        if answer.content or not answer.calls:
            blocks.append(TextBlock(text=answer.text))
        for call in answer.calls:
            name, given = call.name, _arguments(call.arguments)
            blocks.append(ToolUseBlock(id=call.call_id or _tool_id(), name=name, input=given))
        return AnthropicMessage(
            id=self._id,
            model=self._model,
            content=to_builtins(blocks),
            stop_reason=_stop_reason(answer.finish_reason, answer.stop),
            stop_sequence=answer.stop,
            usage=self._usage(),
        )

    def _usage(self) -> AnthropicUsage:
        cached = self._choice.cached_tokens
        return AnthropicUsage(
            input_tokens=self._prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=self._choice.completion_tokens,
        )

    def _delta(self, delta: Delta) -> bytes:
        match delta:
            case Content(text):
                lead = b"" if self._block == "text" else self._open(TextBlock(text=""))
                return lead + self._event({"type": "text_delta", "text": text})
            case Reasoning(text):
                is_open = self._block == "thinking"
                lead = b"" if is_open else self._open(ThinkingBlock(thinking=""))
                return lead + self._event({"type": "thinking_delta", "thinking": text})
            case CallBegin(name, call_id):
                return self._open(ToolUseBlock(id=call_id or _tool_id(), name=name, input={}))
            case CallArguments(text):
                return self._event({"type": "input_json_delta", "partial_json": text})

    def _open(self, block: TextBlock | ThinkingBlock | ToolUseBlock) -> bytes:
        closed = self._close()
        self._index += 1
        self._block = block.type
        return closed + sse(
            {
                "type": "content_block_start",
                "index": self._index,
                "content_block": to_builtins(block),
            },
            "content_block_start",
        )

    def _event(self, delta: dict[str, Any]) -> bytes:
        return sse(
            {"type": "content_block_delta", "index": self._index, "delta": delta},
            "content_block_delta",
        )

    def _close(self) -> bytes:
        if self._block is None:
            return b""
        self._block = None
        return sse({"type": "content_block_stop", "index": self._index}, "content_block_stop")


def _stop_reason(finish_reason: str, stop: str | None) -> StopReason:
    if finish_reason == "length":
        return "max_tokens"
    if finish_reason == "tool_calls":
        return "tool_use"
    return "end_turn" if stop is None else "stop_sequence"


def _tool_id() -> str:
    return f"toolu_{uuid4().hex[:24]}"


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments as an object; a call that was cut off has none that can be read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
