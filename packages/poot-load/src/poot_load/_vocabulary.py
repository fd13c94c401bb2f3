"""A GGUF's own vocabulary: pieces, types, scores, merges and rules, checked but not yet built."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_load._arrays import StringArray
from poot_load._gguf import GgufFile
from poot_load._gguf_metadata import Metadata
from poot_load._pretokenizers import SCHEMES, Scheme
from poot_load._refusal import refusal

__all__ = ["TokenType", "Vocabulary", "read_vocabulary"]

_PREFIX = "tokenizer.ggml."

# Names of tokens that end a turn or a text; a file lists at most three of its own by id. Not among
# them is </s>: where it ends a text it is the EOS, and in gemma it is the tag of struck-out text.
_ENDS = frozenset(
    {
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
        "<|end_of_text|>", "<|return|>", "<EOT>",
    }
)  # fmt: skip


class TokenType(IntEnum):
    """What a piece is, as GGUF numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """Everything that a tokenizer is made from.

    Attributes:
        path: The file.
        is_sentencepiece: Whether pieces merge by score ("llama"), not by a list ("gpt2").
        scheme: Cutting rules of byte-level vocabularies; None for sentencepiece.
        tokens: Pieces by id.
        types: (vocabulary,), int32: a TokenType each.
        scores: (vocabulary,), float32; sentencepiece only.
        merges: Pairs in order, separated by a space; byte-level only.
        bos_id: Begin of sequence, or None.
        eos_id: End of sequence, or None.
        pad_id: Padding, or None.
        unk_id: Unknown piece, or None.
        end_ids: Further ids that end a text or a turn.
        add_bos: Whether encoding puts BOS in front.
        add_eos: Whether encoding appends EOS.
        add_space_prefix: Whether a space is put before a text; sentencepiece only.
        strips_after_special: Whether control tokens swallow the spaces after them (phi 3).
    """

    path: Path
    is_sentencepiece: bool
    scheme: Scheme | None
    tokens: StringArray
    types: NDArray[np.int32]
    scores: NDArray[np.float32] | None
    merges: StringArray | None
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unk_id: int | None
    end_ids: tuple[int, ...]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    strips_after_special: bool

    @cached_property
    def names(self) -> list[str]:
        """Pieces by id, decoded."""
        return self.tokens.to_list()

    @cached_property
    def pieces(self) -> dict[str, int]:
        """Ids by piece.

        Raises:
            CheckpointError: If two ids have the same piece.
        """
        names = self.names
        out = dict(zip(names, range(len(names)), strict=True))
        if len(out) != len(names):
            twice = next(name for index, name in enumerate(names) if out[name] != index)
            raise refusal(self.path, "'tokenizer.ggml.tokens'", f"{twice!r} twice", "distinct ones")
        return out

    def of_type(self, *kinds: TokenType) -> NDArray[np.int64]:
        """Return the ids of these types, ascending."""
        return np.flatnonzero(np.isin(self.types, kinds))

    @cached_property
    def added(self) -> dict[str, int]:
        """Pieces that are found in raw text before anything else, with their types."""
        kinds = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        found = self.of_type(*kinds)
        names = self.names
        pairs = zip(found.tolist(), self.types[found].tolist(), strict=True)
        return {names[token]: kind for token, kind in pairs}

    def digest(self) -> str:
        """Return a hash of all that the built tokenizer depends on."""
        state = hashlib.blake2b(digest_size=20)
        flags = (self.is_sentencepiece, self.scheme, self.unk_id, self.bos_id, self.eos_id)
        more = (self.add_bos, self.add_eos, self.add_space_prefix, self.strips_after_special)
        state.update(repr((flags, more)).encode())
        parts: list[Any] = [self.tokens.region(), self.types]
        parts += [part for part in (self.scores,) if part is not None]
        parts += [self.merges.region()] if self.merges is not None else []
        for part in parts:
            state.update(np.ascontiguousarray(part).view(np.uint8).data)
        return state.hexdigest()


