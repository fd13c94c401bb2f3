"""Which family reads which encoder checkpoints: one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from poot_core import UnsupportedError
from poot_graph_ir import Tracer
from poot_models._decoder import Decoder
from poot_models.components.encoder_step import EncoderStep
from poot_models.components.tables import WeightTable
from poot_models.families import bert, modernbert

__all__ = ["ENCODERS", "EncoderConfig", "EncoderFamily", "find_encoder", "is_encoder"]


class EncoderConfig(Protocol):
    """What every encoder's configuration has."""

    @property
    def decoder(self) -> Decoder:
        """Sizes and choices."""
        ...

    @property
    def max_tokens(self) -> int:
        """Longest text."""
        ...


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """One family.

    Attributes:
        name: Its name in messages and cache keys.
        model_types: Values of ``model_type`` that it reads.
        read_config: Returns its configuration of a Hugging Face dictionary.
        weights: Returns the shape of every tensor by name, given the labels of a head, or None.
        trace: Returns the states of one step's tokens, (T, hidden_size).
        head: Returns scores (L, num_labels) of those states; None where poot has no head of it.
        prefix: What the names of the body's tensors begin with.
        other_prefixes: What a checkpoint may have instead of it, such as nothing.
        ignored_weights: Beginnings of names of tensors that are no part of the body: other heads,
            and buffers that follow from the configuration.
    """

    name: str
    model_types: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any]], Any]
    weights: Callable[[Any, int | None], WeightTable]
    trace: Callable[[EncoderStep, Any], Tracer]
    head: Callable[[EncoderStep, Any, Tracer], Tracer] | None
    prefix: str
    other_prefixes: tuple[str, ...] = ("",)
    ignored_weights: tuple[str, ...] = ()


# fmt: off
ENCODERS: tuple[EncoderFamily, ...] = (
    EncoderFamily("bert", ("bert",), bert.BertConfig.from_config, bert.weights, bert.trace,
                  bert.head, prefix="bert.",
                  ignored_weights=("pooler.", "bert.pooler.", "cls.", "embeddings.position_ids",
                                   "bert.embeddings.position_ids")),
    EncoderFamily("roberta", ("roberta", "xlm-roberta"), bert.BertConfig.from_roberta_config,
                  bert.weights, bert.trace, bert.head, prefix="roberta.",
                  ignored_weights=("pooler.", "roberta.pooler.", "lm_head.",
                                   "embeddings.position_ids", "roberta.embeddings.position_ids",
                                   "embeddings.token_type_ids",
                                   "roberta.embeddings.token_type_ids")),
    EncoderFamily("modernbert", ("modernbert",), modernbert.ModernBertConfig.from_config,
                  modernbert.weights, modernbert.trace, None, prefix="model.",
                  ignored_weights=("head.", "decoder.")),
)
# fmt: on
"""All encoder families, by name."""

_BY_MODEL_TYPE = {kind: family for family in ENCODERS for kind in family.model_types}


def is_encoder(architecture: str) -> bool:
    """Return whether checkpoints of a ``model_type`` are encoders that poot has."""
    return architecture in _BY_MODEL_TYPE


def find_encoder(architecture: str) -> EncoderFamily:
    """Return the family that reads encoders of a ``model_type``.

    Raises:
        UnsupportedError: If there is none; names the known ones.
    """
    found = _BY_MODEL_TYPE.get(architecture)
    if found is None:
        raise UnsupportedError(
            f"poot has no encoder for architecture {architecture!r}; "
            f"known are {', '.join(sorted(_BY_MODEL_TYPE))}",
            architecture=architecture,
        )
    return found
