"""What the driver raises beyond poot-core's tree."""

from __future__ import annotations

from poot_core import RequestError

__all__ = ["ContextLengthError", "OverloadedError"]


class ContextLengthError(RequestError):
    """A prompt does not fit into the context; carries both numbers.

    Attributes:
        code: the name a server reports.
        prompt_tokens: Tokens of the prompt.
        context_tokens: Tokens that fit.
    """

    code = "context_length_exceeded"
    prompt_tokens: int
    context_tokens: int

    def __init__(
        self,
        message: str,
        *,
        prompt_tokens: int,
        context_tokens: int,
        status: int = 400,
        field: str | None = "prompt",
    ) -> None:
        super().__init__(message, status=status, field=field)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        # Rebuilt from its details when it crosses a process border.
        self.details.update(prompt_tokens=prompt_tokens, context_tokens=context_tokens)

    @classmethod
    def of(cls, prompt_tokens: int, context_tokens: int) -> ContextLengthError:
        """Return the error for a prompt of ``prompt_tokens`` in a context of ``context_tokens``."""
        return cls(
            f"the prompt has {prompt_tokens} tokens and the context holds {context_tokens}, one of "
            "which the answer needs; shorten the prompt or open the model with a larger context",
            prompt_tokens=prompt_tokens,
            context_tokens=context_tokens,
        )


class OverloadedError(RequestError):
    """There is no room for a request now; refused before any work.

    Attributes:
        code: the name a server reports.
        retry_after_s: Seconds after which trying again has a chance.
    """

    code = "overloaded"
    retry_after_s: float

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        status: int = 429,
        field: str | None = None,
    ) -> None:
        super().__init__(message, status=status, field=field)
        self.retry_after_s = retry_after_s
        self.details.update(retry_after_s=retry_after_s)
