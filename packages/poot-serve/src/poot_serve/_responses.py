"""Bodies of answers in the OpenAI dialect."""

from __future__ import annotations

from typing import Any

from poot_core import PootError, RequestError
from poot_llm import Logprobs
from poot_llm.text import Tokenizer

__all__ = ["chat_logprobs", "completion_logprobs", "error_body", "sse", "usage"]

_TYPES = {
    400: "invalid_request_error",
    413: "invalid_request_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_body(error: PootError) -> tuple[int, dict[str, Any]]:
    """Return the status and the body that report an error."""
    if isinstance(error, RequestError):
        kind = _TYPES.get(error.status, "unavailable_error" if error.status == 503 else "error")
        code = error.code
        status, field = error.status, error.field
    else:
        kind, code, status, field = "server_error", None, 500, None
    return status, {"error": {"message": error.message, "type": kind, "param": field, "code": code}}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return a usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def sse(body: bytes) -> bytes:
    """Return one server-sent event."""
    return b"data: " + body + b"\n\n"


def chat_logprobs(entries: list[Logprobs], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the ``logprobs`` object of a chat choice."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        data = _bytes_of(token_id, tokenizer)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}

    return {
        "content": [
            {
                **entry(one.token_id, one.logprob),
                "top_logprobs": [entry(token_id, value) for token_id, value in one.top],
            }
            for one in entries
        ],
        "refusal": None,
    }


def completion_logprobs(
    entries: list[Logprobs], tokenizer: Tokenizer | None, *, first_offset: int
) -> dict[str, Any]:
    """Return the ``logprobs`` object of a completion choice.

    Args:
        entries: One for each token.
        tokenizer: Names the tokens.
        first_offset: Characters of this choice before the first entry.
    """

    def name(token_id: int) -> str:
        if tokenizer is None:
            return f"token_id:{token_id}"
        return _bytes_of(token_id, tokenizer).decode("utf-8", "replace")

    offsets: list[int] = []
    at = first_offset
    for one in entries:
        offsets.append(at)
        at += len(name(one.token_id))
    return {
        "tokens": [name(one.token_id) for one in entries],
        "token_logprobs": [one.logprob for one in entries],
        "top_logprobs": [{name(i): value for i, value in one.top} for one in entries],
        "text_offset": offsets,
    }


def _bytes_of(token_id: int, tokenizer: Tokenizer | None) -> bytes:
    if tokenizer is None:
        return b""
    table = tokenizer.table
    if table is None:
        return tokenizer.decode([token_id], skips_special=False, continues=True).encode()
    return table.bytes_of(token_id, is_first=False)
