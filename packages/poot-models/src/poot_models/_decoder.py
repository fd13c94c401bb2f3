"""What every decoder has: sizes and a few choices, read from the Hugging Face keys."""

from __future__ import annotations

from dataclasses import dataclass

from poot_models._reader import ConfigReader

__all__ = ["ACTIVATIONS", "Decoder", "Keys", "read_decoder"]

MAX_LAYERS = 1024
"""More layers than any model has: bounds what a lying configuration makes poot build."""

ACTIVATIONS = frozenset({"silu", "swish", "gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh"})
"""Activations that poot traces, by their Hugging Face names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Sizes and choices of a decoder.

    Attributes:
        vocab_size: Rows of the embedding and width of the logits.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_layers: Repeated layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides ``num_heads``.
        head_dim: Elements of a head.
        activation: Hugging Face name of the MLP's activation.
        norm_eps: Added to the mean square or the variance in each norm.
        tied: Whether the output projection is the embedding.
        max_context: Longest sequence, in tokens.
        bos_token_id: Token that starts a sequence, if any.
        eos_token_ids: Tokens that end one.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: str
    norm_eps: float
    tied: bool
    max_context: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The names under which a family stores what ``Decoder`` holds; None where it stores none."""

    hidden_size: str = "hidden_size"
    intermediate_size: str | None = "intermediate_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    num_kv_heads: str | None = "num_key_value_heads"
    head_dim: str | None = "head_dim"
    activation: str | None = "hidden_act"
    norm_eps: str = "rms_norm_eps"
    max_context: str | None = "max_position_embeddings"


def read_decoder(
    reader: ConfigReader,
    keys: Keys | None = None,
    *,
    head_dim: int | None = None,
    activation: str = "silu",
    norm_eps: float = 1e-6,
    tied: bool = False,
    max_context: int = 2048,
) -> Decoder:
    """Return the sizes and choices of a model.

    Args:
        reader: The model's configuration.
        keys: Names of the keys where they are not the usual ones.
        head_dim: Elements of a head where the configuration names none; by default the width
            divided by the heads.
        activation: Activation where the configuration names none.
        norm_eps: Epsilon where the configuration names none.
        tied: Whether the embedding is the output projection where the configuration does not say.
        max_context: Longest sequence where the configuration names none, in tokens.

    Raises:
        CheckpointError: If a size is missing, out of range or does not divide.
    """
    keys = keys or Keys()
    width, heads = reader.integer(keys.hidden_size), reader.integer(keys.num_heads)
    layers = reader.integer(keys.num_layers)
    if layers > MAX_LAYERS:
        raise reader.error(keys.num_layers, layers, f"at most {MAX_LAYERS}")
    kv_heads = reader.integer(keys.num_kv_heads, heads) if keys.num_kv_heads else heads
    if heads % kv_heads:
        raise reader.error(str(keys.num_kv_heads), kv_heads, f"a divisor of {heads} query heads")
    if keys.head_dim and keys.head_dim in reader:
        head_dim = reader.integer(keys.head_dim)
    elif head_dim is None:
        head_dim = width // heads
        if width % heads:
            raise reader.error(keys.num_heads, heads, f"a divisor of {keys.hidden_size} {width}")
    inner = 4 * width
    if keys.intermediate_size:
        inner = reader.integer(keys.intermediate_size)
    if keys.activation:
        activation = reader.choice(keys.activation, ACTIVATIONS, activation)
    if keys.max_context:
        max_context = reader.integer(keys.max_context, max_context)
    bos = reader.token_ids("bos_token_id")
    return Decoder(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=width,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        activation=activation,
        norm_eps=reader.number(keys.norm_eps, norm_eps),
        tied=reader.flag("tie_word_embeddings", tied),
        max_context=max_context,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=reader.token_ids("eos_token_id"),
    )
