"""A checkpoint's model: what it is made of, and its trace."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

from poot_core import UnsupportedError
from poot_graph_ir import Builder, Graph, TraceOptions
from poot_load import Checkpoint
from poot_models._binding import bind_weights
from poot_models._encoder_registry import is_encoder
from poot_models._registry import Family, FamilyConfig, find_family
from poot_models.components.step import Step, StoredWeight

__all__ = ["KVLayer", "Model", "load_family"]


@dataclass(frozen=True, slots=True)
class KVLayer:
    """What one layer keeps of each token.

    Attributes:
        num_kv_heads: Key and value heads.
        key_dim: Elements of a key.
        value_dim: Elements of a value.
        window: Tokens that are still read, the current one included, or None for all.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None


class Model:
    """A model of a known family whose tensors all fit.

    Args:
        family: Its family.
        config: Its configuration.
        weights: The stored tensor of every entry of the family's table.
    """

    def __init__(
        self, family: Family, config: FamilyConfig, weights: Mapping[str, StoredWeight]
    ) -> None:
        self._family = family
        self._weights = weights
        self.config = config

    @property
    def family(self) -> str:
        """Name of the family."""
        return self._family.name

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.config.decoder.vocab_size

    @property
    def num_layers(self) -> int:
        """Repeated layers."""
        return self.config.decoder.num_layers

    @property
    def max_context(self) -> int:
        """Longest sequence that the model is made for, in tokens."""
        return self.config.decoder.max_context

    @property
    def default_context(self) -> int:
        """Longest sequence at which the model is as it was pretrained, in tokens.

        Less than ``max_context`` only for LongRoPE, which has other frequencies beyond: open such
        a model with more only when more is needed.
        """
        rope = getattr(self.config, "rope", None)
        original = getattr(rope, "original_context", None)
        return min(self.max_context, original or self.max_context)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence, as the configuration has them."""
        return self.config.decoder.eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        """Token that starts a sequence, if any."""
        return self.config.decoder.bos_token_id

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names in the checkpoint of the tensors that the model reads."""
        return tuple(weight.name for weight in self._weights.values())

    @cached_property
    def kv_layers(self) -> tuple[KVLayer, ...]:
        """What each layer keeps of each token."""
        d = self.config.decoder
        return tuple(
            KVLayer(d.num_kv_heads, d.head_dim, d.head_dim, window)
            for window in self.config.windows
        )

    @cached_property
    def cache_key(self) -> str:
        """Hash of all that a trace depends on besides its options: the same means the same graph.

        64 hexadecimal digits over the family, the configuration, names, types and shapes of the
        tensors and the versions of this package and of the graph's.
        """
        parts = [
            self.family,
            version("poot-models"),
            version("poot-graph-ir"),
            repr(self.config),
            *(f"{w.name} {w.dtype.name} {w.shape}" for w in self._weights.values()),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def trace(self, options: TraceOptions, *, context_tokens: int | None = None) -> Graph:
        """Return the graph of one step, with the output ``logits`` (L, vocab_size) in f32.

        Args:
            options: Sizes of the KV pools.
            context_tokens: Longest sequence that will be run; it chooses between the two sets of
                LongRoPE frequencies. By default what a block table holds, or ``default_context``
                where the options leave its width open.
        """
        if context_tokens is None:
            context_tokens = self.default_context
            if options.max_blocks_per_row is not None:
                # A context that is no multiple of a block has a last block that it does not fill.
                context_tokens = (options.max_blocks_per_row - 1) * options.block_size + 1
        builder = Builder(self.family)
        step = Step(builder, self.config.decoder, self._weights, options, context_tokens)
        builder.output("logits", self._family.trace(step, self.config))
        return builder.finish()


def load_family(checkpoint: Checkpoint) -> Model:
    """Return the model of a checkpoint; reads its configuration and headers, no weight.

    Raises:
        UnsupportedError: If no family reads this architecture; names the known ones.
        CheckpointError: If a key of the configuration is unknown, missing or not implemented, or a
            tensor is missing, has another shape or is left over; names it.
    """
    name = str(checkpoint.config.get("model_type") or checkpoint.architecture)
    if is_encoder(name):
        raise UnsupportedError(
            f"architecture {name!r} is an encoder: it makes embeddings or scores and generates "
            "nothing; open it as one",
            architecture=name,
        )
    family = find_family(name)
    config = family.read_config(checkpoint.config)
    table = family.weights(config)
    tied = config.decoder.tied
    return Model(family, config, bind_weights(family, table, checkpoint.weights, tied=tied))
