"""The text side of an encoder: texts, and pairs of texts, to token ids and segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from poot_core import CheckpointError, RequestError, UnsupportedError
from poot_llm._errors import ContextLengthError

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

    from poot_llm._tokenizer import Tokenizer
    from poot_load import Checkpoint, DownloadProgress, PoolingKind
    from poot_models import EncoderModel

__all__ = [
    "EncodedText",
    "EncoderText",
    "ScoreActivation",
    "Text",
    "encoder_text",
    "load_encoder_model",
    "open_encoder_text",
]

Int32 = NDArray[np.int32]
Text = str | Sequence[int]
"""A text, or its token ids, which go in as they are."""
ScoreActivation = Literal["identity", "sigmoid"]
_NORMALIZES = True  # where nothing but the kind of pooling is said
_ENCODER_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One sequence as an encoder takes it.

    Attributes:
        ids: (n,) token ids.
        types: (n,) segment of each.
    """

    ids: Int32
    types: Int32


@dataclass(frozen=True, kw_only=True)
class EncoderText:
    """Texts to sequences.

    Attributes:
        tokenizer: Of the checkpoint, or None: then it takes ids alone.
        vocab_size: Token ids are below it.
        num_types: Kinds of segments; with one, all tokens are of it.
        max_tokens: Longest sequence.
        dimensions: Length of an embedding, or None where the model scores.
        labels: Names of the scores, in order; empty where the model embeds.
        activation: What scores go through last, as sentence-transformers has it.
        prompt: Text that goes before every text to embed.
    """

    tokenizer: Tokenizer | None
    vocab_size: int
    num_types: int
    max_tokens: int
    dimensions: int | None
    labels: tuple[str, ...] = ()
    activation: ScoreActivation = "identity"
    prompt: str = ""
    field_name: str = field(default="input")

    def encode(self, text: Text, *, truncate: int | None = None) -> EncodedText:
        """Return the sequence of one text.

        Args:
            text: A text, or ids, which go in as they are.
            truncate: Tokens to cut longer texts to (at most ``max_tokens``), special ones counted;
                None refuses them.

        Raises:
            RequestError: If it is empty or an id is out of range.
            ContextLengthError: If it is too long and not to be cut.
        """
        limit = self._limit(truncate)
        if not isinstance(text, str):
            return self._of_ids(text, None if truncate is None else limit)
        backend = self._backend()
        # With special tokens at once where it fits, which is the common case.
        found = self._encoding(backend, self.prompt + text, adds_special=True)
        if len(found.ids) > limit and truncate is not None:
            around = backend.num_special_tokens_to_add(is_pair=False)
            bare = self._encoding(backend, self.prompt + text, adds_special=False)
            bare.truncate(max(0, limit - around))
            found = backend.post_process(bare)
        return self._of_encoding(found, limit)

    def encode_pair(self, first: str, second: str, *, truncate: int | None = None) -> EncodedText:
        """Return the sequence of two texts with a separator, as a cross-encoder takes them.

        What is cut of pairs that are too long is cut from the longer one.
        """
        limit = self._limit(truncate)
        backend = self._backend()
        one = self._encoding(backend, first, adds_special=False)
        two = self._encoding(backend, second, adds_special=False)
        if truncate is not None:
            room = max(0, limit - backend.num_special_tokens_to_add(is_pair=True))
            left, right = _shares(len(one.ids), len(two.ids), room)
            one.truncate(left)
            two.truncate(right)
        return self._of_encoding(backend.post_process(one, two), limit)

    def _limit(self, truncate: int | None) -> int:
        if truncate is not None and truncate < 1:
            raise RequestError(f"truncate is {truncate}; it must be at least 1", field="truncate")
        return self.max_tokens if truncate is None else min(self.max_tokens, truncate)

    def _backend(self) -> Backend:
        if self.tokenizer is None:
            raise UnsupportedError(
                "this checkpoint has no tokenizer files, so it takes token ids in place of text"
            )
        return self.tokenizer.backend

    def _encoding(self, backend: Backend, text: str, *, adds_special: bool) -> Encoding:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text is not valid Unicode: {error.reason} at character {error.start}",
                field=self.field_name,
            ) from error
        return backend.encode(text, add_special_tokens=adds_special)

    def _of_encoding(self, found: Encoding, limit: int) -> EncodedText:
        self._check_length(len(found.ids), limit)
        ids = np.array(found.ids, np.int32)
        types = np.array(found.type_ids, np.int32)
        return EncodedText(ids, types if self.num_types > 1 else np.zeros_like(ids))

    def _of_ids(self, given: Sequence[int], limit: int | None) -> EncodedText:
        listed = list(given)[:limit]
        if not all(isinstance(each, int | np.integer) for each in cast("list[Any]", listed)):
            raise RequestError("token ids must be integers", field=self.field_name)
        wrong = [each for each in listed if not 0 <= each < self.vocab_size]
        if wrong:
            raise RequestError(
                f"token id {wrong[0]} is outside of the vocabulary of {self.vocab_size}",
                field=self.field_name,
            )
        self._check_length(len(listed), self.max_tokens)
        ids = np.array(listed, np.int32)
        return EncodedText(ids, np.zeros_like(ids))

    def _check_length(self, count: int, limit: int) -> None:
        if not count:
            raise RequestError("a text must have one token at least", field=self.field_name)
        if count > limit:
            raise ContextLengthError(
                f"the text has {count} tokens and this encoder takes {limit}; shorten it, or ask "
                "for it to be cut",
                prompt_tokens=count,
                context_tokens=limit,
                field=self.field_name,
            )

    def activate(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return scores after the model's activation."""
        if self.activation == "identity":
            return scores
        return (1 / (1 + np.exp(-scores.astype(np.float64)))).astype(np.float32)


def _shares(one: int, two: int, room: int) -> tuple[int, int]:
    """Return how much of two texts is kept so that both fit: what is cut comes off the longer.

    >>> _shares(3, 9, 20), _shares(3, 9, 8), _shares(9, 9, 9), _shares(9, 3, 8)
    ((3, 9), (3, 5), (4, 5), (5, 3))
    """
    if one + two <= room:
        return one, two
    if one > two:
        left, right = _shares(two, one, room)
        return right, left
    left = min(one, room // 2)
    return left, room - left


def load_encoder_model(
    checkpoint: Checkpoint, pooling: PoolingKind | None, *, normalize: bool = _NORMALIZES
) -> EncoderModel:
    """Return the encoder of a checkpoint; ``pooling`` says how, where its files do not."""
    from poot_models import Pooling, load_encoder

    return load_encoder(checkpoint, None if pooling is None else Pooling(pooling, normalize))


def encoder_text(
    checkpoint: Checkpoint, model: EncoderModel, context: int | None = None
) -> EncoderText:
    """Return the text side of an encoder's checkpoint.

    Args:
        checkpoint: The checkpoint.
        model: Its encoder.
        context: Longest sequence that is wanted, or None for what the model takes, at most 4096.

    Raises:
        RequestError: If the context is out of range.
        UnsupportedError: If scores go through an activation that poot has not.
    """
    from poot_llm._open_text import read_tokenizer

    if context is not None and not 1 <= context <= model.max_tokens:
        raise RequestError(
            f"context is {context}; this model takes 1 to {model.max_tokens} tokens",
            field="context",
        )
    sentence = checkpoint.sentence if not model.labels else None
    prompt = ""
    if sentence is not None and sentence.default_prompt is not None:
        prompt = sentence.prompts[sentence.default_prompt]
    return EncoderText(
        tokenizer=read_tokenizer(checkpoint),
        vocab_size=model.vocab_size,
        num_types=model.num_types,
        max_tokens=context or min(model.max_tokens, _ENCODER_CONTEXT),
        dimensions=None if model.labels else model.output_size,
        labels=model.labels,
        activation=_activation(checkpoint.config, len(model.labels)),
        prompt=prompt,
    )


def _activation(config: dict[str, Any], num_labels: int) -> ScoreActivation:
    section = config.get("sentence_transformers")
    given = (
        cast("dict[str, Any]", section).get("activation_fn") if isinstance(section, dict) else None
    )
    given = given or config.get("sbert_ce_default_activation_function")
    if given is None:
        return "sigmoid" if num_labels == 1 else "identity"
    name = str(given).rpartition(".")[2].lower()
    if name == "identity":
        return "identity"
    if name == "sigmoid":
        return "sigmoid"
    if not isinstance(given, str):
        raise CheckpointError(
            f"config.json: the activation of scores is {given!r}, expected a name"
        )
    raise UnsupportedError(f"config.json: scores go through {given}; poot has Identity and Sigmoid")


def open_encoder_text(
    name: str | Path,
    *,
    pooling: PoolingKind | None = None,
    context: int | None = None,
    progress: DownloadProgress | None = None,
) -> EncoderText | None:
    """Read the text side of an encoder, no weight and no engine; None where it is no encoder.

    Raises:
        CheckpointError: If the checkpoint is malformed.
        UnsupportedError: If nothing says how to pool.
    """
    from poot_load import open_checkpoint, resolve_model
    from poot_models import is_encoder

    with open_checkpoint(resolve_model(name, progress)) as checkpoint:
        if not is_encoder(str(checkpoint.config.get("model_type"))):
            return None
        return encoder_text(checkpoint, load_encoder_model(checkpoint, pooling), context)
