"""One choice of one request: token events of the engine become deltas, logprobs and a finish reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from poot_core import DeviceError
from poot_llm import Logprobs, SamplingParams
from poot_llm.text import TextStream, Tokenizer
from poot_serve._engine_process import Ticket
from poot_serve._metrics import Metrics
from poot_serve._parsing.deltas import CallBegin, Content, Delta, Parser, Reasoning
from poot_serve._parsing.lexer import Lexer
from poot_serve._record import Record

__all__ = ["AnswerReader", "Choice", "IdsReader", "Reader", "TextReader", "Update"]


class Reader(Protocol):
    """Turns tokens into deltas."""

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, or None."""
        ...

    def push(self, token_ids: Sequence[int], finish_reason: str | None) -> list[Delta]:
        """Return what is certain once these tokens are known."""
        ...


class IdsReader:
    """For models without a tokenizer: there is no text."""

    stop = None

    def push(self, token_ids: Sequence[int], finish_reason: str | None) -> list[Delta]:
        """Return nothing."""
        return []


class TextReader:
    """Everything is text.

    Args:
        tokenizer: The model's.
        params: Stop strings are matched here, not in the engine.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._stream = TextStream(tokenizer.detokenizer(continues=True), params)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._stream.stop

    def push(self, token_ids: Sequence[int], finish_reason: str | None) -> list[Delta]:
        """Return the new text."""
        text = self._stream.push(token_ids, finish_reason)
        return [Content(text)] if text else []


class AnswerReader:
    """Content, reasoning and calls.

    Args:
        lexer: Cuts tokens into texts and markers.
        parser: Reads them.
    """

    def __init__(self, lexer: Lexer, parser: Parser) -> None:
        self._lexer = lexer
        self._parser = parser

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._lexer.stop

    def push(self, token_ids: Sequence[int], finish_reason: str | None) -> list[Delta]:
        """Return the new deltas."""
        deltas: list[Delta] = []
        for item in self._lexer.push(token_ids, finish_reason):
            deltas += self._parser.push(item)
        if finish_reason is not None or self._lexer.is_stopped:
            deltas += self._parser.finish()
        return deltas


@dataclass(slots=True)
class Update:
    """What came at once.

    Attributes:
        deltas: New parts of the answer, often none.
        token_ids: New tokens.
        logprobs: One entry a new token where asked for.
        finish_reason: ``stop``, ``length`` or ``tool_calls`` where the choice ended.
        prompt_logprobs: One entry a token of the prompt, with the first event where asked for.
    """

    deltas: list[Delta]
    token_ids: list[int]
    logprobs: list[Logprobs] | None
    finish_reason: str | None
    prompt_logprobs: list[Logprobs | None] | None = None


class Choice:
    """One sequence under way.

    Args:
        ticket: The sequence in the engine.
        reader: Turns its tokens into deltas.
        record: Counts of the request.
        metrics: Latencies are observed here.
    """

    def __init__(self, ticket: Ticket, reader: Reader, record: Record, metrics: Metrics) -> None:
        self._ticket = ticket
        self._reader = reader
        self._record = record
        self._metrics = metrics
        self._last_s = 0.0
        self._has_calls = False
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.stop: str | None = None

    async def next_update(self) -> Update:
        """Return what came next.

        Raises:
            RequestError: If the engine refused the sequence, or its time is up.
            DeviceError: If the engine died, or a step failed for this sequence.
        """
        event = await self._ticket.next_event()
        if event.finish_reason == "error":
            raise DeviceError(event.error or "the step failed for this request")
        self._observe(len(event.token_ids))
        if event.cached_tokens is not None:
            self.cached_tokens = event.cached_tokens
            self._record.cached_tokens += event.cached_tokens
        if event.timings is not None:
            self._record.queue_s = max(self._record.queue_s or 0.0, event.timings.queue_s)
        reason: str | None = event.finish_reason
        deltas = self._reader.push(event.token_ids, reason)
        for delta in deltas:
            if isinstance(delta, CallBegin):
                self._has_calls = True
        if deltas and isinstance(deltas[0], Reasoning):
            self.reasoning_tokens += len(event.token_ids)
        self.stop = self._reader.stop
        if self.stop is not None:
            reason = "stop"
            self._ticket.close()
        if reason is not None:
            if reason == "scored":
                reason = "length"
            elif reason == "stop" and self._has_calls:
                reason = "tool_calls"
            self._record.finish_reasons.append(reason)
        return Update(deltas, event.token_ids, event.logprobs, reason, event.prompt_logprobs)

    def close(self) -> None:
        """Cancel the sequence unless it has ended."""
        self._ticket.close()

    def _observe(self, num_tokens: int) -> None:
        if not num_tokens:
            return
        self.completion_tokens += num_tokens
        self._record.completion_tokens += num_tokens
        now_s = perf_counter()
        if self._last_s:
            self._metrics.inter_token.observe(now_s - self._last_s)
        else:
            first_s = now_s - self._record.started_s
            if self._record.first_token_s is None:
                self._record.first_token_s = first_s
            self._metrics.first_token.observe(first_s)
        self._last_s = now_s
