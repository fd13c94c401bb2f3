"""Splits reasoning from the answer where markers such as ``<think>`` stand around it."""

from __future__ import annotations

from poot_serve._parsing.deltas import CallBegin, Content, Delta, Item, Marker, Parser, Reasoning

__all__ = ["PlainText", "ThinkingParser", "Trimmed"]


class PlainText(Parser):
    """Everything is content."""

    def push(self, item: Item) -> list[Delta]:
        """Return the text."""
        return [Content(item)] if isinstance(item, str) else []

    def finish(self) -> list[Delta]:
        """Nothing is held back."""
        return []


class ThinkingParser(Parser):
    """Reasoning between two markers, then what another parser makes of the rest.

    Args:
        opener: Marker before the reasoning.
        closer: Marker after it.
        inner: Reads the answer itself.
        is_open: The opener stands in the prompt already.
    """

    def __init__(self, opener: str, closer: str, inner: Parser, *, is_open: bool) -> None:
        self._opener = opener
        self._closer = closer
        self._inner = inner
        self._is_open = is_open
        self._may_open = not is_open  # only as the first thing of the answer
        self._held = ""

    def push(self, item: Item) -> list[Delta]:
        """Return what is certain now."""
        if self._is_open:
            return self._inside(item)
        if not self._may_open:
            if isinstance(item, Marker) and item.text == self._closer:
                return []  # one too many
            return self._inner.push(item)
        if isinstance(item, str) and not (self._held + item).strip():
            self._held += item
            return []
        self._may_open = False
        held, self._held = self._held, ""
        if isinstance(item, Marker) and item.text == self._opener:
            self._is_open = True
            return []
        return [*(self._inner.push(held) if held else []), *self.push(item)]

    def finish(self) -> list[Delta]:
        """Return what was held back."""
        held, self._held = self._held, ""
        return [*(self._inner.push(held) if held else []), *self._inner.finish()]

    def _inside(self, item: Item) -> list[Delta]:
        if isinstance(item, str):
            return [Reasoning(item)]
        if item.text == self._closer:
            self._is_open = False
            return []
        return [] if item.text == self._opener else [Reasoning(item.text)]


class Trimmed(Parser):
    """Takes the blank space off around reasoning and content, where a format sets them apart by it.

    Space at the end of content stays unless a call follows: nobody knows whether the answer meant it.
    """

    def __init__(self, inner: Parser) -> None:
        self._inner = inner
        self._kind: type[Content] | type[Reasoning] | None = None
        self._spaces = ""
        self._has_text = {Content: False, Reasoning: False}

    def push(self, item: Item) -> list[Delta]:
        """Return what is certain now."""
        return self._trim(self._inner.push(item))

    def finish(self) -> list[Delta]:
        """Return what was held back."""
        deltas = self._trim(self._inner.finish())
        if self._spaces and self._kind is Content:
            deltas.append(Content(self._spaces))
        self._spaces = ""
        return deltas

    def _trim(self, deltas: list[Delta]) -> list[Delta]:
        given: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, CallBegin):
                self._spaces, self._kind = "", None
            if not isinstance(delta, Content | Reasoning):
                given.append(delta)
                continue
            kind = type(delta)
            if kind is not self._kind:
                self._spaces, self._kind = "", kind
            text = self._spaces + delta.text
            if not self._has_text[kind]:
                text = text.lstrip()
            body = text.rstrip()
            self._spaces = text[len(body) :]
            if body:
                self._has_text[kind] = True
                given.append(kind(body))
        return given
