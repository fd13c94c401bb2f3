"""From the messages of any dialect to the prompt of a model: one render function for every path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import msgspec

from poot_core import RequestError, UnsupportedError
from poot_llm.text import Tokenizer
from poot_serve._parsing.formats import AnswerFormat
from poot_serve._wire.chat import ContentPart, Message
from poot_serve._wire.common import Tool

__all__ = ["Conversation", "render", "template_messages"]

_LONGEST_SEARCH_S = 1.0
_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a chat template is given.

    Attributes:
        messages: As templates read them.
        tools: Functions that the model may call.
        variables: Further names.
        adds_prompt: End with the head of the assistant's answer.
    """

    messages: list[dict[str, Any]]
    tools: Sequence[Tool] = ()
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    adds_prompt: bool = True

    @property
    def characters(self) -> int:
        """A bound of the size of its text."""
        return sum(len(str(message.get("content") or "")) for message in self.messages) + sum(
            len(str(tool.function.parameters)) for tool in self.tools
        )


def template_messages(messages: Sequence[Message], form: AnswerFormat) -> list[dict[str, Any]]:
    """Return the messages as chat templates read them.

    Lists of text parts are joined, arguments of calls are objects, and ids of calls are made to fit
    where the format wants nine characters.

    Raises:
        RequestError: If a part is not text.
    """
    return [_message(message, place, form) for place, message in enumerate(messages)]


def _message(message: Message, place: int, form: AnswerFormat) -> dict[str, Any]:
    where = f"messages[{place}]"
    found: dict[str, Any] = {"role": message.role, "content": _text(message.content, where)}
    if message.role == "developer" and not form.is_harmony:
        found["role"] = "system"
    if message.name is not None:
        found["name"] = message.name
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:
        # The name differs among templates; each reads the one it knows.
        found["reasoning_content"] = found["thinking"] = reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": _call_id(call.id or f"call{at}", form),
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for at, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = _call_id(message.tool_call_id, form)
    return found


def _text(content: str | list[ContentPart] | None, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    texts: list[str] = []
    for place, part in enumerate(content):
        if part.type not in {"text", "input_text", "output_text", "refusal"}:
            raise RequestError(
                f"{where}.content[{place}] is of type {part.type!r}; this model reads text alone",
                field=f"{where}.content[{place}].type",
            )
        texts.append(part.text or part.refusal or "")
    return "".join(texts)


def _arguments(given: str | dict[str, Any] | None) -> Any:
    if not isinstance(given, str):
        return given or {}
    try:
        return json.loads(given) if given.strip() else {}
    except (ValueError, RecursionError):
        return given  # a model wrote it, and the template may take it as it is


def _call_id(given: str, form: AnswerFormat) -> str:
    if not form.short_call_ids or (len(given) == 9 and given.isalnum()):
        return given
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "replace")).digest()[:8], "big")
    letters: list[str] = []
    for _ in range(9):
        number, place = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[place])
    return "".join(letters)


def render(tokenizer: Tokenizer, conversation: Conversation) -> str:
    """Return the prompt of a conversation.

    Leading system messages are merged where the template takes one alone.

    Raises:
        RequestError: If the checkpoint has no template or it refuses the messages; the first message
            that it refuses is named.
    """
    try:
        template = tokenizer.template
    except UnsupportedError as error:
        raise RequestError(f"{error}; use /v1/completions", field="messages") from error
    tools = [msgspec.to_builtins(tool) for tool in conversation.tools] or None

    def attempt(messages: list[dict[str, Any]], *, adds_prompt: bool) -> str:
        return template.render(
            messages,
            tools=tools,
            add_generation_prompt=adds_prompt,
            variables=conversation.variables,
        )

    messages = conversation.messages
    try:
        return attempt(messages, adds_prompt=conversation.adds_prompt)
    except RequestError as error:
        merged = _merged_systems(messages)
        if len(merged) < len(messages):
            try:
                return attempt(merged, adds_prompt=conversation.adds_prompt)
            except RequestError:
                pass  # the first error tells more
        refused = error
    deadline_s = monotonic() + _LONGEST_SEARCH_S
    for count in range(1, len(messages)):
        if monotonic() > deadline_s:
            break
        try:
            attempt(messages[:count], adds_prompt=False)
        except RequestError as error:
            if error.message == refused.message:
                raise _at(refused, count - 1) from refused
    raise _at(refused, len(messages) - 1) from refused


def _at(error: RequestError, place: int) -> RequestError:
    return RequestError(f"messages[{place}]: {error.message}", field=f"messages[{place}]")


def _merged_systems(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the leading system messages as one."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    if count < 2:
        return messages
    text = "\n\n".join(str(message["content"] or "") for message in messages[:count])
    return [{"role": "system", "content": text}, *messages[count:]]
