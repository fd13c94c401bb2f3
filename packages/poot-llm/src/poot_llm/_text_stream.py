"""Token events to text: detokenizing and stop strings of one sequence."""

from __future__ import annotations

from collections.abc import Sequence

from poot_llm._detokenizer import Detokenizer
from poot_llm._sampling_params import SamplingParams
from poot_llm._stop import StopMatcher

__all__ = ["TextStream"]


class TextStream:
    """Text of one answer as its tokens come.

    Args:
        detokenizer: A fresh one.
        params: ``stop`` and ``min_tokens`` count here.
    """

    def __init__(self, detokenizer: Detokenizer, params: SamplingParams) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(params.stop)
        self._unchecked = params.min_tokens

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string came: the request can be cancelled, its finish reason is ``stop``."""
        return self._matcher.is_stopped

    @property
    def stop(self) -> str | None:
        """The stop string that came, or None."""
        return self._matcher.matched

    def push(self, token_ids: Sequence[int], finish_reason: str | None = None) -> str:
        """Return the text that is certain now.

        Args:
            token_ids: New tokens of an event.
            finish_reason: That of the event; with ``stop`` the last token ended the answer and has no
                text, and with any the text that was held back comes too.
        """
        visible = token_ids[:-1] if finish_reason == "stop" else token_ids
        parts: list[str] = []
        for token_id in visible:
            parts.append(self._check(self._detokenizer.push(token_id)))
            self._unchecked -= 1
        if finish_reason is not None:
            parts += [self._check(self._detokenizer.finish()), self._matcher.finish()]
        return "".join(parts)

    def _check(self, text: str) -> str:
        # Text of the first min_tokens tokens passes unread.
        return text if self._unchecked > 0 else self._matcher.push(text)
