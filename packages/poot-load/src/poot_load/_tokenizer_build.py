"""From a vocabulary to a ``tokenizers.Tokenizer``, whole or cut down to what one text can need.

Building the whole of a large vocabulary takes seconds and loading it from the cache half a second.
A short text does not need it: byte-pair merging only ever makes pieces that are substrings of the
text, so a tokenizer of just those pieces gives the same ids, and is made in milliseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from poot_load._token_bytes import SPACE
from poot_load._vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["build_tokenizer", "make_partial_encoder"]

Pairs = list[tuple[str, str]]

# Pieces that sentencepiece never makes by merging.
_UNMERGED = (TokenType.BYTE, TokenType.CONTROL, TokenType.UNUSED)


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """Return the whole tokenizer; its post-processor adds BOS and EOS as the file says.

    Raises:
        CheckpointError: If pieces repeat or a merge joins what is no piece.
    """
    from tokenizers import processors

    pieces = vocabulary.pieces
    if vocabulary.is_sentencepiece:
        pairs = _last_pairs(_score_pairs(vocabulary, _mergeable(vocabulary)))
    else:
        pairs = [
            (left, right)
            for left, right in map(_split_merge, vocabulary.merges or ())
            if left in pieces and right in pieces and left + right in pieces
        ]
    tokenizer = _assemble(vocabulary, pieces, pairs, vocabulary.added)
    before = [vocabulary.bos_id] if vocabulary.add_bos else []
    after = [vocabulary.eos_id] if vocabulary.add_eos else []
    ids = [token for token in before + after if token is not None]
    if ids:
        names = {token: vocabulary.tokens[token] for token in ids}
        single = [names[i] for i in before if i is not None] + ["$A"]
        single += [names[i] for i in after if i is not None]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(name, token) for token, name in names.items()]
        )
    return tokenizer


def make_partial_encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """Return a function that gives a text's ids, without BOS and EOS, from the pieces in it."""
    pieces = vocabulary.pieces
    added = vocabulary.added
    cut = _cutter(vocabulary)
    hidden: frozenset[int] = frozenset()
    always: dict[str, int] = {}
    if vocabulary.is_sentencepiece:
        hidden = frozenset(vocabulary.of_type(*_UNMERGED).tolist())
        always = {vocabulary.names[i]: i for i in vocabulary.of_type(TokenType.BYTE).tolist()}
    if vocabulary.unk_id is not None:
        always[vocabulary.tokens[vocabulary.unk_id]] = vocabulary.unk_id
    ranks = _merge_ranks(vocabulary)
    longest = int(vocabulary.tokens.lengths[vocabulary.of_type(TokenType.NORMAL)].max(initial=1))

    def encode(text: str) -> list[int]:
        present = {name: kind for name, kind in added.items() if name in text}
        found: dict[str, int] = {}
        for word in {word for part in _outside(text, present) for word in cut(part)}:
            for start in range(len(word)):
                for stop in range(start + 1, min(len(word), start + longest) + 1):
                    piece = word[start:stop]
                    if (token := pieces.get(piece)) is not None and token not in hidden:
                        found[piece] = token
        pairs = _score_pairs(vocabulary, found) if ranks is None else _ranked_pairs(ranks, found)
        subset = found | always | {name: pieces[name] for name in present}
        tokenizer = _assemble(vocabulary, subset, pairs, present)
        return tokenizer.encode(text, add_special_tokens=False).ids

    return encode


def _assemble(
    vocabulary: Vocabulary, pieces: dict[str, int], pairs: Pairs, added: Mapping[str, int]
) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, models

    scheme = vocabulary.scheme
    unknown = None if vocabulary.unk_id is None else vocabulary.tokens[vocabulary.unk_id]
    is_sentencepiece = vocabulary.is_sentencepiece
    model = models.BPE(
        pieces,
        pairs,
        unk_token=unknown if is_sentencepiece else None,
        fuse_unk=is_sentencepiece,
        byte_fallback=is_sentencepiece,
        ignore_merges=scheme is not None and scheme.ignore_merges,
    )
    tokenizer = Tokenizer(model)
    normalizer, pre_tokenizer, decoder = _stages(vocabulary)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    plain = {"<unk>", "<s>", "<|endoftext|>"}  # phi 3's tokens that leave spaces alone
    tokens = [
        AddedToken(
            name,
            normalized=False,
            special=kind != TokenType.USER_DEFINED,
            rstrip=vocabulary.strips_after_special and name not in plain,
        )
        for name, kind in added.items()
    ]
    tokenizer.add_special_tokens([token for token in tokens if token.special])
    tokenizer.add_tokens([token for token in tokens if not token.special])
    return tokenizer


