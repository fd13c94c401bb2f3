"""Text to ids and back for any checkpoint: the interface, and the choice of what is behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from poot_load._gguf import GgufFile
from poot_load._tokenizer_cache import default_cache_dir
from poot_load._tokenizer_file import FileTokenizer
from poot_load._tokenizer_gguf import VocabularyTokenizer
from poot_load._vocabulary import read_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from poot_load._checkpoint import Checkpoint

__all__ = ["TokenizerData", "load_tokenizer"]


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
        return VocabularyTokenizer(read_vocabulary(source), default_cache_dir())
    if source is None or source.tokenizer is None:
        return None
    return FileTokenizer(
        source.tokenizer, source.settings, checkpoint.config, checkpoint.generation_config
    )
