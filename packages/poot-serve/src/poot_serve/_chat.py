"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any
from uuid import uuid4

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_core import RequestError, UnsupportedError
from poot_serve._generation import Generation, Piece, begin_generations
from poot_serve._requests import ChatRequest, read_body, receive_body, sampling_of
from poot_serve._responses import chat_logprobs, usage
from poot_serve._state import ServerState
from poot_serve._streaming import JsonResponse, gather_choices, stream_events

__all__ = ["chat_completions", "flatten_messages"]


def flatten_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with lists of text parts joined, as templates expect text.

    Raises:
        RequestError: If a part is not text.
    """
    flat: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            texts: list[str] = []
            for part in content:  # pyright: ignore[reportUnknownVariableType]
                if not isinstance(part, Mapping) or part.get("type") != "text":  # pyright: ignore[reportUnknownMemberType]
                    where = f"messages[{place}].content"
                    raise RequestError(f"{where} holds a part that is not text", field=where)
                texts.append(str(part.get("text", "")))  # pyright: ignore[reportUnknownMemberType]
            message = {**message, "content": "".join(texts)}
        flat.append(message)
    return flat


async def chat_completions(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state: ServerState = http.app.state.poot
    body = read_body(await receive_body(http), ChatRequest)
    model = state.check_model(body.model)
    params, count = sampling_of(body, state.sampling_defaults)
    prompt_ids = _prompt(state, body)
    generations = begin_generations(state, [prompt_ids], params, count)
    answer = _ChatAnswer(state, model, prompt_ids, generations)
    if body.stream:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        return await stream_events(
            http,
            generations,
            head=[answer.chunk(i, {"role": "assistant", "content": ""}) for i in range(count)],
            chunk=answer.piece_chunk,
            tail=answer.usage_chunk if include_usage else list,
        )
    found = await gather_choices(http, generations)
    return Response(status_code=499) if found is None else JsonResponse(answer.whole(found))


def _prompt(state: ServerState, body: ChatRequest) -> list[int]:
    tokenizer = state.require_tokenizer("messages")
    messages = flatten_messages(body.messages)
    contents = [message.get("content") for message in messages]
    state.check_text_length(sum(len(text) for text in contents if isinstance(text, str)))
    try:
        return tokenizer.chat_ids(
            messages,
            tools=body.tools or None,
            variables=body.chat_template_kwargs,
        )
    except UnsupportedError as error:
        raise RequestError(f"{error}; use /v1/completions", field="messages") from error


class _ChatAnswer:
    """Makes the bodies of one answer."""

    def __init__(
        self, state: ServerState, model: str, prompt_ids: list[int], generations: list[Generation]
    ) -> None:
        self._state = state
        self._prompt_tokens = len(prompt_ids)
        self._generations = generations
        self._frame = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time()), "model": model}

    def _usage(self) -> dict[str, Any]:
        return usage(self._prompt_tokens, sum(g.completion_tokens for g in self._generations))

    def chunk(self, choice: int, delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Return one chunk of a stream."""
        head = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return {
            **self._frame, "object": "chat.completion.chunk", "choices": [{**head, **fields}],
        }  # fmt: skip

    def piece_chunk(self, choice: int, piece: Piece) -> dict[str, Any] | None:
        """Return the chunk of a piece, or None where it says nothing."""
        if not piece.text and piece.finish_reason is None and not piece.logprobs:
            return None
        delta = {"content": piece.text} if piece.text else {}
        fields: dict[str, Any] = {"finish_reason": piece.finish_reason}
        if piece.logprobs:
            fields["logprobs"] = chat_logprobs(piece.logprobs, self._state.tokenizer)
        return self.chunk(choice, delta, **fields)

    def usage_chunk(self) -> list[dict[str, Any]]:
        """Return the last chunk, which has no choices."""
        chunk = {**self._frame, "object": "chat.completion.chunk", "choices": []}
        return [{**chunk, "usage": self._usage()}]

    def whole(self, found: list[list[Piece]]) -> dict[str, Any]:
        """Return the answer in one body."""
        return {
            **self._frame,
            "object": "chat.completion",
            "choices": [self._choice(i, pieces) for i, pieces in enumerate(found)],
            "usage": self._usage(),
        }

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        entries = [entry for piece in pieces for entry in piece.logprobs or ()]
        text = "".join(piece.text or "" for piece in pieces)
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": chat_logprobs(entries, self._state.tokenizer) if entries else None,
            "finish_reason": pieces[-1].finish_reason,
        }
