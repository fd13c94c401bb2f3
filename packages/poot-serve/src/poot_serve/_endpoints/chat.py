"""``POST /v1/chat/completions``."""

from __future__ import annotations

from time import time
from typing import Any
from uuid import uuid4

from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_core import PootError
from poot_serve._chat_run import ChatAsk, begin_choices, prepare_chat
from poot_serve._choice import Choice, Update
from poot_serve._conversation import template_messages
from poot_serve._endpoints.requests import check_count, read_request, state_of
from poot_serve._errors import openai_error
from poot_serve._event_stream import Collected, answer_with, sse
from poot_serve._logprobs import chat_logprobs, prompt_logprobs
from poot_serve._parsing.deltas import CallArguments, CallBegin, Content, Reasoning
from poot_serve._record import record_of
from poot_serve._sampling import constraint_of, params_of
from poot_serve._state import ServerState
from poot_serve._wire.chat import (
    AnswerMessage,
    CallDelta,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatRequest,
    FunctionCall,
    FunctionCallDelta,
    NamedTool,
    ToolCall,
)
from poot_serve._wire.common import Usage

__all__ = ["ask_of", "chat_completions", "new_call_id", "template_variables"]

_EMPTY = ChatDelta()


async def chat_completions(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state, record = state_of(http), record_of(http)
    body = await read_request(http, ChatRequest)
    ask = ask_of(state, body)
    prepared = await prepare_chat(state, ask)
    choices = begin_choices(
        state,
        record,
        [prepared.prompt_ids],
        prepared.params,
        ask.count,
        readers=lambda: prepared.reader(state),
        cache_salt=ask.cache_salt,
        priority=ask.priority,
    )
    answer = _ChatAnswer(state, body, record.model or "", len(prepared.prompt_ids), choices)
    return await answer_with(
        http,
        choices,
        answer,
        stream=bool(body.stream),
        timeout_s=state.limits.request_timeout_s,
        keep_alive_s=state.limits.keep_alive_s,
    )


def ask_of(state: ServerState, body: ChatRequest) -> ChatAsk:
    """Return what a request asks for.

    Raises:
        RequestError: If a field is out of range or contradicts another.
    """
    tools = tuple(body.tools or ())
    choice = body.tool_choice or "auto"
    if isinstance(choice, NamedTool):
        choice = choice.function.name
    elif choice == "auto" and not tools:
        choice = "none"
    return ChatAsk(
        messages=template_messages(body.messages, state.answer_format),
        params=params_of(
            body,
            state.sampling_defaults,
            max_tokens=body.max_completion_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        ),
        count=check_count(state, body.n),
        tools=tools,
        choice=choice,
        parallel=body.parallel_tool_calls is not False,
        constraint=constraint_of(body),
        variables=template_variables(body.chat_template_kwargs, body.reasoning_effort),
        adds_prompt=body.add_generation_prompt is not False,
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
    )


def template_variables(given: dict[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """Return the names that a template may read, with the wish for reasoning under those in use."""
    found: dict[str, Any] = {}
    if effort is not None:
        found["reasoning_effort"] = effort
        found["enable_thinking"] = effort != "none"
    # The conversation itself is not for a client to put in by another name.
    own = {"messages", "tools", "add_generation_prompt", "documents"}
    found.update({name: value for name, value in (given or {}).items() if name not in own})
    return found


def new_call_id(state: ServerState) -> str:
    """Return an id for a call."""
    return uuid4().hex[:9] if state.answer_format.short_call_ids else f"call_{uuid4().hex[:24]}"


class _ChatAnswer:
    """Writes one answer in OpenAI's dialect."""

    def __init__(
        self,
        state: ServerState,
        body: ChatRequest,
        model: str,
        prompt_tokens: int,
        choices: list[Choice],
    ) -> None:
        self._state = state
        self._prompt_tokens = prompt_tokens
        self._choices = choices
        options = body.stream_options
        self._adds_usage = bool(options and options.include_usage)
        self._adds_running_usage = bool(options and options.continuous_usage_stats)
        self._shows_reasoning = body.include_reasoning is not False
        self._shows_prompt = body.prompt_logprobs is not None
        self._calls = [0] * len(choices)
        self._frame: dict[str, Any] = {
            "id": f"chatcmpl-{uuid4().hex}", "created": int(time()), "model": model,
        }  # fmt: skip

    def begin(self) -> bytes:
        """Return the chunks that say who speaks."""
        delta = ChatDelta(role="assistant", content="")
        return b"".join(
            self._chunk(ChatChunkChoice(index=index, delta=delta))
            for index in range(len(self._choices))
        )

    def update(self, index: int, update: Update) -> bytes:
        """Return the chunks of an update."""
        deltas = [each for delta in update.deltas for each in self._delta(index, delta)]
        logprobs = (
            chat_logprobs(update.logprobs, self._state.tokenizer) if update.logprobs else None
        )
        if not deltas and (logprobs is not None or update.finish_reason is not None):
            deltas = [_EMPTY]
        parts: list[bytes] = []
        for place, delta in enumerate(deltas):
            is_last = place == len(deltas) - 1
            choice = ChatChunkChoice(
                index=index,
                delta=delta,
                logprobs=logprobs if is_last else None,
                finish_reason=update.finish_reason if is_last else None,  # pyright: ignore[reportArgumentType]
            )
            parts.append(self._chunk(choice))
        return b"".join(parts)

    def end(self) -> bytes:
        """Return the usage where asked for, and the last event."""
        usage = b""
        if self._adds_usage:
            usage = sse(ChatChunk(**self._frame, choices=[], usage=self._usage()))
        return usage + b"data: [DONE]\n\n"

    def failed(self, error: PootError) -> bytes:
        """Return the events of an error."""
        return sse(openai_error(error)) + b"data: [DONE]\n\n"

    def whole(self, found: list[Collected]) -> ChatCompletion:
        """Return the body of an answer."""
        prompt = found[0].prompt_logprobs
        return ChatCompletion(
            **self._frame,
            choices=[self._choice(index, each) for index, each in enumerate(found)],
            usage=self._usage(),
            prompt_logprobs=prompt_logprobs(prompt, self._state.tokenizer)
            if self._shows_prompt and prompt is not None
            else UNSET,
        )

    def _usage(self) -> Usage:
        return Usage.of(
            self._prompt_tokens,
            sum(choice.completion_tokens for choice in self._choices),
            cached=self._choices[0].cached_tokens,
            reasoning=sum(choice.reasoning_tokens for choice in self._choices),
        )

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        usage: Usage | UnsetType | None = UNSET
        if self._adds_running_usage:
            usage = self._usage()
        elif self._adds_usage:
            usage = None
        return sse(ChatChunk(**self._frame, choices=[choice], usage=usage))

    def _delta(self, index: int, delta: object) -> list[ChatDelta]:
        match delta:
            case Content(text):
                return [ChatDelta(content=text)]
            case Reasoning(text) if self._shows_reasoning:
                return [ChatDelta(reasoning=text, reasoning_content=text)]
            case CallBegin(name, call_id):
                place = self._calls[index]
                self._calls[index] += 1
                call = CallDelta(
                    index=place,
                    id=call_id or new_call_id(self._state),
                    type="function",
                    function=FunctionCallDelta(name=name, arguments=""),
                )
                return [ChatDelta(tool_calls=[call])]
            case CallArguments(text):
                call = CallDelta(
                    index=self._calls[index] - 1, function=FunctionCallDelta(arguments=text)
                )
                return [ChatDelta(tool_calls=[call])]
            case _:
                return []

    def _choice(self, index: int, found: Collected) -> ChatChoice:
        reasoning: str | UnsetType = UNSET
        if found.reasoning and self._shows_reasoning:
            reasoning = "".join(found.reasoning)
        calls: list[ToolCall] | UnsetType = UNSET
        if found.calls:
            calls = [
                ToolCall(
                    id=call.call_id or new_call_id(self._state),
                    function=FunctionCall(name=call.name, arguments=call.arguments),
                )
                for call in found.calls
            ]
        return ChatChoice(
            index=index,
            message=AnswerMessage(
                content=None if found.calls and not found.text else found.text,
                reasoning=reasoning,
                reasoning_content=reasoning,
                tool_calls=calls,
            ),
            logprobs=chat_logprobs(found.logprobs, self._state.tokenizer)
            if found.logprobs
            else None,
            finish_reason=found.finish_reason,  # pyright: ignore[reportArgumentType]
        )
