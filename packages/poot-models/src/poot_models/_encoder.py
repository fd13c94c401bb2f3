"""An encoder's checkpoint: what it is made of, what it makes of a text, and its trace."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, cast

from poot_core import CheckpointError, UnsupportedError
from poot_graph_ir import Builder, Graph, TraceOptions
from poot_load import Checkpoint, PoolingKind
from poot_models._binding import bind_weights
from poot_models._encoder_registry import EncoderConfig, EncoderFamily, find_encoder
from poot_models._model import KVLayer
from poot_models.components.encoder_step import EncoderStep
from poot_models.components.step import StoredWeight

__all__ = ["EncoderModel", "Pooling", "load_encoder"]

_SCORING = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a text's token states become one vector.

    Attributes:
        kind: Mean over the tokens, state of the first token, or of the last.
        normalize: Whether vectors are scaled to unit length.
    """

    kind: PoolingKind
    normalize: bool


class EncoderModel:
    """An encoder of a known family whose tensors all fit.

    Args:
        family: Its family.
        config: Its configuration.
        weights: The stored tensor of every entry of the family's table.
        pooling: What makes embeddings, or None for an encoder with a head.
        labels: Names of the scores of an encoder with a head, in order.
        max_tokens: Longest text.
    """

    def __init__(
        self,
        family: EncoderFamily,
        config: EncoderConfig,
        weights: Mapping[str, StoredWeight],
        *,
        pooling: Pooling | None,
        labels: tuple[str, ...],
        max_tokens: int,
    ) -> None:
        self._family = family
        self._weights = weights
        self.config = config
        self.pooling = pooling
        self.labels = labels
        self.max_tokens = max_tokens

    @property
    def family(self) -> str:
        """Name of the family."""
        return self._family.name

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self.config.decoder.vocab_size

    @property
    def output_size(self) -> int:
        """Elements of an embedding, or scores of a text."""
        return len(self.labels) if self.pooling is None else self.config.decoder.hidden_size

    @property
    def num_types(self) -> int:
        """Kinds of segments that tokens may be of."""
        return getattr(self.config, "num_types", 1)

    @property
    def takes_last(self) -> bool:
        """Whether the position that a step wants of a text is its last token's, not its first's."""
        return self.pooling is not None and self.pooling.kind == "last"

    @property
    def kv_layers(self) -> tuple[KVLayer, ...]:
        """What a step keeps of each token: one pair of pools for all layers, one for a mean."""
        d = self.config.decoder
        has_mean = self.pooling is not None and self.pooling.kind == "mean"
        return (KVLayer(d.num_kv_heads, d.head_dim, d.head_dim, None),) * (2 if has_mean else 1)

    @cached_property
    def cache_key(self) -> str:
        """Hash of all that a trace depends on besides its options: the same means the same graph."""
        parts = [
            self.family,
            version("poot-models"),
            version("poot-graph-ir"),
            repr(self.config),
            repr(self.pooling),
            *(f"{w.name} {w.dtype.name} {w.shape}" for w in self._weights.values()),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def trace(self, options: TraceOptions) -> Graph:
        """Return the graph of one step.

        Its output is ``embeddings`` (L, hidden_size) or ``scores`` (L, num_labels) in f32, one row
        for each wanted position. Each row of a step is a whole text.
        """
        builder = Builder(self.family)
        step = EncoderStep(
            builder, self.config.decoder, self._weights, options, self.config.max_tokens
        )
        states = self._family.trace(step, self.config)
        if self.pooling is not None:
            pooled = step.pool(states, self.pooling.kind, normalize=self.pooling.normalize)
            builder.output("embeddings", pooled)
        else:
            assert self._family.head is not None
            builder.output("scores", self._family.head(step, self.config, states))
        return builder.finish()


def load_encoder(checkpoint: Checkpoint, pooling: Pooling | None = None) -> EncoderModel:
    """Return the encoder of a checkpoint; reads its configuration and headers, no weight.

    Args:
        checkpoint: A directory of safetensors.
        pooling: How embeddings are made; by default as the checkpoint's own files say.

    Raises:
        UnsupportedError: If no family reads it, or nothing says how to pool.
        CheckpointError: If a key of the configuration is unknown, missing or not implemented, or a
            tensor is missing, has another shape or is left over; names it.
    """
    family = find_encoder(str(checkpoint.config.get("model_type") or checkpoint.architecture))
    raw = {k: v for k, v in checkpoint.config.items() if k not in _OF_OTHER_LIBRARIES}
    config = family.read_config(raw)
    labels = _labels(checkpoint.config) if _has_head(checkpoint.config) else ()
    max_tokens = config.max_tokens
    if labels:
        if family.head is None:
            raise UnsupportedError(f"poot has no scoring head for family {family.name!r}")
        if pooling is not None:
            raise UnsupportedError(
                f"{checkpoint.path} has a head that scores texts, so there is nothing to pool"
            )
    elif checkpoint.sentence is not None:
        saved = checkpoint.sentence
        width = config.decoder.hidden_size
        if saved.width not in {None, width}:
            raise CheckpointError(
                f"{checkpoint.path}: pooling is for states of {saved.width}, the model's have {width}"
            )
        pooling = pooling or Pooling(saved.pooling, saved.normalize)
        max_tokens = min(max_tokens, saved.max_tokens or max_tokens)
    elif pooling is None:
        raise UnsupportedError(
            f"{checkpoint.path} has no modules.json, which says how token states become one vector; "
            "say it by the option 'pooling': mean, cls or last"
        )
    table = family.weights(config, len(labels) or None)
    bound = bind_weights(family, table, checkpoint.weights, tied=False)
    return EncoderModel(
        family, config, bound, pooling=pooling, labels=labels, max_tokens=max_tokens
    )


# What sentence-transformers writes into config.json; poot-llm reads the activation of scores from it.
_OF_OTHER_LIBRARIES = frozenset({"sentence_transformers", "sbert_ce_default_activation_function"})


def _has_head(config: Mapping[str, Any]) -> bool:
    found = config.get("architectures")
    names = cast("list[object]", found) if isinstance(found, list) else []
    return any(isinstance(name, str) and name.endswith(_SCORING) for name in names)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    found = config.get("id2label")
    if isinstance(found, dict) and found:
        return tuple(str(name) for name in cast("dict[str, object]", found).values())
    count = config.get("num_labels", 2)
    if type(count) is not int or not 1 <= count <= 1 << 16:
        raise CheckpointError(f"config key 'num_labels' is {count!r}, expected a positive integer")
    return tuple(f"LABEL_{index}" for index in range(count))
