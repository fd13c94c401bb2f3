"""What every token stands for, in bytes: for constraints, and for texts that sampling must know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poot_llm._tokenizer import Tokenizer

if TYPE_CHECKING:
    from poot_llm._constraint import Constraint
    from poot_llm._grammar import GrammarCompiler, Matcher

__all__ = ["Vocabulary"]

_MOST_BREAKERS = 16


class Vocabulary:
    """The tokens of a model. Thread-safe; built when first asked for.

    Args:
        tokenizer: The checkpoint's tokenizer.
        vocab_size: Width of a row of logits; ids past the tokenizer's have no text.
        end_ids: Tokens that end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int]) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.end_ids = tuple(sorted(token_id for token_id in end_ids if token_id < vocab_size))
        self._lock = Lock()
        self._breakers: OrderedDict[tuple[str, ...], NDArray[np.bool_]] = OrderedDict()

    @cached_property
    def tokens(self) -> list[bytes]:
        """The bytes of each id, empty where it has none."""
        table = self.tokenizer.table
        known = min(self.vocab_size, self.tokenizer.vocab_size)
        if table is not None:
            found = [table.bytes_of(token_id) for token_id in range(known)]
        else:  # a decoder that works on whole texts: what it makes of the token inside one
            decode = self.tokenizer.decode
            found = [
                decode([token_id], skips_special=False, continues=True).encode()
                for token_id in range(known)
            ]
        return found + [b""] * (self.vocab_size - known)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Control tokens, which are no text."""
        from poot_llm._token_bytes import special_ids

        table = self.tokenizer.table
        found = special_ids(self.tokenizer.backend) if table is None else table.special_ids
        return frozenset(token_id for token_id in found if token_id < self.vocab_size)

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        from poot_llm._grammar import GrammarCompiler

        return GrammarCompiler(self)

    def warm(self) -> None:
        """Build what the first constraint would have to wait for (a second or more)."""
        from poot_llm._constraint import Constraint

        if self.end_ids:
            self.compile(Constraint.json_object())

    def compile(self, constraint: Constraint) -> Matcher:
        """Return a fresh matcher of a constraint; may take up to a second.

        Raises:
            RequestError: If it does not compile within its limits.
        """
        with self._lock:
            compiler = self._compiler
        return compiler.compile(constraint)

    def tokens_with(self, texts: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return (vocab_size,) whether a token's text holds one of some texts."""
        with self._lock:
            found = self._breakers.get(texts)
            if found is not None:
                self._breakers.move_to_end(texts)
                return found
            starts = np.cumsum([0, *map(len, self.tokens)])
            # A separator that is no UTF-8, so that nothing is found over a border.
            blob = b"\xff".join(self.tokens)
            starts = starts[:-1] + np.arange(self.vocab_size)
            found = np.zeros(self.vocab_size, np.bool_)
            for text in texts:
                needle = text.encode("utf-8", "surrogatepass")
                at = blob.find(needle)
                while at >= 0:
                    place = int(np.searchsorted(starts, at, side="right")) - 1
                    found[place] = True
                    if place + 1 == self.vocab_size:
                        break
                    at = blob.find(needle, int(starts[place + 1]))
            self._breakers[texts] = found
            if len(self._breakers) > _MOST_BREAKERS:
                self._breakers.popitem(last=False)
            return found
