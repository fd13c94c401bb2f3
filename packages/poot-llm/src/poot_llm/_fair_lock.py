"""A lock that is handed on in order of arrival.

A thread that steps the driver in a loop gives the lock back for a moment only, and an ordinary lock
goes to whoever is quickest, which is the same thread again: others would starve.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from types import TracebackType

__all__ = ["FairLock"]


class FairLock:
    """A context manager; not reentrant."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._waiters: deque[Lock] = deque()
        self._is_held = False

    def __enter__(self) -> None:
        with self._mutex:
            if not self._is_held:
                self._is_held = True
                return
            turn = Lock()
            turn.acquire()
            self._waiters.append(turn)
        try:
            turn.acquire()
        except BaseException:  # an interrupt while waiting
            with self._mutex:
                if turn in self._waiters:
                    self._waiters.remove(turn)
                else:
                    self._hand_on()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._mutex:
            self._hand_on()

    def _hand_on(self) -> None:
        if self._waiters:
            self._waiters.popleft().release()
        else:
            self._is_held = False
