"""Reading rotary settings: both the ``rope_parameters`` form and the older ``rope_scaling`` one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from poot_models._decoder import Decoder
from poot_models._reader import ConfigReader
from poot_models.components import frequencies
from poot_models.components.frequencies import Frequencies

__all__ = ["Rope", "read_rope", "read_rope_by_layer_type"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of one group of layers.

    Attributes:
        rotary_dim: Leading elements of a head that are rotated; the others pass.
        interleaved: Whether pairs are neighbours (2i, 2i+1) rather than halves (i, i + dim/2).
        short: Frequencies in force.
        long: Frequencies for an engine opened with a context beyond ``original_context``, if any.
        original_context: Context of the pretraining, in tokens, where ``long`` is given.
        max_context: Longest context that these frequencies are made for, in tokens.
    """

    rotary_dim: int
    interleaved: bool
    short: Frequencies
    long: Frequencies | None = None
    original_context: int | None = None
    max_context: int

    def frequencies(self, context_tokens: int) -> Frequencies:
        """Return the frequencies for an engine whose longest sequence has ``context_tokens``.

        NOTE: LongRoPE has two sets. transformers switches to the long one when the longest
        position of a *call* passes the original context, so that a cached sequence mixes both.
        poot chooses once, by the context that the engine is opened with: a request then does not
        depend on chunking or on its neighbours.
        """
        if self.long is None or self.original_context is None:
            return self.short
        return self.long if context_tokens > self.original_context else self.short


def read_rope(
    reader: ConfigReader,
    decoder: Decoder,
    *,
    theta: float = 10000.0,
    rotary_share: float = 1.0,
    interleaved: bool = False,
    theta_key: str = "rope_theta",
    share_key: str = "partial_rotary_factor",
) -> tuple[Decoder, Rope]:
    """Return the rotary embedding that all layers share, and the decoder with the context it gives.

    Args:
        reader: The model's configuration.
        decoder: Sizes, with ``max_position_embeddings`` as the context.
        theta: Base where the configuration names none.
        rotary_share: Share of a head that is rotated where the configuration names none.
        interleaved: Whether the family pairs neighbours.
        theta_key: Older top-level key of the base.
        share_key: Older top-level key of the share.

    Raises:
        CheckpointError: If a key is unknown, missing or has a value that poot does not implement.
    """
    base = reader.number(theta_key, theta)
    share = reader.number(share_key, rotary_share)
    parameters = _parameters(reader)
    rope = _parse(
        reader, parameters, decoder.head_dim, decoder.max_context,
        theta=base, share=share, interleaved=interleaved,
    )  # fmt: skip
    return replace(decoder, max_context=rope.max_context), rope


def read_rope_by_layer_type(
    reader: ConfigReader, *, head_dim: int, max_context: int, theta: Mapping[str, float]
) -> dict[str, Rope]:
    """Return the rotary embedding of each layer type.

    The older form has one base and one scaling, which hold for ``full_attention`` alone, and
    ``rope_local_base_freq`` for the others.

    Args:
        reader: The model's configuration.
        head_dim: Elements of a query or key head.
        max_context: ``max_position_embeddings``, in tokens.
        theta: Base of each layer type where the configuration names none.
    """
    parameters = _parameters(reader)
    old = {
        "full_attention": reader.number("rope_theta", theta["full_attention"]),
        "sliding_attention": reader.number("rope_local_base_freq", theta["sliding_attention"]),
    }
    nested = any(name in parameters for name in theta)
    ropes: dict[str, Rope] = {}
    for name, base in old.items():
        section = parameters.section(name, {}) if nested else parameters
        if not nested and name != "full_attention":
            section = ConfigReader({}, family=reader.family)
        ropes[name] = _parse(
            reader, section, head_dim, max_context, theta=base, share=1.0, interleaved=False
        )
    if nested:
        parameters.finish()
    return ropes


def _parameters(reader: ConfigReader) -> ConfigReader:
    old = reader.take("rope_scaling", None)
    new = reader.take("rope_parameters", None)
    if old is not None and new is not None and old != new:
        raise reader.error("rope_scaling", old, "nothing, since 'rope_parameters' is given too")
    name = "rope_scaling" if new is None and old is not None else "rope_parameters"
    return reader.section(name, {})


