"""``POST /tokenize``, ``/detokenize`` and ``/apply-template``."""

from __future__ import annotations

from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_core import RequestError
from poot_serve._conversation import Conversation, render, template_messages
from poot_serve._endpoints.chat import template_variables
from poot_serve._endpoints.requests import read_request, state_of
from poot_serve._errors import JsonResponse
from poot_serve._logprobs import token_text
from poot_serve._state import ServerState
from poot_serve._wire.tokens import (
    Detokenized,
    DetokenizeRequest,
    RenderedTemplate,
    TemplateRequest,
    Tokenized,
    TokenizeRequest,
    TokenizerInfo,
)

__all__ = ["apply_template", "detokenize", "tokenize", "tokenizer_info"]


async def tokenize(http: HttpRequest) -> Response:
    """Return the tokens of a text or a conversation."""
    state = state_of(http)
    body = await read_request(http, TokenizeRequest, needs_room=False)
    tokenizer = state.require_tokenizer("prompt")
    if body.messages is not None:
        text, adds_special = await _rendered(state, body), False
    else:
        given = body.prompt if body.prompt is not None else body.content
        if given is None:
            raise RequestError("give prompt or messages", field="prompt")
        text, adds_special = given, body.add_special_tokens is not False
    state.check_text_length(len(text))
    ids = await state.with_text(
        len(text), lambda: tokenizer.encode(text, adds_special=adds_special)
    )
    names = [token_text(token_id, tokenizer) for token_id in ids]
    return JsonResponse(
        Tokenized(
            tokens=ids,
            count=len(ids),
            max_model_len=state.context_tokens,
            token_strs=names if body.return_token_strs else UNSET,
        )
    )


async def detokenize(http: HttpRequest) -> Response:
    """Return the text of tokens, control tokens spelled out."""
    state = state_of(http)
    body = await read_request(http, DetokenizeRequest, needs_room=False)
    tokenizer = state.require_tokenizer("tokens")
    text = await state.with_text(
        4 * len(body.tokens),
        lambda: tokenizer.decode(body.tokens, skips_special=False, continues=True),
    )
    return JsonResponse(Detokenized(prompt=text, content=text))


async def apply_template(http: HttpRequest) -> Response:
    """Return the prompt of a conversation."""
    state = state_of(http)
    body = await read_request(http, TemplateRequest, needs_room=False)
    return JsonResponse(RenderedTemplate(prompt=await _rendered(state, body)))


async def tokenizer_info(http: HttpRequest) -> Response:
    """Return special tokens and the chat template."""
    tokenizer = state_of(http).require_tokenizer("model")
    texts = tokenizer.special_tokens
    return JsonResponse(
        TokenizerInfo(
            bos_token=texts.get("bos_token"),
            eos_token=texts.get("eos_token"),
            pad_token=texts.get("pad_token"),
            chat_template=tokenizer.chat_template,
            vocab_size=tokenizer.vocab_size,
        )
    )


async def _rendered(state: ServerState, body: TokenizeRequest | TemplateRequest) -> str:
    tokenizer = state.require_tokenizer("messages")
    conversation = Conversation(
        messages=template_messages(body.messages or (), state.answer_format),
        tools=tuple(body.tools or ()),
        variables=template_variables(body.chat_template_kwargs, None),
        adds_prompt=body.add_generation_prompt is not False,
    )
    state.check_text_length(conversation.characters)
    return await state.with_text(conversation.characters, lambda: render(tokenizer, conversation))
