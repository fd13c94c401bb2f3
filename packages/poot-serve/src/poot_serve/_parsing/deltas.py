"""What a parser takes and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "CallArguments",
    "CallBegin",
    "Content",
    "Delta",
    "Item",
    "Marker",
    "Parser",
    "Reasoning",
]


@dataclass(frozen=True, slots=True)
class Marker:
    """A control word of a format, wherever it came from: one token id, or its text."""

    text: str


Item = str | Marker
"""One piece of raw output: text, or a marker between two texts."""


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins; ``call_id`` is the format's own where it has one."""

    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Arguments of the call that began last go on, as JSON text."""

    text: str


Delta = Content | Reasoning | CallBegin | CallArguments


class Parser(Protocol):
    """Turns the raw output of one answer into deltas; where it is cut makes no difference."""

    def push(self, item: Item) -> list[Delta]:
        """Return what is certain now."""
        ...

    def finish(self) -> list[Delta]:
        """Return what was held back; nothing may be pushed after it."""
        ...
