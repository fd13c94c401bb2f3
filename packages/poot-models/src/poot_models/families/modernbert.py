"""ModernBERT: rotary positions, gated MLPs, norms before each part, windows in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poot_graph_ir import Tracer, ops
from poot_models._decoder import Decoder, Keys, read_decoder
from poot_models._reader import ConfigReader
from poot_models.components import tables
from poot_models.components.activations import activation
from poot_models.components.encoder_step import EncoderStep
from poot_models.components.rope_config import Rope, read_rope_by_layer_type
from poot_models.components.tables import WeightTable
from poot_models.components.windows import read_windows

__all__ = ["ModernBertConfig", "trace", "weights"]

KEYS = Keys(num_kv_heads=None, head_dim=None, activation="hidden_activation", norm_eps="norm_eps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig:
    """A ModernBERT model.

    Attributes:
        decoder: Sizes and choices.
        windows: For each layer the distance at which tokens are no longer seen, or None for all.
        ropes: Rotary embedding of each layer type.
        attention_bias: Whether attention's projections have biases.
        mlp_bias: Whether the MLP's projections have.
        norm_bias: Whether norms have.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    ropes: tuple[tuple[str, Rope], ...]
    attention_bias: bool
    mlp_bias: bool
    norm_bias: bool

    @property
    def max_tokens(self) -> int:
        """Longest text."""
        return self.decoder.max_context

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> ModernBertConfig:
        """Read a configuration; a key that is not understood is a CheckpointError."""
        reader = ConfigReader(raw, family="modernbert")
        decoder = read_decoder(
            reader, KEYS, activation="gelu", norm_eps=1e-5, tied=True, max_context=8192
        )
        reader.fixed("position_embedding_type", "absolute")
        reader.fixed("is_decoder", False)
        every = reader.integer("global_attn_every_n_layers", 3)
        types = [
            "sliding_attention" if index % every else "full_attention"
            for index in range(decoder.num_layers)
        ]
        # Both sides together: a token sees those at half of this distance, and itself.
        window = reader.integer("local_attention", 128) // 2 + 1
        reader.fixed("sliding_window", window - 1)
        ropes = read_rope_by_layer_type(
            reader,
            head_dim=decoder.head_dim,
            max_context=decoder.max_context,
            theta={
                "full_attention": reader.number("global_rope_theta", 160000.0),
                "sliding_attention": reader.number("local_rope_theta", 10000.0),
            },
        )
        config = cls(
            decoder=decoder,
            windows=read_windows(reader, types, window=window),
            ropes=tuple(ropes.items()),
            attention_bias=reader.flag("attention_bias", False),
            mlp_bias=reader.flag("mlp_bias", False),
            norm_bias=reader.flag("norm_bias", False),
        )
        reader.ignore(
            "cls_token_id", "mlp_dropout", "initializer_cutoff_factor", "decoder_bias",
            "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index",
            "reference_compile", "repad_logits_with_grad",
            # of a head that this family has not
            "classifier_pooling", "classifier_bias", "classifier_activation",
        )  # fmt: skip
        reader.finish()
        return config


def weights(config: ModernBertConfig, num_labels: int | None) -> WeightTable:
    """Return the shape of every tensor by name."""
    assert num_labels is None, "the registry has no head for this family"
    d, width, inner = config.decoder, config.decoder.hidden_size, config.decoder.intermediate_size
    table: WeightTable = {
        "model.embeddings.tok_embeddings.weight": (d.vocab_size, width),
        **tables.norm("model.embeddings.norm", width, bias=config.norm_bias),
    }
    for index in range(d.num_layers):
        name = f"model.layers.{index}"
        if index:  # the first layer reads the norm of the embeddings
            table |= tables.norm(f"{name}.attn_norm", width, bias=config.norm_bias)
        table |= {
            **tables.linear(f"{name}.attn.Wqkv", 3 * width, width, bias=config.attention_bias),
            **tables.linear(f"{name}.attn.Wo", width, width, bias=config.attention_bias),
            **tables.norm(f"{name}.mlp_norm", width, bias=config.norm_bias),
            **tables.linear(f"{name}.mlp.Wi", 2 * inner, width, bias=config.mlp_bias),
            **tables.linear(f"{name}.mlp.Wo", width, inner, bias=config.mlp_bias),
        }
    return table | tables.norm("model.final_norm", width, bias=config.norm_bias)


def trace(step: EncoderStep, config: ModernBertConfig) -> Tracer:
    """Return the states of one step's tokens, (T, hidden_size)."""
    d, act = config.decoder, activation(config.decoder.activation)
    rotations = {name: step.rotation(rope) for name, rope in config.ropes}
    x = step.layer_norm(step.embed("model.embeddings.tok_embeddings"), "model.embeddings.norm")
    for index, window in enumerate(config.windows):
        name = f"model.layers.{index}"
        rotate = rotations["full_attention" if window is None else "sliding_attention"]
        with step.layer(index):
            h = step.layer_norm(x, f"{name}.attn_norm") if index else x
            q, k, v = step.fused_heads(step.linear(h, f"{name}.attn.Wqkv"), by_part=True)
            h = step.attend_all(rotate(q), rotate(k), v, window=window)
            x = x + step.linear(h, f"{name}.attn.Wo")
            h = step.linear(step.layer_norm(x, f"{name}.mlp_norm"), f"{name}.mlp.Wi")
            inner, gate = ops.split(h, (d.intermediate_size,) * 2)
            x = x + step.linear(act(inner) * gate, f"{name}.mlp.Wo")
    step.finish_layers()
    return step.layer_norm(x, "model.final_norm")
