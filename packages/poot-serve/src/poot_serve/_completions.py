"""``POST /v1/completions``."""

from __future__ import annotations

from time import time
from typing import Any, cast
from uuid import uuid4

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_core import RequestError
from poot_serve._generation import Generation, Piece, begin_generations
from poot_serve._requests import CompletionRequest, read_body, receive_body, sampling_of
from poot_serve._responses import completion_logprobs, usage
from poot_serve._state import ServerState
from poot_serve._streaming import JsonResponse, gather_choices, stream_events

__all__ = ["completions"]

_MOST_PROMPTS = 128


async def completions(http: HttpRequest) -> Response:
    """Continue one or several prompts."""
    state: ServerState = http.app.state.poot
    body = read_body(await receive_body(http), CompletionRequest)
    model = state.check_model(body.model)
    params, count = sampling_of(body, state.sampling_defaults)
    prompts = _prompts(state, body)
    generations = begin_generations(state, prompts, params, count)
    prompt_tokens = sum(map(len, prompts))
    answer = _CompletionAnswer(state, model, prompt_tokens, generations)
    if body.stream:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        return await stream_events(
            http,
            generations,
            head=[],
            chunk=answer.piece_chunk,
            tail=answer.usage_chunk if include_usage else list,
        )
    found = await gather_choices(http, generations)
    return Response(status_code=499) if found is None else JsonResponse(answer.whole(found))


def _prompts(state: ServerState, body: CompletionRequest) -> list[list[int]]:
    prompt = body.prompt
    items = cast(list[Any], [prompt] if isinstance(prompt, str) else prompt)
    if not items:
        raise RequestError("prompt is empty", field="prompt")
    if isinstance(items[0], int):
        items = [items]
    if len(items) > _MOST_PROMPTS:
        raise RequestError(
            f"{len(items)} prompts in one request; at most {_MOST_PROMPTS}", field="prompt"
        )
    found: list[list[int]] = []
    for item in items:
        if isinstance(item, str):
            tokenizer = state.require_tokenizer("prompt")
            state.check_text_length(len(item))
            found.append(tokenizer.encode(item, adds_special=True))
        elif item and all(isinstance(i, int) for i in item):
            found.append(list(item))
        else:
            raise RequestError("prompt must be text, token ids, or a list of these", field="prompt")
    return found


class _CompletionAnswer:
    """Makes the bodies of one answer."""

    def __init__(
        self, state: ServerState, model: str, prompt_tokens: int, generations: list[Generation]
    ) -> None:
        self._state = state
        self._prompt_tokens = prompt_tokens
        self._generations = generations
        self._sent = [0] * len(generations)
        self._frame: dict[str, Any] = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time()),
            "model": model,
        }

    def _usage(self) -> dict[str, Any]:
        return usage(self._prompt_tokens, sum(g.completion_tokens for g in self._generations))

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        entries = [entry for piece in pieces for entry in piece.logprobs or ()]
        text = "".join(piece.text or "" for piece in pieces)
        logprobs = None
        if entries:
            logprobs = completion_logprobs(
                entries, self._state.tokenizer, first_offset=self._sent[index]
            )
        self._sent[index] += len(text)
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": pieces[-1].finish_reason,
        }
        if self._state.tokenizer is None:
            choice["token_ids"] = [i for piece in pieces for i in piece.token_ids]
        return choice

    def piece_chunk(self, choice: int, piece: Piece) -> dict[str, Any] | None:
        """Return the chunk of a piece, or None where it says nothing."""
        says = piece.text or piece.finish_reason or piece.logprobs or self._state.tokenizer is None
        return {**self._frame, "choices": [self._choice(choice, [piece])]} if says else None

    def usage_chunk(self) -> list[dict[str, Any]]:
        """Return the last chunk, which has no choices."""
        return [{**self._frame, "choices": [], "usage": self._usage()}]

    def whole(self, found: list[list[Piece]]) -> dict[str, Any]:
        """Return the answer in one body."""
        choices = [self._choice(i, pieces) for i, pieces in enumerate(found)]
        return {**self._frame, "choices": choices, "usage": self._usage()}
