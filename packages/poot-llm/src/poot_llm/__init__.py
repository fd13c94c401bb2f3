"""The generation driver: tokenizer, chat templates, scheduler, paged KV, sampling, and the poot command.

Names are imported when they are first used, so that a command starts with what it needs alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poot_llm._answer import Delta, Output
    from poot_llm._constraint import Constraint, ConstraintKind
    from poot_llm._driver import Driver, DriverStats, StepOutcome
    from poot_llm._encoder import Encoder, EncoderOptions, OpenedEncoder, open_encoder, shorten
    from poot_llm._encoder_driver import EncoderDriver, EncoderResult, EncoderStats
    from poot_llm._encoder_text import EncodedText, EncoderText, open_encoder_text
    from poot_llm._errors import ContextLengthError, OverloadedError
    from poot_llm._llm import LLM
    from poot_llm._open import OpenedModel, OpenOptions, open_model
    from poot_llm._open_text import TextSide, open_text
    from poot_llm._preparation import Preparation, needs_preparation
    from poot_llm._request import FinishReason, Request, ScoredPrompt, Timings, TokenEvent
    from poot_llm._sampler import Logprobs
    from poot_llm._sampling_params import SamplingParams
    from poot_llm._tokenizer import Tokenizer
    from poot_llm._vocabulary import Vocabulary

_HOME = {
    "LLM": "_llm",
    "Constraint": "_constraint",
    "ConstraintKind": "_constraint",
    "ContextLengthError": "_errors",
    "Delta": "_answer",
    "Driver": "_driver",
    "DriverStats": "_driver",
    "EncodedText": "_encoder_text",
    "Encoder": "_encoder",
    "EncoderDriver": "_encoder_driver",
    "EncoderOptions": "_encoder",
    "EncoderResult": "_encoder_driver",
    "EncoderStats": "_encoder_driver",
    "EncoderText": "_encoder_text",
    "FinishReason": "_request",
    "Logprobs": "_sampler",
    "OpenOptions": "_open",
    "OpenedEncoder": "_encoder",
    "OpenedModel": "_open",
    "Output": "_answer",
    "OverloadedError": "_errors",
    "Preparation": "_preparation",
    "Request": "_request",
    "SamplingParams": "_sampling_params",
    "ScoredPrompt": "_request",
    "StepOutcome": "_driver",
    "TextSide": "_open_text",
    "Timings": "_request",
    "TokenEvent": "_request",
    "Tokenizer": "_tokenizer",
    "Vocabulary": "_vocabulary",
    "needs_preparation": "_preparation",
    "open_encoder": "_encoder",
    "open_encoder_text": "_encoder_text",
    "open_model": "_open",
    "open_text": "_open_text",
    "shorten": "_encoder",
}

__all__ = [
    "LLM",
    "Constraint",
    "ConstraintKind",
    "ContextLengthError",
    "Delta",
    "Driver",
    "DriverStats",
    "EncodedText",
    "Encoder",
    "EncoderDriver",
    "EncoderOptions",
    "EncoderResult",
    "EncoderStats",
    "EncoderText",
    "FinishReason",
    "Logprobs",
    "OpenOptions",
    "OpenedEncoder",
    "OpenedModel",
    "Output",
    "OverloadedError",
    "Preparation",
    "Request",
    "SamplingParams",
    "ScoredPrompt",
    "StepOutcome",
    "TextSide",
    "Timings",
    "TokenEvent",
    "Tokenizer",
    "Vocabulary",
    "needs_preparation",
    "open_encoder",
    "open_encoder_text",
    "open_model",
    "open_text",
    "shorten",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
