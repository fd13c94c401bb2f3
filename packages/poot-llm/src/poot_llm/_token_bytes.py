"""The bytes that each token id stands for, where a tokenizer's decoder works token by token.

Two kinds do: byte-level BPE (GPT-2, arXiv: "Language Models are Unsupervised Multitask Learners"), whose
tokens spell bytes as printable characters, and sentencepiece with byte fallback, whose tokens are text
with U+2581 for a space or ``<0xNN>`` for a byte. Anything else is None here and decoded in windows.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from poot_load import TokenizerData

__all__ = ["DataBytes", "TokenBytes", "TokenTable"]


class TokenTable(Protocol):
    """What a detokenizer needs to know of a vocabulary."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens, which a reader does not want to see."""
        ...

    @property
    def strips_spaces(self) -> int:
        """Spaces that are taken off the front of a text."""
        ...

    def bytes_of(self, token_id: int, *, is_first: bool = False) -> bytes:
        """Return the bytes of a token; none for an id that names no token."""
        ...


class DataBytes:
    """Bytes of tokens by a checkpoint's own vocabulary, for which no tokenizer need be built."""

    strips_spaces = 0  # done where the first token is spelled

    def __init__(self, data: TokenizerData) -> None:
        self._data = data
        self._cache: dict[int, bytes] = {}

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens, which a reader does not want to see."""
        return self._data.special_ids

    def bytes_of(self, token_id: int, *, is_first: bool = False) -> bytes:
        """Return the bytes of a token; none for an id that names no token."""
        found = self._cache.get(token_id)
        if found is None:
            try:
                found = self._data.token_bytes(token_id)
            except IndexError:  # logits may be wider than the vocabulary
                found = b""
            self._cache[token_id] = found
        if is_first and found.startswith(b" ") and self._data.decode([token_id])[:1] != " ":
            return found[1:]
        return found


_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_table() -> dict[str, int]:
    """Return which byte each character of a byte-level token spells."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return table


class TokenBytes:
    """Bytes of tokens, looked up once each.

    Attributes:
        strips_spaces: Spaces that the decoder takes off the front of a text.
        strips_first_mark: Whether the decoder drops the space mark of a text's first token.
        special_ids: Control tokens, which a reader does not want to see.
    """

    def __init__(self, backend: Backend, steps: list[dict[str, Any]]) -> None:
        self._backend = backend
        self._cache: dict[int, bytes] = {}
        self._characters: dict[str, int] | None = None
        self._replacements: list[tuple[str, str]] = []
        self._has_byte_fallback = False
        self.strips_spaces = 0
        self.strips_first_mark = False
        self.special_ids = special_ids(backend)
        for step in steps:
            self._apply(step)

    @classmethod
    def of(cls, backend: Backend) -> TokenBytes | None:
        """Return the table of a tokenizer, or None where its decoder does not work token by token."""
        steps = _decoder_steps(backend)
        return cls(backend, steps) if _is_token_by_token(steps) else None

    def bytes_of(self, token_id: int, *, is_first: bool = False) -> bytes:
        """Return the bytes of a token; none for an id that names no token."""
        if is_first and self.strips_first_mark:
            token = self._backend.id_to_token(token_id)
            mark = self._replacements[0][0]
            return b"" if token is None else self._spell(token.replace(mark, ""))
        found = self._cache.get(token_id)
        if found is None:
            token = self._backend.id_to_token(token_id)
            found = self._cache[token_id] = b"" if token is None else self._spell(token)
        return found

    def _apply(self, step: dict[str, Any]) -> None:
        match step["type"]:
            case "ByteLevel":
                self._characters = _byte_level_table()
            case "Replace":
                self._replacements.append((step["pattern"]["String"], step["content"]))
            case "Metaspace":
                self._replacements.append((step["replacement"], " "))
                self.strips_first_mark = step.get("prepend_scheme", "always") != "never"
            case "ByteFallback":
                self._has_byte_fallback = True
            case "Strip":
                self.strips_spaces = step["start"]
            case _:  # Fuse joins what is joined here anyway
                pass

    def _spell(self, token: str) -> bytes:
        if self._characters is not None:
            table = self._characters
            # A token with any other character is an added one and stands for its own text.
            if all(character in table for character in token):
                return bytes(table[character] for character in token)
            return token.encode("utf-8", "replace")
        if self._has_byte_fallback and (match := _BYTE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode("utf-8", "replace")


def special_ids(backend: Backend) -> frozenset[int]:
    """Return the ids of a tokenizer's control tokens."""
    added = cast("dict[int, Any]", backend.get_added_tokens_decoder())
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _decoder_steps(backend: Backend) -> list[dict[str, Any]]:
    decoder = cast(Any, backend).decoder
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]


def _is_token_by_token(steps: list[dict[str, Any]]) -> bool:
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return True
    if not kinds or not set(kinds) <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        return False
    for place, step in enumerate(steps):
        match step["type"]:
            case "Replace":
                # A longer pattern could match across tokens.
                if len(step["pattern"].get("String", "")) != 1:
                    return False
            case "Strip":
                if step["content"] != " " or step["stop"] or "Fuse" not in kinds[:place]:
                    return False
            case "Metaspace" if place:
                return False
            case _:
                pass
    return True
