"""``POST /v1/completions``."""

from __future__ import annotations

from time import time
from typing import Any, cast
from uuid import uuid4

from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_core import PootError, RequestError
from poot_llm import Logprobs
from poot_serve._chat_run import begin_choices
from poot_serve._choice import Choice, IdsReader, Reader, TextReader, Update
from poot_serve._endpoints.requests import check_count, read_request, state_of
from poot_serve._errors import openai_error
from poot_serve._event_stream import Collected, answer_with, sse
from poot_serve._logprobs import completion_logprobs, prompt_logprobs, token_text
from poot_serve._parsing.deltas import Content
from poot_serve._record import record_of
from poot_serve._sampling import constraint_of, params_of
from poot_serve._state import ServerState
from poot_serve._wire.common import Usage
from poot_serve._wire.completions import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionRequest,
)

__all__ = ["completions"]

_MOST_PROMPTS = 128
_DEFAULT_TOKENS = 16  # as in OpenAI's API


async def completions(http: HttpRequest) -> Response:
    """Continue one or several prompts."""
    state, record = state_of(http), record_of(http)
    body = await read_request(http, CompletionRequest)
    count = check_count(state, body.n)
    _refuse_what_is_not_there(body)
    echoes = bool(body.echo)
    params = params_of(
        body,
        {"max_tokens": _DEFAULT_TOKENS, **state.sampling_defaults},
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if echoes and body.prompt_logprobs is None else None,
        constraint=constraint_of(body),
    )
    if params.max_tokens == 0 and params.prompt_logprobs is None:
        raise RequestError(
            "max_tokens is 0; that needs echo with logprobs, or prompt_logprobs", field="max_tokens"
        )
    prompts, texts = await _prompts(state, body)

    def reader() -> Reader:
        return IdsReader() if state.tokenizer is None else TextReader(state.tokenizer, params)

    choices = begin_choices(
        state,
        record,
        prompts,
        params,
        count,
        readers=reader,
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
    )
    answer = _CompletionAnswer(state, body, record.model or "", prompts, texts, count, choices)
    return await answer_with(
        http,
        choices,
        answer,
        stream=bool(body.stream),
        timeout_s=state.limits.request_timeout_s,
        keep_alive_s=state.limits.keep_alive_s,
    )


def _refuse_what_is_not_there(body: CompletionRequest) -> None:
    if body.suffix:
        raise RequestError(
            "suffix is not supported: no model served here fills in the middle by this field; write "
            "the model's own fill-in-the-middle tokens into prompt",
            field="suffix",
        )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError("best_of is not supported; ask for n answers", field="best_of")


async def _prompts(
    state: ServerState, body: CompletionRequest
) -> tuple[list[list[int]], list[str | None]]:
    """Return the tokens of each prompt, and its text where it came as text."""
    prompt = body.prompt
    items = cast(list[Any], [prompt] if isinstance(prompt, str) else prompt)
    if isinstance(items[0], int):
        items = [items]
    if len(items) > _MOST_PROMPTS:
        raise RequestError(
            f"{len(items)} prompts in one request; at most {_MOST_PROMPTS}", field="prompt"
        )
    found: list[list[int]] = []
    texts: list[str | None] = []
    for item in items:
        texts.append(item if isinstance(item, str) else None)
        if isinstance(item, str):
            found.append(await _encode(state, item, adds_special=body.add_special_tokens))
        elif isinstance(item, list) and item and all(type(i) is int for i in item):
            found.append(item)
        else:
            raise RequestError(
                "prompt must be text, token ids, or a list of these, none of them empty",
                field="prompt",
            )
    return found, texts


async def _encode(state: ServerState, text: str, *, adds_special: bool | None) -> list[int]:
    tokenizer = state.require_tokenizer("prompt")
    state.check_text_length(len(text))
    ids = await state.with_text(
        len(text), lambda: tokenizer.encode(text, adds_special=adds_special is not False)
    )
    if not ids:
        raise RequestError("the prompt is empty; give at least one token", field="prompt")
    return ids


