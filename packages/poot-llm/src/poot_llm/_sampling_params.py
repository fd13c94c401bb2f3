"""What a request asks of sampling; checked when it is made, so that a bad value names its field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from poot_core import RequestError
from poot_llm._constraint import Constraint

__all__ = ["SamplingParams"]

_MOST_LOGPROBS = 20
_MOST_STOPS = 64
_MOST_BREAKERS = 64
_MOST_BIASES = 1024
_LEAST_REPETITION, _MOST_REPETITION = 0.01, 100.0  # beyond, logits leave float32


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when a sequence ends.

    The steps run in this order: constraint, logit bias, minimum length, repetition, frequency and
    presence penalty, DRY, temperature, top-k, top-p, min-p, typical-p, XTC. Each filter sees the
    probabilities of the tokens that the one before it left, made to sum to 1.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Keeps the k most likely tokens (and ties with the last); 0 or -1 keeps all.
        top_p: Keeps the fewest most likely tokens whose probabilities sum to at least this.
        min_p: Keeps tokens at least this many times as likely as the most likely one.
        typical_p: Keeps the tokens whose surprise is nearest to the entropy, up to this mass
            (arXiv:2202.00666).
        repetition_penalty: Divides positive and multiplies negative logits of tokens that stand in
            prompt or answer (arXiv:1909.05858); from 0.01 to 100.
        frequency_penalty: Taken off a logit for each time its token stands in the answer.
        presence_penalty: Taken off a logit once when its token stands in the answer.
        dry_multiplier: Strength of DRY ("don't repeat yourself"); 0 turns it off. A token that would
            continue a repetition of n tokens loses ``dry_multiplier * dry_base ** (n -
            dry_allowed_length)`` of its logit.
        dry_base: Growth of the penalty with each further repeated token.
        dry_allowed_length: Repetitions shorter than this are free.
        dry_range: How many of the last tokens are searched; None searches prompt and answer.
        dry_sequence_breakers: Texts over which no repetition is seen.
        xtc_probability: How often XTC ("exclude top choices") acts at a position.
        xtc_threshold: When it acts, all tokens at least so likely but the least of them are excluded.
        seed: Random key of the request; None draws one from the operating system.
        max_tokens: Most tokens of the answer; None goes on until the context is full.
        min_tokens: No end token, and no stop string, before this many tokens.
        stop: Texts that end the answer; they are not part of it.
        stop_token_ids: Tokens that end the answer, beside the model's own end tokens.
        ignore_eos: Whether the model's own end tokens are tokens like any other.
        logprobs: How many most likely tokens to report at each position (0: the chosen one alone);
            None reports nothing. They are of the raw logits, before all steps above.
        prompt_logprobs: The same for each token of the prompt but the first. ``max_tokens`` may be 0
            then, which scores the prompt and generates nothing.
        logit_bias: Added to the logits of these tokens; -100 all but forbids one.
        constraint: Shape that the answer must have, or None.

    Raises:
        RequestError: If a value is out of range; ``field`` names it.

    >>> SamplingParams(temperature=-1.0)
    Traceback (most recent call last):
    poot_core.errors.RequestError: temperature is -1.0; it must be a finite number of at least 0
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int | None = None
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        _number(self, "temperature", 0.0, None)
        _whole(self, "top_k", -1, None)
        _number(self, "top_p", 0.0, 1.0, above=True)
        _number(self, "min_p", 0.0, 1.0)
        _number(self, "typical_p", 0.0, 1.0, above=True)
        _number(self, "repetition_penalty", _LEAST_REPETITION, _MOST_REPETITION)
        _number(self, "frequency_penalty", -2.0, 2.0)
        _number(self, "presence_penalty", -2.0, 2.0)
        _number(self, "dry_multiplier", 0.0, 100.0)
        _number(self, "dry_base", 1.0, 100.0)
        _whole(self, "dry_allowed_length", 1, None)
        if self.dry_range is not None:
            _whole(self, "dry_range", 0, None)
        _number(self, "xtc_probability", 0.0, 1.0)
        _number(self, "xtc_threshold", 0.0, 1.0)
        if self.seed is not None:
            _whole(self, "seed", -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _whole(self, "max_tokens", 1 if self.prompt_logprobs is None else 0, None)
        _whole(self, "min_tokens", 0, self.max_tokens)
        if self.logprobs is not None:
            _whole(self, "logprobs", 0, _MOST_LOGPROBS)
        if self.prompt_logprobs is not None:
            _whole(self, "prompt_logprobs", 0, _MOST_LOGPROBS)
        for name, most in (("stop", _MOST_STOPS), ("dry_sequence_breakers", _MOST_BREAKERS)):
            object.__setattr__(self, name, _texts(name, getattr(self, name), most))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that were seen before weigh less."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )


def _refuse(name: str, value: object, rule: str) -> RequestError:
    return RequestError(f"{name} is {value!r}; it must be {rule}", field=name)


def _number(
    params: SamplingParams, name: str, low: float, high: float | None, *, above: bool = False
) -> None:
    value: Any = getattr(params, name)
    least = f"more than {low:g}" if above else f"at least {low:g}"
    rule = f"a finite number of {least}" + ("" if high is None else f" and at most {high:g}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _refuse(name, value, rule)
    if value < low or (above and value == low) or (high is not None and value > high):
        raise _refuse(name, value, rule)


def _whole(params: SamplingParams, name: str, low: int, high: int | None) -> None:
    value: Any = getattr(params, name)
    rule = f"a whole number of at least {low}" + ("" if high is None else f" and at most {high}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refuse(name, value, rule)
    if value < low or (high is not None and value > high):
        raise _refuse(name, value, rule)


def _texts(name: str, value: Any, most: int) -> tuple[str, ...]:
    value = (value,) if isinstance(value, str) else value
    texts = tuple(cast(Iterable[Any], value or ()))
    if len(texts) > most:
        raise _refuse(name, f"{len(texts)} texts", f"at most {most} texts")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise _refuse(name, text, "texts, none of them empty")
    return texts


def _ids(name: str, value: Any) -> tuple[int, ...]:
    ids = tuple(cast(Iterable[Any], value or ()))
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise _refuse(name, token_id, "token ids, whole numbers of at least 0")
    return ids


def _biases(value: Any) -> dict[int, float]:
    biases: dict[int, float] = {}
    if len(value or ()) > _MOST_BIASES:
        raise _refuse("logit_bias", f"{len(value)} tokens", f"at most {_MOST_BIASES} tokens")
    for token_id, bias in dict(cast(Mapping[Any, Any], value or {})).items():
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise _refuse("logit_bias", token_id, "keyed by token ids")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise _refuse("logit_bias", bias, "numbers from -100 to 100")
        biases[token_id] = float(bias)
    return biases
