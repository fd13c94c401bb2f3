"""``/tokenize``, ``/detokenize`` and ``/apply-template``."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from poot_serve._wire.chat import ChatTool, Message

__all__ = [
    "DetokenizeRequest",
    "Detokenized",
    "RenderedTemplate",
    "TemplateRequest",
    "TokenizeRequest",
    "Tokenized",
    "TokenizerInfo",
]


class TemplateRequest(Struct, frozen=True, kw_only=True):
    """A conversation to write as the model reads it."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    tools: list[ChatTool] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizerInfo(Struct, frozen=True, kw_only=True):
    """What a client needs to tokenize through this server."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None
    vocab_size: int


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """A text or a conversation to tokenize; one of ``prompt``, ``content`` and ``messages``."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[ChatTool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Tokenized(Struct, frozen=True, kw_only=True):
    """Token ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: int | None
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """Token ids to turn into text."""

    tokens: Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=1 << 20)]
    model: str | None = None


class Detokenized(Struct, frozen=True, kw_only=True):
    """Text of token ids, under the names that two dialects use."""

    prompt: str
    content: str


class RenderedTemplate(Struct, frozen=True, kw_only=True):
    """The prompt of a conversation."""

    prompt: str
