"""Text to ids and back for any checkpoint, loading as little as the text needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from poot_load._directory import TokenizerFiles
from poot_load._gguf import GgufFile
from poot_load._refusal import refusal
from poot_load._tokenizer_build import SPACE, build_tokenizer, make_partial_encoder
from poot_load._tokenizer_cache import default_cache_dir, load_entry, store_entry
from poot_load._vocabulary import TokenType, Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from poot_load._checkpoint import Checkpoint

__all__ = ["TokenizerData", "load_tokenizer"]

_BUILDER_VERSION = 1  # part of the cache key: raise it when the same file must build differently
_PARTIAL_CHARS = 4096  # longer texts take the whole tokenizer
_PARTIAL_USES = 8  # and so do further texts after so many
_BYTE_PIECE = re.compile(r"^<0x([0-9A-F]{2})>$")


class TokenizerData(Protocol):
    """What a checkpoint knows of its tokenizer.

    Attributes:
        vocab_size: Ids are below this; a model's logits may be wider.
        bos_id: Begin of sequence, or None.
        eos_ids: Ids that end generation; the file's own EOS first.
        pad_id: Padding, or None.
        add_bos: Whether :meth:`encode` puts BOS in front.
        add_eos: Whether :meth:`encode` appends EOS.
        special_ids: Ids of control tokens, which :meth:`decode` leaves out.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def pad_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def add_eos(self) -> bool: ...
    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The whole tokenizer; built or loaded when first asked for (up to seconds)."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with BOS and EOS as the checkpoint has them."""
        ...

    def decode(
        self, ids: Iterable[int], *, skip_special_tokens: bool = True, is_continuation: bool = False
    ) -> str:
        """Return the text of ids; bytes that are no UTF-8 become replacement characters.

        Args:
            ids: Token ids.
            skip_special_tokens: Whether control tokens are left out.
            is_continuation: Whether other text stands before; else the space that some vocabularies
                put before a text is taken away again.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that one token stands for; the text of a control token.

        Raises:
            IndexError: If there is no such token.
        """
        ...

    def token_text(self, token: int) -> str:
        """Return the piece as the vocabulary spells it.

        Raises:
            IndexError: If there is no such token.
        """
        ...


def load_tokenizer(checkpoint: Checkpoint) -> TokenizerData | None:
    """Return a checkpoint's tokenizer, or None if it has none; nothing large is loaded yet.

    Raises:
        CheckpointError: If the data is malformed or of a kind that poot does not know.
    """
    source = checkpoint.tokenizer_source
    if isinstance(source, GgufFile):
        return _VocabularyTokenizer(read_vocabulary(source), default_cache_dir())
    if source is None or source.tokenizer is None:
        return None
    return _FileTokenizer(source.tokenizer, source, checkpoint)


class _VocabularyTokenizer:
    """Rebuilt from a GGUF's vocabulary."""

    def __init__(self, vocabulary: Vocabulary, cache_dir: Path | None) -> None:
        self._vocabulary = vocabulary
        self._cache_dir = cache_dir
        self._lock = Lock()
        self._whole: Tokenizer | None = None
        self._num_partial = 0
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.pad_id = vocabulary.pad_id
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        first = () if vocabulary.eos_id is None else (vocabulary.eos_id,)
        self.eos_ids = tuple(dict.fromkeys(first + vocabulary.end_ids))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN)
        return frozenset(self._vocabulary.of_type(*kinds).tolist())

    @property
    def tokenizer(self) -> Tokenizer:
        with self._lock:
            if self._whole is None:
                self._whole = self._load_or_build()
            return self._whole

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if (
            self._whole is not None
            or len(text) > _PARTIAL_CHARS
            or self._num_partial >= _PARTIAL_USES
        ):
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        self._num_partial += 1
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
        return _piece_bytes(text, by_bytes=not self._vocabulary.is_sentencepiece)

    def token_text(self, token: int) -> str:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"token id {token} is not in 0..{self.vocab_size - 1}")
        return self._vocabulary.tokens[token]

    @cached_property
    def _encode_partially(self) -> Any:
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


class _FileTokenizer:
    """Read from a directory's tokenizer.json."""

    def __init__(self, path: Path, files: TokenizerFiles, checkpoint: Checkpoint) -> None:
        self._path = path
        self._files = files
        self._checkpoint = checkpoint
        self._lock = Lock()
        self._loaded: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        with self._lock:
            if self._loaded is None:
                try:
                    self._loaded = Tokenizer.from_file(str(self._path))
                except Exception as error:  # the library raises bare Exception
                    allowed = "a tokenizer that the tokenizers library reads"
                    raise refusal(self._path, "content", str(error), allowed) from None
            return self._loaded

    @cached_property
    def vocab_size(self) -> int:
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)

    @cached_property
    def bos_id(self) -> int | None:
        return self._special("bos")

    @cached_property
    def pad_id(self) -> int | None:
        return self._special("pad")

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        found: list[int] = []
        for config in (self._checkpoint.config, self._checkpoint.generation_config):
            value = config.get("eos_token_id")
            found += [i for i in (value if isinstance(value, list) else [value]) if type(i) is int]
        if not found and (token := self._special("eos")) is not None:
            found = [token]
        return tuple(dict.fromkeys(found))

    @cached_property
    def add_bos(self) -> bool:
        return self.bos_id is not None and self.bos_id in self.tokenizer.encode("").ids

    @cached_property
    def add_eos(self) -> bool:
        return any(token in self.eos_ids for token in self.tokenizer.encode("").ids[-1:])

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
        if token in self._added_ids:
            return text.encode()
        return _piece_bytes(text, by_bytes=self._is_byte_level)

    def token_text(self, token: int) -> str:
        text = self.tokenizer.id_to_token(token) if token >= 0 else None
        if text is None:
            raise IndexError(f"token id {token} is not in the vocabulary of {self._path}")
        return text

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.tokenizer.get_added_tokens_decoder())

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder: Any = self.tokenizer.decoder
        return decoder is not None and '"ByteLevel"' in json.dumps(
            json.loads(decoder.__getstate__())
        )

    def _special(self, kind: str) -> int | None:
        value = self._files.settings.get(f"{kind}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            return self.tokenizer.token_to_id(text)
        token = self._checkpoint.config.get(f"{kind}_token_id")
        return token if type(token) is int else None


def _piece_bytes(text: str, *, by_bytes: bool) -> bytes:
    if by_bytes:
        table = _byte_of_character()
        try:
            return bytes([table[character] for character in text])
        except KeyError:
            return text.encode()  # a piece that was added as plain text
    if (match := _BYTE_PIECE.match(text)) is not None:
        return bytes([int(match[1], 16)])
    return text.replace(SPACE, " ").encode()


@cache
def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's printable stand-ins: visible Latin-1 as itself, the rest from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in visible}
    hidden = [byte for byte in range(256) if chr(byte) not in table]
    return table | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
