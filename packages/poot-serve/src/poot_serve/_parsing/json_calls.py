"""Reads calls written as JSON while they come: the name, then the arguments piece by piece."""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto

from poot_serve._parsing.deltas import CallArguments, CallBegin, Content, Delta

__all__ = ["CallList", "CallObject", "JsonValue"]

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class JsonValue:
    """Finds the end of one JSON value; checks nesting and strings, not every rule of JSON.

    >>> value = JsonValue()
    >>> value.feed('{"a": "}"'), value.feed("} tail"), value.is_done
    (9, 1, True)
    """

    def __init__(self) -> None:
        self.is_done = False
        self.is_bad = False
        self._closers: list[str] = []
        self._in_string = False
        self._is_escaped = False
        self._kind = ""  # "" before the value, then "compound", "string" or "scalar"

    def feed(self, text: str) -> int:
        """Return how many characters of the text belong to the value, spaces before it included."""
        for place, character in enumerate(text):
            if self._step(character):
                continue
            return place
        return len(text)

    def finish(self) -> None:
        """End of the text: a scalar ends with it."""
        self.is_done = self.is_done or (self._kind == "scalar")

    def _step(self, character: str) -> bool:
        """Take a character; return whether it belongs to the value."""
        if self.is_done or self.is_bad:
            return False
        if self._in_string:
            self._step_string(character)
            return True
        if not self._kind:
            return self._begin(character)
        if self._kind == "scalar":
            if character in _SPACE or character in ",}];":
                self.is_done = True
                return False
            return True
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._closers.append("}" if character == "{" else "]")
        elif character in "}]":
            if self._closers.pop() != character:
                self.is_bad = True
                return False
            self.is_done = not self._closers
        return True

    def _begin(self, character: str) -> bool:
        if character in _SPACE:
            return True
        if character in "{[":
            self._kind = "compound"
            self._closers.append("}" if character == "{" else "]")
        elif character == '"':
            self._kind, self._in_string = "string", True
        elif character.isalnum() or character == "-":
            self._kind = "scalar"
        else:
            self.is_bad = True
            return False
        return True

    def _step_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
            self.is_done = self._kind == "string"


class _Want(Enum):
    OBJECT = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class CallObject:
    """Reads one ``{"name": ..., "arguments": ...}``.

    Args:
        names: Names that are calls; None takes any.
        needs_arguments: Without arguments the object is no call.
    """

    def __init__(self, names: Collection[str] | None, *, needs_arguments: bool = False) -> None:
        self.is_done = False
        self.is_bad = False
        self.has_begun = False
        self.raw = ""  # what was read, as long as no call has begun
        self._names = names
        self._needs_arguments = needs_arguments
        self._want = _Want.OBJECT
        self._key = ""
        self._text = ""
        self._value = JsonValue()
        self._name: str | None = None
        self._early: str | None = None  # arguments that came before the name
        self._has_arguments = False  # a second object of arguments says nothing

    def feed(self, text: str) -> tuple[int, list[Delta]]:
        """Return how many characters were read, and what they say."""
        deltas: list[Delta] = []
        at = 0
        while at < len(text) and not (self.is_done or self.is_bad):
            at = self._advance(text, at, deltas)
        if not self.has_begun:
            self.raw += text[:at]
        return at, deltas

    def _advance(self, text: str, at: int, deltas: list[Delta]) -> int:
        if self._want in {_Want.KEY, _Want.VALUE} and self._text:
            return self._read_value(text, at, deltas)
        character = text[at]
        if character in _SPACE:
            return at + 1
        if self._want is _Want.VALUE:
            return self._read_value(text, at, deltas)
        if self._want is _Want.OBJECT and character == "{":
            self._want = _Want.KEY
        elif self._want is _Want.KEY and character == '"':
            return self._read_value(text, at, deltas)
        elif self._want is _Want.COLON and character == ":":
            self._want, self._value = _Want.VALUE, JsonValue()
        elif self._want is _Want.COMMA and character == ",":
            self._want, self._value = _Want.KEY, JsonValue()
        elif character == "}" and self._want in {_Want.KEY, _Want.COMMA}:
            self._close(deltas)
        else:
            self.is_bad = True
            return at
        return at + 1

    def _read_value(self, text: str, at: int, deltas: list[Delta]) -> int:
        size = self._value.feed(text[at:])
        piece = text[at : at + size]
        at += size
        first = self._text[:1] or piece[:1]
        self._text += piece
        if self._value.is_bad:
            self.is_bad = True
            return at
        if self._want is _Want.VALUE and self._key in _ARGUMENTS and first == "{":
            self._stream_arguments(piece, deltas)
        if self._value.is_done:
            self._end_value(deltas)
        return at

    def _stream_arguments(self, piece: str, deltas: list[Delta]) -> None:
        if self._has_arguments:
            return
        if self.has_begun:
            deltas.append(CallArguments(piece))
        elif self._name is not None:
            self._begin(deltas)
            deltas.append(CallArguments(self._text))

    def _end_value(self, deltas: list[Delta]) -> None:
        text, self._text = self._text, ""
        if self._want is _Want.KEY:
            self._key = _string(text) or ""
            self._want = _Want.COLON
            return
        self._want = _Want.COMMA
        if self._key == "name" and self._name is None:
            self._name = _string(text)
            if self._name is None or (self._names is not None and self._name not in self._names):
                self.is_bad = True
            elif self._early is not None:
                self._begin(deltas)
                deltas.append(CallArguments(self._early))
        elif self._key in _ARGUMENTS and not text.startswith("{"):
            # Some models write the arguments as a text that holds JSON, or null for none.
            self._take_early(_string(text) or "{}", deltas)
        elif self._key in _ARGUMENTS and self._name is None:
            self._take_early(text, deltas)
        elif self._key in _ARGUMENTS:
            self._has_arguments = True

    def _take_early(self, text: str, deltas: list[Delta]) -> None:
        if self.has_begun or self._early is not None:
            return
        if self._name is None:
            self._early = text
        else:
            self._begin(deltas)
            deltas.append(CallArguments(text))

    def _begin(self, deltas: list[Delta]) -> None:
        if self.is_bad or self._name is None:
            return
        self.has_begun = True
        self.raw = ""
        deltas.append(CallBegin(self._name))

    def _close(self, deltas: list[Delta]) -> None:
        self.is_done = True
        if self.has_begun:
            return
        if self._name is None or self._needs_arguments:
            self.is_bad = True
            self.is_done = False
            return
        self._begin(deltas)
        deltas.append(CallArguments("{}"))


