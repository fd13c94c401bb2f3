"""A tokenizer rebuilt from a GGUF's vocabulary, loading as little as the text needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from poot_load._token_bytes import piece_bytes
from poot_load._tokenizer_build import build_tokenizer, make_partial_encoder
from poot_load._tokenizer_cache import load_entry, store_entry
from poot_load._vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["VocabularyTokenizer"]

_BUILDER_VERSION = 2  # part of the cache key: raise it when the same file must build differently
_PARTIAL_CHARS = 4096  # longer texts take the whole tokenizer


class VocabularyTokenizer:
    """Rebuilt from a GGUF's vocabulary."""

    def __init__(self, vocabulary: Vocabulary, cache_dir: Path | None) -> None:
        self._vocabulary = vocabulary
        self._cache_dir = cache_dir
        self._lock = Lock()
        self._whole: Tokenizer | None = None
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.pad_id = vocabulary.pad_id
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self.special_ids = frozenset(
            vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN).tolist()
        )
        first = () if vocabulary.eos_id is None else (vocabulary.eos_id,)
        self.eos_ids = tuple(dict.fromkeys(first + vocabulary.end_ids))

    @property
    def tokenizer(self) -> Tokenizer:
        with self._lock:
            if self._whole is None:
                self._whole = self._load_or_build()
            return self._whole

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if self._whole is not None or len(text) > _PARTIAL_CHARS:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        ids = self._encode_partially(text)
        if add_special_tokens:
            before = [self.bos_id] if self.add_bos else []
            after = [self._vocabulary.eos_id] if self.add_eos else []
            ids = [token for token in (*before, *ids, *after) if token is not None]
        return ids

    def decode(
        self, ids: Iterable[int], *, skip_special_tokens: bool = True, is_continuation: bool = False
    ) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i in self.special_ids)]
        data = b"".join(map(self.token_bytes, kept))
        if self._vocabulary.add_space_prefix and not is_continuation:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        text = self.token_text(token)
        kind = int(self._vocabulary.types[token])
        if kind in {TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN}:
            return text.encode()
        return piece_bytes(text, by_bytes=not self._vocabulary.is_sentencepiece)

    def token_text(self, token: int) -> str:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"token id {token} is not in 0..{self.vocab_size - 1}")
        return self._vocabulary.tokens[token]

    @cached_property
    def _encode_partially(self) -> Callable[[str], list[int]]:
        return make_partial_encoder(self._vocabulary)

    def _load_or_build(self) -> Tokenizer:
        from tokenizers import Tokenizer

        key = f"{self._vocabulary.digest()}-{_BUILDER_VERSION}"
        if (stored := load_entry(self._cache_dir, key)) is not None:
            try:
                return Tokenizer.from_str(stored.decode())
            except Exception:
                pass
        built = build_tokenizer(self._vocabulary)
        store_entry(self._cache_dir, key, built.to_str().encode())
        return built
