"""Requests of one client in time: a token bucket each."""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic

__all__ = ["RateLimiter"]

_MOST_CLIENTS = 10_000


class RateLimiter:
    """Counts requests by client.

    Args:
        per_minute: Requests that flow back in a minute; 0 turns the limiter off.
        burst: Requests that may come at once.
    """

    def __init__(self, per_minute: float, burst: int) -> None:
        self._per_s = per_minute / 60.0
        self._burst = float(burst)
        # Those that asked last are at the end; the first are forgotten when there are too many.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: str) -> float:
        """Take one request of a client; return 0, or the seconds until there would be one."""
        if self._per_s <= 0:
            return 0.0
        now_s = monotonic()
        left, seen_s = self._buckets.pop(client, (self._burst, now_s))
        left = min(self._burst, left + (now_s - seen_s) * self._per_s)
        is_allowed = left >= 1.0
        self._buckets[client] = (left - is_allowed, now_s)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1.0 - left) / self._per_s