class CallList:
    """Reads calls one after another: ``{...}``, ``[{...}, {...}]`` or ``{...}; {...}``.

    What is no call comes out as content, with ``prefix`` in front where no call has come.

    Args:
        names: Names that are calls; None takes any.
        prefix: Text of the marker that opened the list.
        needs_arguments: Without arguments an object is no call.
    """

    def __init__(
        self, names: Collection[str] | None, *, prefix: str = "", needs_arguments: bool = False
    ) -> None:
        self.is_bad = False
        self._names = names
        self._needs_arguments = needs_arguments
        self._raw = prefix  # unread text since the last call
        self._object: CallObject | None = None

    @property
    def has_open_call(self) -> bool:
        """Whether an object is half read."""
        return self._object is not None

    def feed(self, text: str) -> list[Delta]:
        """Return what the text says."""
        deltas: list[Delta] = []
        at = 0
        while at < len(text):
            if self.is_bad:
                deltas.append(Content(text[at:]))
                break
            if self._object is None:
                at = self._between(text, at, deltas)
                continue
            size, found = self._object.feed(text[at:])
            at += size
            deltas += found
            if self._object.has_begun:
                self._raw = ""
            if self._object.is_bad:
                self._give_up(deltas)
            elif self._object.is_done:
                self._object = None
        return deltas

    def finish(self) -> list[Delta]:
        """Return what was held back, where no call came of it."""
        deltas: list[Delta] = []
        if self._object is not None and not self._object.has_begun:
            self._give_up(deltas)
        elif self._object is None and self._raw.strip() and not self.is_bad:
            deltas.append(Content(self._raw))
        return deltas

    def _between(self, text: str, at: int, deltas: list[Delta]) -> int:
        character = text[at]
        if character == "{":
            self._object = CallObject(self._names, needs_arguments=self._needs_arguments)
            return at
        if character in _SPACE or character in "[],;":
            if self._raw:
                self._raw += character
            return at + 1
        self._give_up(deltas)
        return at

    def _give_up(self, deltas: list[Delta]) -> None:
        raw = self._raw
        if self._object is not None:
            # Of a call that has begun nothing can be taken back.
            raw = "" if self._object.has_begun else raw + self._object.raw
        self.is_bad = True
        self._object = None
        self._raw = ""
        if raw:
            deltas.append(Content(raw))


def _string(text: str) -> str | None:
    """Return the value of a JSON string, or None for anything else."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None
