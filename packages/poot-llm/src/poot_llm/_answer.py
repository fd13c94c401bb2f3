"""Collects the events of one request into what a caller of ``LLM`` gets."""

from __future__ import annotations

from dataclasses import dataclass, field

from poot_llm._request import Timings, TokenEvent
from poot_llm._sampler import Logprobs
from poot_llm._text_stream import TextStream

__all__ = ["Answer", "Delta", "Output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What came since the delta before.

    Attributes:
        token_ids: New tokens.
        text: New text, or None without a tokenizer. It may lag behind the tokens: half a character and
            what may become a stop string are held back.
        logprobs: One entry a new token where the request asks for them.
        finish_reason: ``stop``, ``length`` or ``error`` on the last delta.
        error: What went wrong where the reason is ``error``.
        timings: Set with the finish reason.
    """

    token_ids: list[int]
    text: str | None
    logprobs: list[Logprobs] | None = None
    finish_reason: str | None = None
    error: str | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One finished answer.

    Attributes:
        prompt_ids: Tokens that went into the model.
        output_ids: Tokens that came out, an end token included.
        text: Their text without control tokens and stop strings, or None without a tokenizer.
        logprobs: One entry a token of the answer where the request asks for them.
        finish_reason: ``stop`` (an end token or a stop string), ``length`` or ``error``.
        timings: Where the time went.
        error: What went wrong where the reason is ``error``.
        prompt_logprobs: One entry a token of the prompt, None for the first, where the request asks.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    text: str | None
    logprobs: list[Logprobs] | None
    finish_reason: str
    timings: Timings
    error: str | None = None
    prompt_logprobs: list[Logprobs | None] | None = None


@dataclass(slots=True)
class Answer:
    """An answer under way.

    Attributes:
        request_id: Its id in the driver.
        prompt_ids: Its prompt.
        stream: Its text, or None without a tokenizer.
    """

    request_id: int
    prompt_ids: list[int]
    stream: TextStream | None
    output_ids: list[int] = field(default_factory=list[int])
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[Logprobs] | None = None
    prompt_logprobs: list[Logprobs | None] | None = None
    finish_reason: str | None = None
    error: str | None = None
    timings: Timings | None = None

    @property
    def is_stopped_by_text(self) -> bool:
        """Whether a stop string came while the driver knows of no end."""
        return self.finish_reason is None and self.stream is not None and self.stream.is_stopped

    def take(self, event: TokenEvent) -> Delta:
        """Add an event and return what it brought."""
        text = None
        if self.stream is not None:
            text = self.stream.push(event.token_ids, event.finish_reason)
            self.texts.append(text)
        self.output_ids += event.token_ids
        if event.logprobs is not None:
            self.logprobs = (self.logprobs or []) + event.logprobs
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        self.finish_reason, self.error, self.timings = (
            event.finish_reason, event.error, event.timings,
        )  # fmt: skip
        if self.finish_reason == "length" and self.stream is not None and self.stream.is_stopped:
            self.finish_reason = "stop"
        return Delta(
            token_ids=event.token_ids,
            text=text,
            logprobs=event.logprobs,
            finish_reason=self.finish_reason,
            error=event.error,
            timings=event.timings,
        )

    def stop_by_text(self, timings: Timings | None) -> None:
        """End the answer at its stop string.

        Args:
            timings: What the driver says on cancelling; None where it had ended by itself.
        """
        self.finish_reason = "stop"
        self.timings = timings or self.timings

    def output(self) -> Output:
        """Return the finished answer."""
        assert self.finish_reason is not None, "it is under way"
        assert self.timings is not None, "an end comes with timings"
        return Output(
            prompt_ids=self.prompt_ids,
            output_ids=self.output_ids,
            text=None if self.stream is None else "".join(self.texts),
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            timings=self.timings,
            error=self.error,
            prompt_logprobs=self.prompt_logprobs,
        )
