"""From token ids to texts and markers, with stop strings.

A marker that is one token of the vocabulary is recognised by its id alone, so that an answer that merely
spells it stays text. A marker that is no token is found in the text, over the borders of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poot_llm import SamplingParams
from poot_llm.text import StopMatcher, Tokenizer
from poot_serve._parsing.deltas import Item, Marker

__all__ = ["Lexer", "MarkerMatcher", "marker_ids"]


def marker_ids(tokenizer: Tokenizer, markers: Iterable[str]) -> dict[int, Marker]:
    """Return the markers that are single tokens, by id."""
    found: dict[int, Marker] = {}
    for text in markers:
        ids = tokenizer.encode(text, adds_special=False)
        if len(ids) == 1:
            found[ids[0]] = Marker(text)
    return found


class MarkerMatcher:
    """Cuts a stream of text at markers that are spelled out.

    >>> matcher = MarkerMatcher(["<call>"])
    >>> matcher.push("a <ca"), matcher.push("ll> b")
    (['a '], [Marker(text='<call>'), ' b'])
    """

    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = tuple(markers)
        self._held = ""

    def push(self, text: str) -> list[Item]:
        """Return the items that are certain."""
        if not self._markers:
            return [text] if text else []
        items: list[Item] = []
        text = self._held + text
        while (found := self._first(text)) is not None:
            start, marker = found
            if start:
                items.append(text[:start])
            items.append(Marker(marker))
            text = text[start + len(marker) :]
        keep = len(text) - self._possible_start(text)
        if keep:
            items.append(text[:keep])
        self._held = text[keep:]
        return items

    def finish(self) -> list[Item]:
        """Return what was held back."""
        held, self._held = self._held, ""
        return [held] if held else []

    def _first(self, text: str) -> tuple[int, str] | None:
        found = [(at, -len(m), m) for m in self._markers if (at := text.find(m)) >= 0]
        if not found:
            return None
        start, _, marker = min(found)
        return start, marker

    def _possible_start(self, text: str) -> int:
        """Return the length of the longest end of the text that begins a marker."""
        longest = max(map(len, self._markers)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(marker.startswith(tail) for marker in self._markers):
                return length
        return 0


class Lexer:
    """Turns the tokens of one answer into items.

    Args:
        tokenizer: The model's.
        params: ``stop`` and ``min_tokens`` count here.
        ids: Markers that are tokens.
        texts: Markers that are spelled.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        *,
        ids: dict[int, Marker],
        texts: Iterable[str],
    ) -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._detokenizer = tokenizer.detokenizer()
        self._stops = StopMatcher(params.stop)
        self._markers = MarkerMatcher(texts)
        self._unchecked = params.min_tokens

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string came."""
        return self._stops.is_stopped

    @property
    def stop(self) -> str | None:
        """The stop string that came, or None."""
        return self._stops.matched

    def push(self, token_ids: Sequence[int], finish_reason: str | None) -> list[Item]:
        """Return the items that are certain now.

        Args:
            token_ids: New tokens.
            finish_reason: That of the event; with ``stop`` the last token ended the answer and is a
                marker or nothing, and with any what was held back comes too.
        """
        items: list[Item] = []
        last = len(token_ids) - 1 if finish_reason == "stop" else -1
        for place, token_id in enumerate(token_ids):
            marker = self._ids.get(token_id)
            if marker is not None:
                items += self._flush()
                if self.is_stopped:
                    break
                items.append(marker)
                self._detokenizer = self._tokenizer.detokenizer(continues=True)
            elif place != last:
                items += self._text(self._detokenizer.push(token_id))
            self._unchecked -= 1
            if self.is_stopped:
                break
        if finish_reason is not None or self.is_stopped:
            items += self._flush()
        return items

    def _flush(self) -> list[Item]:
        items = self._text(self._detokenizer.finish())
        items += self._markers.push(self._stops.finish())
        return items + self._markers.finish()

    def _text(self, text: str) -> list[Item]:
        # Text of the first min_tokens tokens passes unread.
        return self._markers.push(text if self._unchecked > 0 else self._stops.push(text))
