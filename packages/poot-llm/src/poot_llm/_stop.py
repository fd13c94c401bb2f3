"""Stop strings: found across the borders of tokens, holding back only what may become one."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["StopMatcher"]


class StopMatcher:
    """Cuts a stream of text at the stop string that is complete first, however the stream is cut.

    Attributes:
        is_stopped: Whether a stop string came.
        matched: The stop string that came, or None.

    >>> matcher = StopMatcher(["END"])
    >>> matcher.push("the E"), matcher.push("N"), matcher.push("emy END of"), matcher.is_stopped
    ('the ', '', 'ENemy ', True)
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.is_stopped = False
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return the text that certainly stands before any stop string."""
        if self.is_stopped:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            cut, self.matched = found
            self.is_stopped = True
            self._held = ""
            return text[:cut]
        keep = len(text) - self._possible_start(text)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """Return what was held back, where no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """Return where the match with the lowest end starts and what it is, the longest of several."""
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _possible_start(self, text: str) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
