"""Log-probabilities as the APIs write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poot_llm import Logprobs
from poot_llm.text import Tokenizer
from poot_serve._wire.chat import ChatLogprobs, TokenLogprob, TopLogprob
from poot_serve._wire.completions import CompletionLogprobs

__all__ = ["chat_logprobs", "completion_logprobs", "prompt_logprobs", "token_text"]


def token_bytes(token_id: int, tokenizer: Tokenizer | None) -> bytes:
    """Return the bytes of a token, control tokens spelled out."""
    if tokenizer is None:
        return b""
    table = tokenizer.table
    if table is None:
        return tokenizer.decode([token_id], skips_special=False, continues=True).encode()
    return table.bytes_of(token_id, is_first=False)


def token_text(token_id: int, tokenizer: Tokenizer | None) -> str:
    """Return a token as text: half characters become U+FFFD."""
    if tokenizer is None:
        return f"token_id:{token_id}"
    return token_bytes(token_id, tokenizer).decode("utf-8", "replace")


def chat_logprobs(entries: Sequence[Logprobs], tokenizer: Tokenizer | None) -> ChatLogprobs:
    """Return the ``logprobs`` of a chat choice."""

    def named(token_id: int) -> dict[str, Any]:
        data = token_bytes(token_id, tokenizer)
        return {"token": data.decode("utf-8", "replace"), "bytes": list(data)}

    return ChatLogprobs(
        content=[
            TokenLogprob(
                **named(one.token_id),
                logprob=one.logprob,
                top_logprobs=[
                    TopLogprob(**named(token_id), logprob=value) for token_id, value in one.top
                ],
            )
            for one in entries
        ]
    )


def completion_logprobs(
    entries: Sequence[Logprobs | None],
    token_ids: Sequence[int],
    tokenizer: Tokenizer | None,
    *,
    first_offset: int = 0,
) -> CompletionLogprobs:
    """Return the ``logprobs`` of a completion choice.

    Args:
        entries: One for each token; None for the first of a prompt.
        token_ids: The tokens.
        tokenizer: Names the tokens.
        first_offset: Characters of this choice before the first token.
    """
    names = [token_text(token_id, tokenizer) for token_id in token_ids]
    offsets: list[int] = []
    at = first_offset
    for name in names:
        offsets.append(at)
        at += len(name)
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[None if one is None else one.logprob for one in entries],
        top_logprobs=[None if one is None else _top(one, tokenizer) for one in entries],
        text_offset=offsets,
    )


def _top(one: Logprobs, tokenizer: Tokenizer | None) -> dict[str, float]:
    """Return the most likely tokens by name; of several with one name the most likely counts."""
    found: dict[str, float] = {}
    for token_id, value in one.top:
        found.setdefault(token_text(token_id, tokenizer), value)
    # The token that stands there is always named, as evaluation harnesses look for it.
    found.setdefault(token_text(one.token_id, tokenizer), one.logprob)
    return found


def prompt_logprobs(
    entries: Sequence[Logprobs | None], tokenizer: Tokenizer | None
) -> list[dict[str, Any] | None]:
    """Return log-probabilities of a prompt by token id, one object a position."""
    found: list[dict[str, Any] | None] = []
    for one in entries:
        if one is None:
            found.append(None)
            continue
        values = {one.token_id: one.logprob, **dict(one.top)}
        found.append(
            {
                str(token_id): {
                    "logprob": value,
                    "decoded_token": token_text(token_id, tokenizer),
                }
                for token_id, value in values.items()
            }
        )
    return found
