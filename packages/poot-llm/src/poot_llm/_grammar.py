"""Constraints compiled by llguidance: which tokens may come next.

Compilation is bounded in fuel and in the size of what it builds, so it ends within about a second; the
depth and size of what goes in are bounded where the constraint is made.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from poot_core import RequestError
from poot_llm._constraint import Constraint

if TYPE_CHECKING:
    from poot_llm._vocabulary import Vocabulary

__all__ = ["GrammarCompiler", "Matcher"]

_MOST_GRAMMARS = 64
_LEAD = "\x02"  # no token continues it, so what follows is tokenized as in the midst of a text
_JSON_OBJECT = {"type": "object"}
_JSON_OPTIONS: Any = {
    # Unbounded space is all that some models ever write.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,16}",
}


class Matcher:
    """Follows one answer through a constraint.

    Attributes:
        is_complete: Whether the answer fits and nothing more may come.
    """

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self._mask: bytes | None = None
        self.is_complete = False

    def prepare_mask(self) -> None:
        """Compute which tokens may come next, unless that is known."""
        if self._mask is None:
            self._mask = self._matcher.compute_bitmask()

    def mask(self, vocab_size: int) -> NDArray[np.bool_]:
        """Return (vocab_size,) which tokens may come next.

        Raises:
            RequestError: If the constraint has become too complex to follow.
        """
        self.prepare_mask()
        assert self._mask is not None, "it is prepared"
        self._check()
        bits = np.frombuffer(self._mask, np.uint8)
        allowed = np.unpackbits(bits, count=vocab_size, bitorder="little")
        return allowed.view(np.bool_)

    def consume(self, token_id: int) -> None:
        """Take a token that the mask allowed."""
        self._mask = None
        self._matcher.consume_token(token_id)
        self.is_complete = self._matcher.is_stopped() and not self._matcher.is_error()

    def _check(self) -> None:
        if self._matcher.is_error():
            message = self._matcher.get_error().strip().splitlines()[0]
            raise RequestError(f"the constraint cannot be followed further: {message}")


class GrammarCompiler:
    """Compiles constraints for one vocabulary and keeps the latest; thread-safe.

    Args:
        vocabulary: Tokens of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = _tokenizer(vocabulary)
        self._limits = llguidance.LLParserLimits(
            initial_lexer_fuel=5_000_000, max_grammar_size=200_000, verbose_errors=False
        )
        self._lock = Lock()
        self._compiled: OrderedDict[Constraint, llguidance.LLMatcher] = OrderedDict()

    def compile(self, constraint: Constraint) -> Matcher:
        """Return a fresh matcher.

        Raises:
            RequestError: If the constraint is malformed, not supported or beyond a limit.
        """
        with self._lock:
            found = self._compiled.get(constraint)
        if found is None:
            found = llguidance.LLMatcher(
                self._tokenizer, _grammar(constraint), log_level=0, limits=self._limits
            )
            if found.is_error():
                raise _refusal(constraint, found.get_error())
            found.compute_bitmask()  # the first takes long; copies find what it worked out
        with self._lock:
            self._compiled[constraint] = found
            self._compiled.move_to_end(constraint)
            while len(self._compiled) > _MOST_GRAMMARS:
                self._compiled.popitem(last=False)
            return Matcher(found.deep_copy())


def _grammar(constraint: Constraint) -> str:
    make = llguidance.LLMatcher
    try:
        match constraint.kind:
            case "json_object":
                return make.grammar_from_json_schema(_JSON_OBJECT, overrides=_JSON_OPTIONS)
            case "json_schema":
                return make.grammar_from_json_schema(constraint.value, overrides=_JSON_OPTIONS)
            case "regex":
                return make.grammar_from_regex(constraint.value)
            case "grammar":
                return make.grammar_from_lark(constraint.value)
            case "choice":
                texts: list[str] = json.loads(constraint.value)
                # JSON strings are what the dialect's literals are.
                return make.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts)))
    except ValueError as error:
        raise _refusal(constraint, str(error)) from error


def _refusal(constraint: Constraint, reason: str) -> RequestError:
    what = f"{constraint.kind} of {constraint.field}" if constraint.field else constraint.kind
    lines = " ".join(reason.strip().splitlines()[:3])[:500]
    return RequestError(
        f"the {what} cannot be compiled: {lines}", field=constraint.field or constraint.kind
    )


class _Tokens:
    """The vocabulary in the shape that llguidance reads.

    It asks for the tokens of text that a grammar forces. A tokenizer may put a space in front of a text
    or have no token for a character alone; its answer is taken where it spells the text again.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.tokenizer.encode
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.bos_token_id = None
        self.eos_token_id = vocabulary.end_ids[0]
        self._special = special = vocabulary.special_ids
        self._ids = {data: i for i, data in enumerate(self.tokens) if data and i not in special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        data = text.encode()
        for lead in ("", _LEAD):
            ids = self._encode(lead + text, adds_special=False)
            before = self._encode(lead, adds_special=False) if lead else []
            if ids[: len(before)] == before:
                ids = ids[len(before) :]
                if b"".join(self.tokens[i] for i in ids) == data and self._special.isdisjoint(ids):
                    return ids
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                found = self._ids.get(data[at : at + size])
                if found is not None:
                    ids.append(found)
                    at += size
                    break
            else:
                break  # no token spells the rest
        return ids


def _tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    if not vocabulary.end_ids:
        raise RequestError("this model names no end token, which a constraint needs")
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Tokens(vocabulary)),
        n_vocab=vocabulary.vocab_size,
        eos_token=list(vocabulary.end_ids),
    )