def _stages(vocabulary: Vocabulary) -> tuple[Any, Any, Any]:
    """Return normalizer, pre-tokenizer (each may be None) and decoder."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    scheme = vocabulary.scheme
    if scheme is not None:
        cuts = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in scheme.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        sequence = pre_tokenizers.Sequence([*cuts, to_bytes])
        return (normalizers.NFC() if scheme.nfc else None), sequence, decoders.ByteLevel()
    replace = normalizers.Replace(" ", SPACE)
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if not vocabulary.add_space_prefix:
        return replace, None, decoders.Sequence(back)
    prefixed = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
    return prefixed, None, decoders.Sequence([*back, decoders.Strip(" ", 1, 0)])


def _cutter(vocabulary: Vocabulary) -> Callable[[str], Iterable[str]]:
    """Return a function from a text between added tokens to the words that merging works on."""
    normalizer, pre_tokenizer, _ = _stages(vocabulary)

    def cut(text: str) -> list[str]:
        normal = text if normalizer is None else normalizer.normalize_str(text)
        if pre_tokenizer is None:
            return [normal]
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

    return cut


def _outside(text: str, present: Iterable[str]) -> list[str]:
    """Return what is left of a text between added tokens, of which the longest wins."""
    names = sorted(present, key=len, reverse=True)
    return re.split("|".join(map(re.escape, names)), text) if names else [text]


def _mergeable(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the pieces that sentencepiece merging may make."""
    out = dict(vocabulary.pieces)
    for token in vocabulary.of_type(*_UNMERGED).tolist():
        del out[vocabulary.names[token]]
    return out


def _score_pairs(vocabulary: Vocabulary, pieces: Mapping[str, int]) -> Pairs:
    """Return every way to join two pieces into a third, best score of the third first."""
    assert vocabulary.scores is not None
    scores = vocabulary.scores.tolist()
    found: list[tuple[float, int, int, int, str, str]] = []
    for piece, token in pieces.items():
        for cut in range(1, len(piece)):
            left = pieces.get(piece[:cut])
            if left is not None and (right := pieces.get(piece[cut:])) is not None:
                found.append((-scores[token], token, left, right, piece[:cut], piece[cut:]))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _last_pairs(pairs: Pairs) -> Pairs:
    """Return the pairs that merging can come to use: of each piece, the one that completes it.

    Until a piece is complete, no merge crosses its ends, so what happens within them is what merging
    the piece alone does; its last step is the only pair that ever makes it. That is half of the
    pairs of a large vocabulary, and a third of its loading time.
    """
    order = {pair: index for index, pair in enumerate(pairs)}
    ways = Counter(left + right for left, right in pairs)

    def completes(piece: str) -> tuple[str, str] | None:
        symbols = list(piece)
        while len(symbols) > 2:
            best, at = len(order), -1
            for index, pair in enumerate(pairwise(symbols)):
                if (rank := order.get(pair, best)) < best:
                    best, at = rank, index
            if at < 0:
                return None  # merging never makes the piece
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        return (symbols[0], symbols[1])

    last = {piece: completes(piece) for piece, count in ways.items() if count > 1}
    return [pair for pair in pairs if last.get(pair[0] + pair[1], pair) == pair]


def _split_merge(merge: str) -> tuple[str, str]:
    # The separator is the first space that is not the first character.
    at = merge.find(" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else (merge, "")


def _merge_ranks(vocabulary: Vocabulary) -> dict[str, int] | None:
    if vocabulary.merges is None:
        return None
    merges = vocabulary.merges.to_list()
    return dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))


def _ranked_pairs(ranks: Mapping[str, int], pieces: Mapping[str, int]) -> Pairs:
    found: list[tuple[int, str, str]] = []
    for piece in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            rank = ranks.get(f"{left} {right}")
            if rank is not None and left in pieces and right in pieces:
                found.append((rank, left, right))
    found.sort()
    return [(left, right) for _, left, right in found]