def read_vocabulary(gguf: GgufFile) -> Vocabulary:
    """Return the vocabulary of a GGUF file.

    Raises:
        CheckpointError: If its kind or cutting rule is unknown, or its arrays do not fit together.
    """
    path = gguf.file.path
    meta = Metadata(path, gguf.metadata, _PREFIX)
    kind = meta.text("model")
    if kind not in {"llama", "gpt2"}:
        allowed = "'llama' (sentencepiece) or 'gpt2' (byte-level)"
        raise refusal(path, "'tokenizer.ggml.model'", repr(kind), allowed)
    is_sentencepiece = kind == "llama"
    scheme = None if is_sentencepiece else _scheme(path, meta.text("pre", "default"))
    if meta.flag("remove_extra_whitespaces", default=False):
        allowed = "False; poot does not squeeze spaces"
        raise refusal(path, "'tokenizer.ggml.remove_extra_whitespaces'", True, allowed)
    tokens = _strings(gguf, "tokens")
    count = len(tokens)
    types = _numbers(gguf, "token_type", np.int32, count)
    scores = _numbers(gguf, "scores", np.float32, count) if is_sentencepiece else None
    if is_sentencepiece and (scores is None or not np.isfinite(scores).all()):
        raise refusal(path, "'tokenizer.ggml.scores'", repr(scores), f"{count} finite numbers")
    if types is None:
        types = np.ones(count, dtype=np.int32)
    ids = {name: _id(meta, path, name, count) for name in ("bos", "eos", "padding", "unknown")}
    more = [_id(meta, path, name, count) for name in ("eot", "eom")]
    add_bos = is_sentencepiece or (scheme is not None and scheme.add_bos)
    return Vocabulary(
        path=path,
        is_sentencepiece=is_sentencepiece,
        scheme=scheme,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=None if is_sentencepiece else _strings(gguf, "merges"),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        pad_id=ids["padding"],
        unk_id=ids["unknown"],
        end_ids=tuple(i for i in more if i is not None) + _ends(tokens, types),
        add_bos=meta.flag("add_bos_token", default=add_bos) and ids["bos"] is not None,
        add_eos=meta.flag("add_eos_token", default=False) and ids["eos"] is not None,
        add_space_prefix=meta.flag("add_space_prefix", default=is_sentencepiece),
        strips_after_special=is_sentencepiece
        and gguf.metadata.get("general.architecture") == "phi3",
    )


def _scheme(path: Path, name: str) -> Scheme:
    if (scheme := SCHEMES.get(name)) is None:
        allowed = ", ".join(sorted(SCHEMES))
        raise refusal(path, "'tokenizer.ggml.pre'", repr(name), allowed)
    return scheme


def _strings(gguf: GgufFile, key: str) -> StringArray:
    value = gguf.metadata.get(_PREFIX + key)
    if not isinstance(value, StringArray) or not len(value):
        raise refusal(gguf.file.path, f"'{_PREFIX}{key}'", repr(value), "an array of strings")
    return value


def _numbers(gguf: GgufFile, key: str, dtype: Any, count: int) -> NDArray[Any] | None:
    value = gguf.metadata.get(_PREFIX + key)
    if value is None:
        return None
    wanted = np.dtype(dtype)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf" or len(value) != count:
        allowed = f"an array of {count} numbers, one a token"
        raise refusal(gguf.file.path, f"'{_PREFIX}{key}'", repr(value), allowed)
    return value.astype(wanted)


def _id(meta: Metadata, path: Path, name: str, count: int) -> int | None:
    key = f"{name}_token_id"
    # Converters write 2^32 - 1 where a model has no such token.
    if not meta.has(key) or meta.scalar(key) == 0xFFFFFFFF:
        return None
    found = meta.integer(key)
    if found >= count:
        raise refusal(path, f"'{_PREFIX}{key}'", found, f"0..{count - 1}")
    return found


def _ends(tokens: StringArray, types: NDArray[np.int32]) -> tuple[int, ...]:
    special = (types == TokenType.CONTROL) | (types == TokenType.USER_DEFINED)
    # A vocabulary may reserve thousands of control tokens: compare lengths before decoding.
    special &= np.isin(tokens.lengths, [len(name) for name in _ENDS])
    special = np.flatnonzero(special)
    return tuple(index for index in special.tolist() if tokens[index] in _ENDS)
