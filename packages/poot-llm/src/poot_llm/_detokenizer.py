"""Streaming detokenizers: token ids in, text out, never half a character and never one twice.

What a stream gives in all is what decoding all ids at once gives: for a decoder that works token by
token that is the tokens' bytes read as UTF-8, where a malformed sequence becomes one U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from poot_llm._token_bytes import TokenTable, special_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["BytesDetokenizer", "Detokenizer", "WindowDetokenizer", "decode_all"]

_WINDOW = 16
"""Tokens after which a window is given out though its end looks like half a character."""


class Detokenizer(Protocol):
    """Turns the tokens of one sequence into text; each token costs O(1) amortised."""

    def push(self, token_id: int) -> str:
        """Return the text that is certain once this token is known, often none."""
        ...

    def finish(self) -> str:
        """Return what was held back; nothing may be pushed after it."""
        ...


class BytesDetokenizer:
    """For decoders that work token by token.

    Args:
        table: Bytes of tokens.
        skips_special: Leave control tokens out.
        continues: The text goes on from a prompt, so that its first space is kept.
    """

    def __init__(self, table: TokenTable, *, skips_special: bool, continues: bool) -> None:
        self._table = table
        self._skipped = table.special_ids if skips_special else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first = not continues
        self._spaces_to_strip = 0 if continues else table.strips_spaces

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        if token_id in self._skipped:
            return ""
        data = self._table.bytes_of(token_id, is_first=self._is_first)
        self._is_first = False
        return self._strip(self._utf8.decode(data))

    def finish(self) -> str:
        """Return U+FFFD where the last character is incomplete."""
        return self._strip(self._utf8.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        while self._spaces_to_strip and text:
            if text[0] != " ":
                self._spaces_to_strip = 0
                break
            text = text[1:]
            self._spaces_to_strip -= 1
        return text


class WindowDetokenizer:
    """For any other decoder: decodes a short window and gives out what the new token added."""

    def __init__(self, backend: Backend, *, skips_special: bool) -> None:
        self._backend = backend
        self._skips_special = skips_special
        self._skipped = special_ids(backend) if skips_special else frozenset[int]()
        self._window: list[int] = []
        self._num_given = 0  # tokens at the front of the window whose text was given out

    def push(self, token_id: int) -> str:
        """Return what the token adds, or nothing while it may be half a character."""
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        return self._give(must=len(self._window) - self._num_given >= _WINDOW)

    def finish(self) -> str:
        """Return the text of the tokens that were held back."""
        return self._give(must=True)

    def _give(self, *, must: bool) -> str:
        before = self._decode(self._window[: self._num_given])
        after = self._decode(self._window)
        if not must and (len(after) <= len(before) or after.endswith("\ufffd")):
            return ""
        # The tokens just given out stay as context: a decoder may treat a first token apart.
        self._window = self._window[self._num_given :]
        self._num_given = len(self._window)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=self._skips_special)


def decode_all(detokenizer: Detokenizer, token_ids: Iterable[int]) -> str:
    """Return the text of a whole sequence."""
    parts = [detokenizer.push(token_id) for token_id in token_ids]
    parts.append(detokenizer.finish())
    return "".join(parts)
