"""One choice of one request: token events of the engine become text, logprobs and a finish reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from poot_core import DeviceError, PootError
from poot_llm import Logprobs, SamplingParams
from poot_llm.text import TextStream, Tokenizer
from poot_serve._engine_process import Ticket
from poot_serve._state import ServerState

__all__ = ["Generation", "Piece", "begin_generations"]


@dataclass(slots=True)
class Piece:
    """What came at once.

    Attributes:
        text: New text, often empty; None where the model has no tokenizer.
        token_ids: New tokens.
        logprobs: One entry a new token where asked for.
        finish_reason: Why the choice ended, or None.
    """

    text: str | None
    token_ids: list[int]
    logprobs: list[Logprobs] | None
    finish_reason: str | None


class Generation:
    """Iterates over the pieces of one choice.

    Args:
        ticket: The sequence in the engine; closed when the iteration ends, however it ends.
        tokenizer: Turns tokens into text, or None.
        params: Stop strings are matched here, not in the engine.
    """

    def __init__(self, ticket: Ticket, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self._ticket = ticket
        self._text = None if tokenizer is None else TextStream(tokenizer.detokenizer(), params)
        self.completion_tokens = 0

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield pieces until the choice ends.

        Raises:
            RequestError: If the engine refused the sequence.
            DeviceError: If the engine died, or a step failed for this sequence.
        """
        try:
            while True:
                event = await self._ticket.next_event()
                if event.finish_reason == "error":
                    raise DeviceError(event.error or "the step failed for this request")
                self.completion_tokens += len(event.token_ids)
                reason = event.finish_reason
                text = None
                if self._text is not None:
                    text = self._text.push(event.token_ids, reason)
                    if self._text.is_stopped:
                        reason = "stop"
                yield Piece(text, event.token_ids, event.logprobs, reason)
                if reason is not None:
                    return
        finally:
            self._ticket.close()

    def close(self) -> None:
        """Cancel the sequence."""
        self._ticket.close()


def begin_generations(
    state: ServerState, prompts: list[list[int]], params: SamplingParams, count: int
) -> list[Generation]:
    """Return ``count`` choices of each prompt, all of them under way, or none.

    Raises:
        RequestError: As ``EngineProcess.submit``; those that were under way are cancelled.
    """
    generations: list[Generation] = []
    try:
        for ids in prompts:
            for choice in range(count):
                ticket = state.engine.submit(ids, params, choice=choice)
                generations.append(Generation(ticket, state.tokenizer, params))
    except PootError:
        for generation in generations:
            generation.close()
        raise
    return generations