def _parse(
    reader: ConfigReader,
    parameters: ConfigReader,
    head_dim: int,
    max_context: int,
    *,
    theta: float,
    share: float,
    interleaved: bool,
) -> Rope:
    kind = _kind(parameters)
    theta = parameters.number("rope_theta", theta)
    share = parameters.number("partial_rotary_factor", share)
    dim = int(head_dim * share)
    if share > 1 or dim < 2 or dim % 2:
        raise parameters.error(
            "partial_rotary_factor", share, f"a share of head_dim {head_dim} that is even"
        )
    short, long, original = _SCALINGS[kind](reader, parameters, dim, theta, max_context)
    if kind == "proportional":
        dim = head_dim
    if kind == "yarn" and original is not None:
        max_context = max(max_context, int(original * parameters.number("factor")))
    parameters.finish()
    return Rope(
        rotary_dim=dim,
        interleaved=interleaved or reader.flag("rope_interleaved", False),
        short=short,
        long=long,
        original_context=original if long else None,
        max_context=max_context,
    )


def _kind(parameters: ConfigReader) -> str:
    old = parameters.take("type", None)
    kind = parameters.take("rope_type", old if old is not None else "default")
    if kind == "su":  # LongRoPE before it had that name
        kind = "longrope"
    if kind not in _SCALINGS or (old is not None and old not in {kind, "su"}):
        raise parameters.error("rope_type", kind, "one of " + ", ".join(sorted(_SCALINGS)))
    return kind


_Parsed = tuple[Frequencies, Frequencies | None, int | None]


def _original_context(reader: ConfigReader, parameters: ConfigReader, max_context: int) -> int:
    outer = reader.optional_integer("original_max_position_embeddings")
    inner = parameters.integer("original_max_position_embeddings", outer or max_context)
    return outer or inner


def _default(r: ConfigReader, p: ConfigReader, dim: int, theta: float, context: int) -> _Parsed:
    r.ignore("original_max_position_embeddings")  # Phi3 writes it always
    return frequencies.default(dim, theta), None, None


def _linear(r: ConfigReader, p: ConfigReader, dim: int, theta: float, context: int) -> _Parsed:
    return frequencies.linear(dim, theta, factor=p.number("factor")), None, None


def _dynamic(r: ConfigReader, p: ConfigReader, dim: int, theta: float, context: int) -> _Parsed:
    # NOTE: dynamic NTK scaling starts beyond ``max_position_embeddings``, where poot ends: within
    # it the frequencies are the plain ones. A fixed ``alpha`` (Hunyuan) stretches the base instead.
    alpha = p.optional_number("alpha")
    p.number("factor", 1.0)
    if alpha is not None:
        p.ignore("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        return frequencies.ntk_alpha(dim, theta, alpha=alpha), None, None
    return frequencies.default(dim, theta), None, None


def _proportional(
    r: ConfigReader, p: ConfigReader, dim: int, theta: float, context: int
) -> _Parsed:
    share = p.number("partial_rotary_factor", 1.0)
    full = round(dim / share)
    factor = p.number("factor", 1.0)
    return frequencies.proportional(full, theta, rotated=share, factor=factor), None, None


def _llama3(r: ConfigReader, p: ConfigReader, dim: int, theta: float, context: int) -> _Parsed:
    low, high = p.number("low_freq_factor"), p.number("high_freq_factor")
    if high <= low:
        raise p.error("high_freq_factor", high, f"more than low_freq_factor {low}")
    made = frequencies.llama3(
        dim,
        theta,
        factor=p.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=_original_context(r, p, context),
    )
    return made, None, None


def _yarn(r: ConfigReader, p: ConfigReader, dim: int, theta: float, context: int) -> _Parsed:
    original = _original_context(r, p, context)
    made = frequencies.yarn(
        dim,
        theta,
        factor=p.number("factor"),
        original_context=original,
        beta_fast=p.number("beta_fast", 32.0),
        beta_slow=p.number("beta_slow", 1.0),
        attention_factor=p.optional_number("attention_factor"),
        mscale=p.number("mscale", 0.0, positive=False),
        mscale_all_dim=p.number("mscale_all_dim", 0.0, positive=False),
        truncate=p.flag("truncate", True),
    )
    return made, None, original


def _longrope(r: ConfigReader, p: ConfigReader, dim: int, theta: float, context: int) -> _Parsed:
    original = _original_context(r, p, context)
    factor = p.number("factor", context / original)
    attention_factor = p.optional_number("attention_factor")
    short, long = (
        frequencies.longrope(
            dim,
            theta,
            factors=p.numbers(name, dim // 2),
            factor=factor,
            original_context=original,
            attention_factor=attention_factor,
        )
        for name in ("short_factor", "long_factor")
    )
    return short, long, original


_SCALINGS: dict[str, Any] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
