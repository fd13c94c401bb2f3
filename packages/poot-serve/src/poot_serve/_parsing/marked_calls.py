"""Calls as JSON after a marker: Hermes and Qwen, Granite, Llama 3 and Mistral."""

from __future__ import annotations

from collections.abc import Collection

from poot_serve._parsing.deltas import (
    CallArguments,
    CallBegin,
    Content,
    Delta,
    Item,
    Marker,
    Parser,
)
from poot_serve._parsing.json_calls import CallList, JsonValue
from poot_serve._parsing.xml_calls import XmlCall

__all__ = ["BareCalls", "MarkedCalls", "MistralCalls", "NamedCall"]


class MarkedCalls(Parser):
    """``<tool_call>{...}</tool_call>``, ``<|tool_call|>[{...}]`` and their like.

    Args:
        opener: Marker before calls.
        closer: Marker after them, or "" where the end of the answer closes them.
        tools: Parameters of the functions by name; they type the values of calls in XML.
        is_open: The opener stands in the prompt already.
    """

    def __init__(
        self,
        opener: str,
        closer: str,
        *,
        tools: dict[str, dict[str, object]],
        is_open: bool = False,
    ) -> None:
        self._opener = opener
        self._closer = closer
        self._tools = tools
        self._calls: CallList | XmlCall | None = CallList(None) if is_open else None
        self._is_undecided = False
        self._spaces = ""

    def push(self, item: Item) -> list[Delta]:
        """Return what is certain now."""
        if self._calls is None:
            return self._outside(item)
        if isinstance(item, Marker):
            if item.text == self._opener:  # the model forgot the closer
                return [*self._end(), *self._outside(item)]
            return self._end() if item.text == self._closer else []
        if self._is_undecided:
            # Qwen's coders write a call as XML within the same markers.
            self._spaces += item
            start = self._spaces.lstrip()
            if not start:
                return []
            self._is_undecided = False
            item, self._spaces = self._spaces, ""
            if start.startswith("<"):
                self._calls = XmlCall(self._tools)
        return self._calls.feed(item)

    def finish(self) -> list[Delta]:
        """Return what was held back."""
        return [] if self._calls is None else self._end()

    def _outside(self, item: Item) -> list[Delta]:
        if isinstance(item, str):
            return [Content(item)]
        if item.text != self._opener:
            return []
        self._calls = CallList(None, prefix=self._opener)
        self._is_undecided = True
        return []

    def _end(self) -> list[Delta]:
        assert self._calls is not None, "an opener came"
        deltas = self._calls.finish()
        self._calls = None
        self._is_undecided = False
        self._spaces = ""
        return deltas


class BareCalls(Parser):
    """Llama 3: an answer that begins with ``{`` and calls a known function, or ``<|python_tag|>``.

    Args:
        marker: Marker that may stand before calls.
        names: Functions that may be called; an object that names none of them is text.
    """

    def __init__(self, marker: str, *, names: Collection[str]) -> None:
        self._marker = marker
        self._names = names
        self._calls: CallList | None = None
        self._spaces: str | None = ""  # of the begin of the answer, as long as nothing else came

    def push(self, item: Item) -> list[Delta]:
        """Return what is certain now."""
        if isinstance(item, Marker):
            if item.text != self._marker or self._calls is not None:
                return []
            held, self._spaces = self._spaces, None
            self._calls = CallList(None, prefix=self._marker)
            return [Content(held)] if held else []
        if self._calls is not None:
            return self._calls.feed(item)
        if self._spaces is None:
            return [Content(item)]
        self._spaces += item
        start = self._spaces.lstrip()
        if not start:
            return []
        text, self._spaces = self._spaces, None
        if not start.startswith("{"):
            return [Content(text)]
        spaces = text[: len(text) - len(start)]
        self._calls = CallList(self._names, prefix=spaces, needs_arguments=True)
        return self._calls.feed(start)

    def finish(self) -> list[Delta]:
        """Return what was held back."""
        if self._calls is not None:
            return self._calls.finish()
        return [Content(self._spaces)] if self._spaces else []


class MistralCalls(Parser):
    """``[TOOL_CALLS][{...}]``, or ``[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`` of newer models."""

    OPENER, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

    def __init__(self) -> None:
        self._state = "text"
        self._calls: CallList | None = None
        self._header = {"name": "", "id": ""}
        self._value = JsonValue()

    def push(self, item: Item) -> list[Delta]:
        """Return what is certain now."""
        if isinstance(item, Marker):
            return self._marker(item.text)
        match self._state:
            case "text":
                return [Content(item)]
            case "choose":
                return self._choose(item)
            case "list":
                assert self._calls is not None, "set with the state"
                return self._calls.feed(item)
            case "begun" | "arguments":
                return self._arguments(item)
            case _:
                return self._read_header(item)

    def finish(self) -> list[Delta]:
        """Return what was held back."""
        deltas: list[Delta] = []
        if self._calls is not None:
            deltas = self._calls.finish()
        elif self._state in {"name", "id"} and self._header["name"].strip():
            deltas = [Content(self.OPENER + self._header["name"])]
        elif self._state == "begun":
            deltas = [CallArguments("{}")]
        self._state, self._calls = "text", None
        return deltas

    def _marker(self, text: str) -> list[Delta]:
        if text == self.OPENER:
            deltas = self.finish()
            self._state = "choose"
            self._header = {"name": "", "id": ""}
            return deltas
        if text == self.CALL_ID and self._state == "name":
            self._state = "id"
        elif text == self.ARGS and self._state in {"name", "id"}:
            return self._begin_arguments()
        return []

    def _choose(self, text: str) -> list[Delta]:
        text = text.lstrip()
        if not text:
            return []
        if text[0] in "[{":
            self._state = "list"
            self._calls = CallList(None, prefix=self.OPENER)
            return self._calls.feed(text)
        self._state = "name"
        return self._read_header(text)

    def _read_header(self, text: str) -> list[Delta]:
        # Some templates leave [ARGS] out: the arguments begin with their brace.
        head, brace, tail = text.partition("{")
        self._header[self._state] += head
        return [*self._begin_arguments(), *self._arguments("{" + tail)] if brace else []

    def _begin_arguments(self) -> list[Delta]:
        self._state, self._value = "begun", JsonValue()
        return [CallBegin(self._header["name"].strip(), self._header["id"].strip() or None)]

    def _arguments(self, text: str) -> list[Delta]:
        text = text if self._state == "arguments" else text.lstrip()
        if not text:
            return []
        self._state = "arguments"
        size = self._value.feed(text)
        return [CallArguments(text[:size])] if size else []


class NamedCall(Parser):
    """The whole answer is the arguments of one function, which the request named."""

    def __init__(self, name: str) -> None:
        self._begin: list[Delta] = [CallBegin(name)]
        self._value = JsonValue()

    def push(self, item: Item) -> list[Delta]:
        """Return what is certain now."""
        if isinstance(item, Marker):
            return []
        size = self._value.feed(item)
        begin, self._begin = self._begin, []
        return [*begin, CallArguments(item[:size])] if size else begin

    def finish(self) -> list[Delta]:
        """Nothing is held back."""
        return self._begin
