"""Formats of tool calls and of reasoning: which there are, which a chat template uses, their parsers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from poot_core import SettingsError
from poot_serve._parsing.deltas import Parser
from poot_serve._parsing.harmony import HarmonyParser
from poot_serve._parsing.marked_calls import BareCalls, MarkedCalls, MistralCalls, NamedCall
from poot_serve._parsing.thinking import PlainText, ThinkingParser, Trimmed

__all__ = ["REASONING_NAMES", "TOOL_NAMES", "AnswerFormat", "Forced"]

Forced = Literal["one", "named"]
"""``one``: the answer is a call of any function. ``named``: it is the arguments of a known one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolFormat:
    """How a family writes calls.

    Attributes:
        markers: Control words that a parser has to see.
        opener: Text that the prompt ends with where a call is forced.
        named_opener: Text that follows where the function is known; ``{name}`` is its name in JSON.
        arguments_key: Name of the arguments in a call's object.
    """

    markers: tuple[str, ...]
    opener: str
    named_opener: str = '{{"name": {name}, "arguments": '
    arguments_key: str = "arguments"


_TOOLS = {
    "hermes": _ToolFormat(markers=("<tool_call>", "</tool_call>"), opener="<tool_call>\n"),
    "granite": _ToolFormat(
        markers=("<|tool_call|>",),
        opener="<|tool_call|>",
        named_opener='[{{"name": {name}, "arguments": ',
    ),
    "llama3": _ToolFormat(
        markers=("<|python_tag|>",),
        opener="",
        named_opener='{{"name": {name}, "parameters": ',
        arguments_key="parameters",
    ),
    "mistral": _ToolFormat(
        markers=(MistralCalls.OPENER, MistralCalls.CALL_ID, MistralCalls.ARGS),
        opener="[TOOL_CALLS]",
        named_opener='[{{"name": {name}, "arguments": ',
    ),
    "harmony": _ToolFormat(markers=HarmonyParser.MARKERS, opener=""),
}

_REASONING = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
}

TOOL_NAMES = ("auto", "none", *_TOOLS)
REASONING_NAMES = ("auto", "none", *_REASONING)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a model writes calls and reasoning; None where it writes none.

    >>> AnswerFormat.detect("{% if tools %}<tool_call>{% endif %}")
    AnswerFormat(tools='hermes', reasoning=None)
    """

    tools: str | None
    reasoning: str | None

    @classmethod
    def detect(
        cls, template: str | None, *, tools: str = "auto", reasoning: str = "auto"
    ) -> AnswerFormat:
        """Return the format of a chat template.

        Args:
            template: Its source, or None.
            tools: A format's name in place of what the template says, or ``none``.
            reasoning: The same for reasoning.

        Raises:
            SettingsError: If there is no such format.
        """
        for name, known, kind in (
            (tools, TOOL_NAMES, "tool calls"),
            (reasoning, REASONING_NAMES, "reasoning"),
        ):
            if name not in known:
                raise SettingsError(
                    f"there is no format {name!r} of {kind}; known: {', '.join(known)}"
                )
        source = template or ""
        found_tools = _tools_of(source) if tools == "auto" else tools
        found_reasoning = _reasoning_of(source) if reasoning == "auto" else reasoning
        return cls(
            None if found_tools == "none" else found_tools,
            None if found_reasoning == "none" else found_reasoning,
        )

    @property
    def is_harmony(self) -> bool:
        """Whether answers are messages on channels."""
        return self.tools == "harmony"

    @property
    def short_call_ids(self) -> bool:
        """Whether ids of calls have nine letters or digits; others are errors of the template."""
        return self.tools == "mistral"

    def markers(self, *, with_tools: bool) -> tuple[str, ...]:
        """Return the control words that the parser of a request has to see."""
        found: tuple[str, ...] = ()
        if self.tools is not None and (with_tools or self.is_harmony):
            found += _TOOLS[self.tools].markers
        if self.reasoning is not None and not self.is_harmony:
            found += _REASONING[self.reasoning]
        return found

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a prompt ends inside the reasoning."""
        if self.reasoning is None or self.is_harmony:
            return False
        return prompt.rstrip().endswith(_REASONING[self.reasoning][0])

    def answer_opener(self, prompt: str) -> str:
        """Return what a prompt ends with where the answer's text is to begin at once."""
        if self.is_harmony:
            return "<|channel|>final<|message|>"
        if self.reasoning is not None and self.opens_reasoning(prompt):
            return f"\n{_REASONING[self.reasoning][1]}\n\n"
        return ""

    def opener(self, forced: Forced, name: str) -> str | None:
        """Return what a prompt ends with where a call is forced, or None where no format is known."""
        if self.tools is None:
            return None
        if self.is_harmony:
            header = f" to=functions.{name} <|constrain|>json" if forced == "named" else ""
            return f"<|channel|>commentary{header}<|message|>"
        form = _TOOLS[self.tools]
        if forced == "one":
            return form.opener
        return form.opener + form.named_opener.format(name=json.dumps(name))

    @property
    def arguments_key(self) -> str:
        """Name of the arguments in a call's object."""
        return _TOOLS[self.tools or "hermes"].arguments_key

    def parser(
        self,
        tools: Mapping[str, dict[str, Any]],
        *,
        opens_reasoning: bool = False,
        forced: Forced | None = None,
        is_plain: bool = False,
    ) -> Parser:
        """Return a parser of one answer.

        Args:
            tools: Parameters of the functions that may be called, by name; none where no call is read.
            opens_reasoning: The prompt ends inside the reasoning.
            forced: The answer is a call and nothing else; ``tools`` holds one function where it is
                ``named``.
            is_plain: The answer is text and nothing else.
        """
        if is_plain:
            return PlainText()
        if forced == "named":
            return NamedCall(next(iter(tools)))
        if forced == "one":
            return MarkedCalls("", "", tools=dict(tools), is_open=True)
        if self.is_harmony:
            return HarmonyParser()
        inner = self._call_parser(tools)
        if self.reasoning is not None:
            opener, closer = _REASONING[self.reasoning]
            inner = ThinkingParser(opener, closer, inner, is_open=opens_reasoning)
        return inner if isinstance(inner, PlainText) else Trimmed(inner)

    def _call_parser(self, tools: Mapping[str, dict[str, Any]]) -> Parser:
        if not tools or self.tools is None:
            return PlainText()
        opener, closer = (*_TOOLS[self.tools].markers, "")[:2]
        match self.tools:
            case "mistral":
                return MistralCalls()
            case "llama3":
                return BareCalls(opener, names=frozenset(tools))
            case _:
                return MarkedCalls(opener, closer, tools=dict(tools))


def _tools_of(template: str) -> str:
    # The words that a family's template alone uses, the most telling first.
    for word, name in (
        ("<|channel|>", "harmony"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|tool_call|>", "granite"),
        ("<tool_call>", "hermes"),
        ("<|python_tag|>", "llama3"),
        ('"parameters": dictionary of argument', "llama3"),
    ):
        if word in template:
            return name
    return "none"


def _reasoning_of(template: str) -> str:
    for name, (opener, closer) in _REASONING.items():
        if opener in template or closer in template:
            return name
    return "none"
