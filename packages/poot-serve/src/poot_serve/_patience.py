"""How long a refused client should wait: the time in which as much room comes free as it needs."""

from __future__ import annotations

from collections import deque
from time import monotonic

__all__ = ["Patience"]

_MOST_DEPARTURES = 64  # recent enough to tell of the load of now
_LEAST_S, _MOST_S = 1.0, 60.0


class Patience:
    """Estimates waiting times from how fast sequences left and prompt tokens were computed lately.

    >>> patience = Patience()
    >>> for second in range(5):
    ...     patience.note_departure(now_s=10.0 + 2 * second)
    >>> patience.for_sequences(3, now_s=18.0)  # one left every two seconds
    6.0
    """

    def __init__(self) -> None:
        self._departures: deque[float] = deque(maxlen=_MOST_DEPARTURES)

    def note_departure(self, *, now_s: float | None = None) -> None:
        """Count a sequence that ended, at a time of ``monotonic``."""
        self._departures.append(monotonic() if now_s is None else now_s)

    def for_sequences(self, count: int, *, now_s: float | None = None) -> float:
        """Return the seconds, 1 to 60, after which ``count`` sequences will probably have ended."""
        now_s = monotonic() if now_s is None else now_s
        if len(self._departures) < 2:
            return _LEAST_S
        # Up to now, not up to the last one: a queue that has come to rest is a slow one.
        each_s = (now_s - self._departures[0]) / (len(self._departures) - 1)
        return _within(count * each_s)

    @staticmethod
    def for_tokens(count: int, *, done: int, seconds: float) -> float:
        """Return the seconds, 1 to 60, that ``count`` prompt tokens will probably take.

        Args:
            count: Tokens that have to be computed first.
            done: Tokens computed so far.
            seconds: Time in steps so far.
        """
        return _within(count * seconds / done) if done else _LEAST_S


def _within(seconds: float) -> float:
    return min(max(seconds, _LEAST_S), _MOST_S)
