"""The channels of gpt-oss: reasoning, calls and the answer as messages with a header each."""

from __future__ import annotations

import re

from poot_serve._parsing.deltas import (
    CallArguments,
    CallBegin,
    Content,
    Delta,
    Item,
    Parser,
    Reasoning,
)

__all__ = ["HarmonyParser"]

_RECIPIENT = re.compile(r"\bto=(\S+)")
_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")


class HarmonyParser(Parser):
    """Reads ``<|channel|>NAME<|message|>BODY<|end|>`` messages.

    Markers are token ids, so no control word can end up in a name or a text. A channel that is not known
    is content.
    """

    START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
    END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
    CONSTRAIN = "<|constrain|>"
    MARKERS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)

    def __init__(self) -> None:
        self._role = ""  # text of a header before its channel
        self._channel: str | None = None
        self._body: str | None = None  # kind of the open message, or None in a header
        self._is_empty = True
        self._has_messages = False

    def push(self, item: Item) -> list[Delta]:
        """Return what is certain now."""
        if isinstance(item, str):
            return self._text(item)
        match item.text:
            case self.MESSAGE if self._body is None:
                return self._begin()
            case self.CHANNEL if self._body is None:
                self._channel = ""
            case self.CONSTRAIN if self._body is None:
                self._text(" ")
            case self.START | self.END | self.CALL | self.RETURN | self.CHANNEL:
                deltas = self._end()
                self._channel = "" if item.text == self.CHANNEL else None
                return deltas
            case _:
                pass
        return []

    def finish(self) -> list[Delta]:
        """Return what was held back."""
        deltas = self._end()
        # An answer without any header is an answer all the same.
        if self._channel is None and self._role.strip() and not self._has_messages:
            deltas.append(Content(self._role))
        self._role = ""
        return deltas

    def _text(self, text: str) -> list[Delta]:
        if self._body is None:
            if self._channel is None:
                self._role += text
            else:
                self._channel += text
            return []
        self._is_empty = False
        match self._body:
            case "reasoning":
                return [Reasoning(text)]
            case "call":
                return [CallArguments(text)]
            case _:
                return [Content(text)]

    def _begin(self) -> list[Delta]:
        channel, header = self._channel or "", f"{self._role} {self._channel or ''}"
        self._role, self._channel = "", None
        self._is_empty, self._has_messages = True, True
        recipient = _RECIPIENT.search(header)
        name = recipient[1].removeprefix("functions.") if recipient else ""
        if _NAME.fullmatch(name):
            self._body = "call"
            return [CallBegin(name)]
        words = channel.split()
        self._body = "reasoning" if words and words[0] == "analysis" else "content"
        return []

    def _end(self) -> list[Delta]:
        was_empty_call = self._body == "call" and self._is_empty
        self._body = None
        return [CallArguments("{}")] if was_empty_call else []
