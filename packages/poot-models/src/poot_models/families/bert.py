"""BERT, RoBERTa and XLM-RoBERTa: learned positions, segments, a norm after each residual sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer, ops
from poot_models._decoder import Decoder, Keys, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.blocks import mlp
from poot_models.components.encoder_step import EncoderStep
from poot_models.components.tables import WeightTable

__all__ = ["BertConfig", "head", "trace", "weights"]

KEYS = Keys(num_kv_heads=None, head_dim=None, norm_eps="layer_norm_eps")


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """A model of the BERT kind.

    Attributes:
        decoder: Sizes and choices.
        name: What names of the body's tensors begin with.
        first_position: Row of the table of positions that a text's first token takes.
        num_types: Kinds of segments.
        max_tokens: Longest text.
    """

    decoder: Decoder
    name: str
    first_position: int
    num_types: int
    max_tokens: int

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Every token sees its whole text."""
        return (None,) * self.decoder.num_layers

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> BertConfig:
        """Read a BERT; a key that is not understood is a CheckpointError."""
        return _read(raw, "bert")

    @classmethod
    def from_roberta_config(cls, raw: Mapping[str, Any]) -> BertConfig:
        """Read a RoBERTa or XLM-RoBERTa: positions are counted from after the padding's."""
        return _read(raw, "roberta")


def _read(raw: Mapping[str, Any], name: str) -> BertConfig:
    reader = ConfigReader(raw, family=str(raw.get("model_type", name)))
    decoder = read_decoder(
        reader, KEYS, activation="gelu", norm_eps=1e-12, tied=True, max_context=512
    )
    reader.fixed("position_embedding_type", "absolute")
    reader.fixed("is_decoder", False)
    first = 0 if name == "bert" else reader.integer("pad_token_id", 1, minimum=0) + 1
    if first >= decoder.max_context:
        raise reader.error("max_position_embeddings", decoder.max_context, f"more than {first}")
    config = BertConfig(
        decoder=decoder,
        name=name,
        first_position=first,
        num_types=reader.integer("type_vocab_size", 2),
        max_tokens=decoder.max_context - first,
    )
    reader.finish()
    return config


def weights(config: BertConfig, num_labels: int | None) -> WeightTable:
    """Return the shape of every tensor by name; with a head where there are labels."""
    d, width = config.decoder, config.decoder.hidden_size
    embeddings, body = f"{config.name}.embeddings", f"{config.name}.encoder.layer"
    table: WeightTable = {
        f"{embeddings}.word_embeddings.weight": (d.vocab_size, width),
        f"{embeddings}.position_embeddings.weight": (d.max_context, width),
        f"{embeddings}.token_type_embeddings.weight": (config.num_types, width),
        **tables.norm(f"{embeddings}.LayerNorm", width, bias=True),
    }
    for index in range(d.num_layers):
        name = f"{body}.{index}"
        for part in ("query", "key", "value"):
            table |= tables.linear(f"{name}.attention.self.{part}", width, width, bias=True)
        table |= {
            **tables.linear(f"{name}.attention.output.dense", width, width, bias=True),
            **tables.norm(f"{name}.attention.output.LayerNorm", width, bias=True),
            **tables.linear(f"{name}.intermediate.dense", d.intermediate_size, width, bias=True),
            **tables.linear(f"{name}.output.dense", width, d.intermediate_size, bias=True),
            **tables.norm(f"{name}.output.LayerNorm", width, bias=True),
        }
    if num_labels is None:
        return table
    inner, outer = _head_names(config)
    return {
        **table,
        **tables.linear(inner, width, width, bias=True),
        **tables.linear(outer, num_labels, width, bias=True),
    }


def _head_names(config: BertConfig) -> tuple[str, str]:
    if config.name == "bert":
        return "bert.pooler.dense", "classifier"
    return "classifier.dense", "classifier.out_proj"


def trace(step: EncoderStep, config: BertConfig) -> Tracer:
    """Return the states of one step's tokens, (T, hidden_size)."""
    embeddings = f"{config.name}.embeddings"
    positions = step.weight(f"{embeddings}.position_embeddings.weight")
    if config.first_position:
        positions = positions[config.first_position :]
    types = step.weight(f"{embeddings}.token_type_embeddings.weight")
    x = step.embed(f"{embeddings}.word_embeddings")
    x = x + ops.embedding(types, step.token_types)
    x = x + ops.embedding(positions, step.slots.positions)
    x = step.layer_norm(x, f"{embeddings}.LayerNorm")
    for index in range(config.decoder.num_layers):
        name = f"{config.name}.encoder.layer.{index}"
        with step.layer(index):
            q, k, v = step.project(x, f"{name}.attention.self", ("query", "key", "value"))
            h = step.linear(step.attend_all(q, k, v), f"{name}.attention.output.dense")
            x = step.layer_norm(x + h, f"{name}.attention.output.LayerNorm")
            h = mlp(step, x, f"{name}.intermediate.dense", f"{name}.output.dense")
            x = step.layer_norm(x + h, f"{name}.output.LayerNorm")
    step.finish_layers()
    return x


def head(step: EncoderStep, config: BertConfig, x: Tracer) -> Tracer:
    """Return the logits of each wanted text, (L, num_labels), of its first token's state."""
    inner, outer = _head_names(config)
    pooled = ops.tanh(step.linear(step.pool(x, "cls", normalize=False), inner))
    return step.linear(pooled, outer)
