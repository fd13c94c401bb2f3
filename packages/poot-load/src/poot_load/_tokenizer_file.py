"""A tokenizer read from a directory's tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from poot_load._refusal import refusal
from poot_load._token_bytes import piece_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["FileTokenizer"]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the loaded tokenizer and the configurations say together."""

    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    add_bos: bool
    add_eos: bool
    special_ids: frozenset[int]
    added_ids: frozenset[int]
    is_byte_level: bool


class FileTokenizer:
    """Implements :class:`poot_load.TokenizerData`; the file is parsed when first needed."""

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any],
    ) -> None:
        self._path = path
        self._settings = settings
        self._config = config
        self._generation_config = generation_config
        self._lock = Lock()
        self._loaded: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        with self._lock:
            if self._loaded is None:
                try:
                    self._loaded = Tokenizer.from_file(str(self._path))
                except Exception as error:  # the library raises bare ones
                    allowed = "a tokenizer that the tokenizers library reads"
                    raise refusal(self._path, "content", str(error), allowed) from None
                # Files of encoders often ask for both, which would change what is encoded in silence.
                self._loaded.no_truncation()
                self._loaded.no_padding()
            return self._loaded

    @property
    def vocab_size(self) -> int:
        return self._facts.vocab_size

    @property
    def bos_id(self) -> int | None:
        return self._facts.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self._facts.eos_ids

    @property
    def pad_id(self) -> int | None:
        return self._facts.pad_id

    @property
    def add_bos(self) -> bool:
        return self._facts.add_bos

    @property
    def add_eos(self) -> bool:
        return self._facts.add_eos

    @property
    def special_ids(self) -> frozenset[int]:
        return self._facts.special_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(
        self, ids: Iterable[int], *, skip_special_tokens: bool = True, is_continuation: bool = False
    ) -> str:
        if not is_continuation:
            return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        kept = [i for i in ids if not (skip_special_tokens and i in self.special_ids)]
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        text = self.token_text(token)
        if token in self._facts.added_ids:
            return text.encode()
        return piece_bytes(text, by_bytes=self._facts.is_byte_level)

    def token_text(self, token: int) -> str:
        text = self.tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
        if text is None:
            raise IndexError(f"token id {token} is not in the vocabulary of {self._path}")
        return text

    @cached_property
    def _facts(self) -> _Facts:
        tokenizer = self.tokenizer
        added = tokenizer.get_added_tokens_decoder()
        decoder: Any = tokenizer.decoder
        around = tokenizer.encode("").ids  # what the post-processor puts around a text
        bos, eos = self._special_id("bos"), self._end_ids()
        return _Facts(
            vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
            bos_id=bos,
            eos_ids=eos,
            pad_id=self._special_id("pad"),
            add_bos=bos is not None and bos in around[:1],
            add_eos=any(token in eos for token in around[-1:]),
            special_ids=frozenset(token for token, entry in added.items() if entry.special),
            added_ids=frozenset(added),
            is_byte_level=decoder is not None and b'"ByteLevel"' in decoder.__getstate__(),
        )

    def _end_ids(self) -> tuple[int, ...]:
        found: list[int] = []
        for config in (self._config, self._generation_config):
            value = config.get("eos_token_id")
            items = cast("list[object]", value) if isinstance(value, list) else [value]
            found += [item for item in items if type(item) is int]
        if not found and (token := self._special_id("eos")) is not None:
            found = [token]
        return tuple(dict.fromkeys(found))

    def _special_id(self, kind: str) -> int | None:
        value = self._settings.get(f"{kind}_token")
        text = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            return self.tokenizer.token_to_id(text)
        token = self._config.get(f"{kind}_token_id")
        return token if type(token) is int else None
