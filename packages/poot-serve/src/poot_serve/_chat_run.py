"""One request for an answer to a conversation, whatever its dialect: from messages to choices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from poot_core import PootError, RequestError
from poot_llm import Constraint, SamplingParams
from poot_serve._choice import AnswerReader, Choice, Reader
from poot_serve._conversation import Conversation, render
from poot_serve._parsing.call_grammar import forced_calls, strict_calls
from poot_serve._parsing.formats import AnswerFormat, Forced
from poot_serve._parsing.lexer import Lexer
from poot_serve._record import Record
from poot_serve._state import ServerState
from poot_serve._wire.common import Tool

__all__ = ["ChatAsk", "PreparedChat", "begin_choices", "prepare_chat"]

log = logging.getLogger("poot_serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAsk:
    """What a dialect asks for.

    Attributes:
        messages: As templates read them.
        params: How to sample.
        count: How many answers.
        tools: Functions that the model may call.
        choice: Whether it may, must or must not; or the name of the one it must call.
        parallel: Whether one answer may hold several calls.
        constraint: Shape of the answer's text.
        variables: Further names for the template.
        adds_prompt: End the prompt with the head of the assistant's answer.
        cache_salt: Prefixes are shared only among requests of the same salt.
        priority: Lower numbers are admitted first.
    """

    messages: list[dict[str, Any]]
    params: SamplingParams
    count: int = 1
    tools: Sequence[Tool] = ()
    choice: Literal["auto", "none", "required"] | str = "auto"
    parallel: bool = True
    constraint: Constraint | None = None
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    adds_prompt: bool = True
    cache_salt: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChat:
    """A conversation ready to be answered.

    Attributes:
        prompt: Its text.
        prompt_ids: Its tokens.
        params: How to sample, the constraint included.
        format: How the model writes calls and reasoning.
        tools: Parameters of the functions whose calls are read.
        forced: Whether the answer is a call and nothing else.
        opens_reasoning: Whether the prompt ends inside the reasoning.
        is_plain: Whether the answer is text and nothing else.
    """

    prompt: str
    prompt_ids: list[int]
    params: SamplingParams
    format: AnswerFormat
    tools: dict[str, dict[str, Any]]
    forced: Forced | None
    opens_reasoning: bool
    is_plain: bool

    def reader(self, state: ServerState) -> Reader:
        """Return what reads one answer."""
        tokenizer = state.require_tokenizer("messages")
        markers: tuple[str, ...] = ()
        if self.forced is None and not self.is_plain:
            markers = self.format.markers(with_tools=bool(self.tools))
        ids = state.marker_ids(markers)
        spelled = set(markers) - {marker.text for marker in ids.values()}
        lexer = Lexer(tokenizer, self.params, ids=ids, texts=sorted(spelled))
        parser = self.format.parser(
            self.tools,
            opens_reasoning=self.opens_reasoning,
            forced=self.forced,
            is_plain=self.is_plain,
        )
        return AnswerReader(lexer, parser)


async def prepare_chat(state: ServerState, ask: ChatAsk) -> PreparedChat:
    """Return a conversation as tokens, with the constraint of its tools.

    Raises:
        RequestError: If the template refuses the messages, a forced tool is not offered, or the text
            cannot fit.
    """
    tokenizer = state.require_tokenizer("messages")
    form = state.answer_format
    tools = () if ask.choice == "none" else tuple(ask.tools)
    forced, opener, constraint = _forced(ask, tools, form)
    variables = dict(ask.variables)
    if constraint is not None:
        # A constraint holds from the first token on: there is no room for reasoning.
        variables.setdefault("enable_thinking", False)
    conversation = Conversation(
        messages=ask.messages,
        tools=tools,
        variables=variables,
        adds_prompt=ask.adds_prompt,
    )
    state.check_text_length(conversation.characters)

    def work() -> tuple[str, list[int]]:
        prompt = render(tokenizer, conversation)
        if forced is not None:
            # Reasoning that the template opened is closed before a call, too.
            prompt += ("" if form.is_harmony else form.answer_opener(prompt)) + opener
        elif constraint is not None:
            prompt += form.answer_opener(prompt)
        return prompt, tokenizer.encode(prompt, adds_special=False)

    prompt, prompt_ids = await state.with_text(conversation.characters, work)
    functions = {tool.function.name: tool.function.parameters or {} for tool in tools}
    if forced == "named":
        functions = {ask.choice: functions[ask.choice]}
    params = ask.params
    if constraint is not None:
        params = replace(params, constraint=constraint)
    elif any(tool.function.strict for tool in tools):
        params = replace(params, constraint=_strict(state, functions, parallel=ask.parallel))
    return PreparedChat(
        prompt=prompt,
        prompt_ids=prompt_ids,
        params=params,
        format=form,
        tools=functions,
        forced=forced,
        opens_reasoning=constraint is None and form.opens_reasoning(prompt),
        is_plain=forced is None
        and constraint is not None
        and (form.is_harmony or constraint.kind in {"json_object", "json_schema"}),
    )


def _forced(
    ask: ChatAsk, tools: tuple[Tool, ...], form: AnswerFormat
) -> tuple[Forced | None, str, Constraint | None]:
    """Return how an answer is forced to be a call, what the prompt ends with, and its constraint."""
    if ask.choice in {"auto", "none"}:
        return None, "", ask.constraint
    by_name = {tool.function.name: tool.function.parameters or {} for tool in tools}
    if not by_name:
        raise RequestError("tool_choice asks for a call but tools is empty", field="tool_choice")
    if ask.choice == "required":
        grammar = Constraint.grammar(forced_calls(form, by_name, parallel=ask.parallel))
        return "one", form.opener("one", "") or "", replace(grammar, field="tools")
    if ask.choice not in by_name:
        raise RequestError(
            f"tool_choice names {ask.choice!r}; tools holds {', '.join(by_name)}",
            field="tool_choice",
        )
    schema = Constraint.json_schema(by_name[ask.choice] or {"type": "object"})
    opener = form.opener("named", ask.choice) or ""
    return "named", opener, replace(schema, field="tools")


def _strict(
    state: ServerState, functions: dict[str, dict[str, Any]], *, parallel: bool
) -> Constraint | None:
    """Return what holds the calls of a free answer to their schemas, or None without a format."""
    form = state.answer_format
    markers = state.marker_ids(form.markers(with_tools=True))
    ids = {marker.text: token_id for token_id, marker in markers.items()}
    grammar = strict_calls(form, functions, ids, parallel=parallel)
    return None if grammar is None else replace(Constraint.grammar(grammar), field="tools")


def begin_choices(
    state: ServerState,
    record: Record,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    count: int,
    *,
    readers: Callable[[], Reader],
    cache_salt: str | None = None,
    priority: int = 0,
) -> list[Choice]:
    """Return ``count`` choices of each prompt, all of them under way, or none.

    Args:
        state: Of the server.
        record: Counts of the request.
        prompts: Token ids.
        params: How to sample.
        count: Choices of each prompt.
        readers: Makes a reader for each choice.
        cache_salt: Prefixes are shared only among requests of the same salt.
        priority: Lower numbers are admitted first.

    Raises:
        OverloadedError: If there is no room for all of them.
        RequestError: As ``EngineProcess.submit``.
    """
    prompt_tokens = sum(map(len, prompts))
    if state.logs_prompts:
        for ids in prompts:
            text = state.tokenizer.decode(ids, skips_special=False) if state.tokenizer else ids
            log.info("prompt", extra={"facts": {"request_id": record.request_id, "prompt": text}})
    state.engine.check_room(count * len(prompts), count * prompt_tokens)
    made = [readers() for _ in range(count * len(prompts))]
    choices: list[Choice] = []
    try:
        for ids in prompts:
            for place in range(count):
                ticket = state.engine.submit(
                    ids,
                    params,
                    choice=place,
                    cache_salt=cache_salt,
                    priority=priority,
                    deadline_s=state.limits.request_timeout_s,
                )
                choices.append(Choice(ticket, made[len(choices)], record, state.metrics))
    except PootError:
        for choice in choices:
            choice.close()
        raise
    record.prompt_tokens = prompt_tokens
    return choices