class _CompletionAnswer:
    """Writes one answer in OpenAI's dialect."""

    def __init__(
        self,
        state: ServerState,
        body: CompletionRequest,
        model: str,
        prompts: list[list[int]],
        texts: list[str | None],
        count: int,
        choices: list[Choice],
    ) -> None:
        self._state = state
        self._prompts = prompts
        self._texts = texts
        self._count = count
        self._choices = choices
        self._echoes = bool(body.echo)
        self._has_logprobs = body.logprobs is not None
        self._shows_prompt = body.prompt_logprobs is not None
        # Nothing but text comes with the tokens of such an answer.
        self._is_plain = not (self._echoes or self._has_logprobs or state.tokenizer is None)
        options = body.stream_options
        self._adds_usage = bool(options and options.include_usage)
        self._adds_running_usage = bool(options and options.continuous_usage_stats)
        self._sent = [0] * len(choices)
        self._offsets = [0] * len(choices)  # characters named so far
        self._frame: dict[str, Any] = {
            "id": f"cmpl-{uuid4().hex}", "created": int(time()), "model": model,
        }  # fmt: skip

    def begin(self) -> bytes:
        """Return nothing: a completion has no head."""
        return b""

    def update(self, index: int, update: Update) -> bytes:
        """Return the chunk of an update."""
        is_first = self._sent[index] == 0
        self._sent[index] += 1
        if self._is_plain and update.finish_reason is None:
            text = "".join([each.text for each in update.deltas if isinstance(each, Content)])
            return self._chunk(CompletionChunkChoice(index=index, text=text)) if text else b""
        found = Collected(finish_reason="")
        found.add(update)
        says = (
            found.content
            or found.finish_reason
            or update.logprobs
            or (self._state.tokenizer is None and update.token_ids)
            or (is_first and self._echoes)
        )
        if not says:
            return b""
        part = self._part(index, found, echoes=self._echoes and is_first)
        choice = CompletionChunkChoice(
            index=index,
            finish_reason=found.finish_reason or None,  # pyright: ignore[reportArgumentType]
            **part,
        )
        return self._chunk(choice)

    def _chunk(self, choice: CompletionChunkChoice) -> bytes:
        usage: Usage | UnsetType | None = UNSET
        if self._adds_running_usage:
            usage = self._usage()
        elif self._adds_usage:
            usage = None
        return sse(CompletionChunk(**self._frame, choices=[choice], usage=usage))

    def end(self) -> bytes:
        """Return the usage where asked for, and the last event."""
        usage = b""
        if self._adds_usage:
            usage = sse(CompletionChunk(**self._frame, choices=[], usage=self._usage()))
        return usage + b"data: [DONE]\n\n"

    def failed(self, error: PootError) -> bytes:
        """Return the events of an error."""
        return sse(openai_error(error)) + b"data: [DONE]\n\n"

    def whole(self, found: list[Collected]) -> Completion:
        """Return the body of an answer."""
        choices: list[CompletionChoice] = []
        for index, each in enumerate(found):
            prompt = each.prompt_logprobs
            choices.append(
                CompletionChoice(
                    index=index,
                    finish_reason=each.finish_reason,  # pyright: ignore[reportArgumentType]
                    stop_reason=UNSET if each.stop is None else each.stop,
                    prompt_logprobs=prompt_logprobs(prompt, self._state.tokenizer)
                    if self._shows_prompt and prompt is not None
                    else UNSET,
                    **self._part(index, each, echoes=self._echoes),
                )
            )
        return Completion(**self._frame, choices=choices, usage=self._usage())

    def _usage(self) -> Usage:
        return Usage.of(
            sum(map(len, self._prompts)),
            sum(choice.completion_tokens for choice in self._choices),
            cached=sum(choice.cached_tokens for choice in self._choices[:: self._count]),
        )

    def _part(self, index: int, found: Collected, *, echoes: bool) -> dict[str, Any]:
        """Return text, logprobs and ids of a choice, the prompt in front where it is echoed."""
        tokenizer = self._state.tokenizer
        prompt_ids = self._prompts[index // self._count]
        text = found.text
        entries: list[Logprobs | None] = list(found.logprobs)
        # What a stop string cut off has logprobs too; an end token has no text but an entry.
        ids = found.token_ids
        offset = self._offsets[index]
        if echoes:
            text = self._echo(index // self._count) + text
            entries = [*(found.prompt_logprobs or [None] * len(prompt_ids)), *entries]
            ids = [*prompt_ids, *ids]
        part: dict[str, Any] = {"text": text}
        if self._has_logprobs and entries:
            part["logprobs"] = completion_logprobs(
                entries, ids[: len(entries)], tokenizer, first_offset=offset
            )
            self._offsets[index] += sum(len(token_text(i, tokenizer)) for i in ids)
        if tokenizer is None:
            part["token_ids"] = ids
        return part

    def _echo(self, place: int) -> str:
        text, tokenizer = self._texts[place], self._state.tokenizer
        if text is not None:
            return text
        if tokenizer is None:
            return ""
        return tokenizer.decode(self._prompts[place], skips_special=False)
