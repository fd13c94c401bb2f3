"""Writes an answer of ``/v1/responses``: items of reasoning, text and calls, and their events."""

from __future__ import annotations

from time import time
from typing import Any, Literal
from uuid import uuid4

from msgspec import to_builtins

from poot_core import PootError
from poot_llm import SamplingParams
from poot_serve._choice import Choice, Update
from poot_serve._errors import openai_error
from poot_serve._event_stream import Collected, sse
from poot_serve._parsing.deltas import CallArguments, CallBegin, Content, Delta, Reasoning
from poot_serve._wire.responses import ResponseObject, ResponsesRequest, ResponseUsage

__all__ = ["ResponsesAnswer"]

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponsesAnswer:
    """Builds the items of an answer; the same for a stream and for a whole.

    Args:
        body: The request; the answer repeats parts of it.
        model: Name to report.
        prompt_tokens: Tokens of the prompt.
        choice: The sequence.
        params: How it is sampled.
    """

    def __init__(
        self,
        body: ResponsesRequest,
        model: str,
        prompt_tokens: int,
        choice: Choice,
        params: SamplingParams,
    ) -> None:
        self._body = body
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._choice = choice
        self._params = params
        self._id = f"resp_{uuid4().hex}"
        self._created = int(time())
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        self._text = ""  # of the open item
        self._is_open = False
        self._is_cut = False

    def begin(self) -> bytes:
        """Return the events that open the answer."""
        opened = to_builtins(self._response("in_progress"))
        return self._event("response.created", response=opened) + self._event(
            "response.in_progress", response=opened
        )

    def update(self, index: int, update: Update) -> bytes:
        """Return the events of an update."""
        self._is_cut = update.finish_reason == "length"
        return b"".join([self._delta(delta) for delta in update.deltas])

    def end(self) -> bytes:
        """Return the events that close the answer."""
        closed = self._close()
        status = "incomplete" if self._is_cut else "completed"
        return closed + self._event(
            f"response.{status}", response=to_builtins(self._response(status))
        )

    def failed(self, error: PootError) -> bytes:
        """Return the event of an error."""
        found = openai_error(error).error
        reason = {"code": found.code or found.type, "message": found.message}
        response = to_builtins(self._response("failed", error=reason))
        return self._event("response.failed", response=response)

    def whole(self, found: list[Collected]) -> ResponseObject:
        """Return the body of an answer."""
        (answer,) = found
        if answer.reasoning:
            self._delta(Reasoning("".join(answer.reasoning)))
        if answer.content or not answer.calls:
            self._delta(Content(answer.text))
        for call in answer.calls:
            self._delta(CallBegin(call.name, call.call_id))
            self._delta(CallArguments(call.arguments))
        self._is_cut = answer.finish_reason == "length"
        self._close()
        return self._response("incomplete" if self._is_cut else "completed")

    def _response(self, status: Status, *, error: dict[str, Any] | None = None) -> ResponseObject:
        body = self._body
        is_over = status != "in_progress"
        form = body.text.format if body.text is not None else None
        reasoning = body.reasoning
        return ResponseObject(
            id=self._id,
            created_at=self._created,
            model=self._model,
            status=status,
            output=list(self._items) if is_over else [],
            usage=self._usage() if is_over else None,
            error=error,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning={
                "effort": reasoning.effort if reasoning is not None else None,
                "summary": None,
            },
            temperature=self._params.temperature,
            text={"format": {"type": "text"} if form is None else to_builtins(form)},
            tool_choice=body.tool_choice or "auto",
            tools=list(body.tools or ()),
            top_p=self._params.top_p,
            user=body.user,
        )

    def _usage(self) -> ResponseUsage:
        choice = self._choice
        return ResponseUsage.of(
            self._prompt_tokens,
            choice.completion_tokens,
            cached=choice.cached_tokens,
            reasoning=choice.reasoning_tokens,
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._sequence
        self._sequence += 1
        return sse({"type": kind, "sequence_number": number, **fields}, kind)

    def _delta(self, delta: Delta) -> bytes:
        match delta:
            case Content(text):
                lead = b"" if self._has_open("message") else self._open_message()
                self._text += text
                return lead + self._part_event(
                    "response.output_text.delta", delta=text, logprobs=[]
                )
            case Reasoning(text):
                lead = b"" if self._has_open("reasoning") else self._open_reasoning()
                self._text += text
                return lead + self._part_event("response.reasoning_text.delta", delta=text)
            case CallBegin(name, call_id):
                return self._open_call(name, call_id or f"call_{uuid4().hex[:24]}")
            case CallArguments(text):
                self._text += text
                return self._item_event("response.function_call_arguments.delta", delta=text)

    def _has_open(self, kind: str) -> bool:
        return self._is_open and self._items[-1]["type"] == kind

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        item_id = self._items[-1]["id"]
        return self._event(kind, item_id=item_id, output_index=len(self._items) - 1, **fields)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._item_event(kind, content_index=0, **fields)

    def _open(self, item: dict[str, Any]) -> bytes:
        closed = self._close()
        self._items.append({**item, "status": "in_progress"})
        self._is_open, self._text = True, ""
        return closed + self._event(
            "response.output_item.added",
            output_index=len(self._items) - 1,
            item=dict(self._items[-1]),
        )

    def _open_message(self) -> bytes:
        item = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "content": []}
        return self._open(item) + self._part_event(
            "response.content_part.added", part=_text_part("")
        )

    def _open_reasoning(self) -> bytes:
        item = {"id": f"rs_{uuid4().hex}", "type": "reasoning", "summary": [], "content": []}
        return self._open(item) + self._part_event(
            "response.content_part.added", part={"type": "reasoning_text", "text": ""}
        )

    def _open_call(self, name: str, call_id: str) -> bytes:
        return self._open(
            {
                "id": f"fc_{uuid4().hex}",
                "type": "function_call",
                "call_id": call_id,
                "name": name,
                "arguments": "",
            }
        )

    def _close(self) -> bytes:
        """Return the events that close the open item."""
        if not self._is_open:
            return b""
        item, text = self._items[-1], self._text
        match item["type"]:
            case "message":
                item["content"] = [_text_part(text)]
                events = self._part_event("response.output_text.done", text=text, logprobs=[])
                events += self._part_event("response.content_part.done", part=_text_part(text))
            case "reasoning":
                part = {"type": "reasoning_text", "text": text}
                item["content"] = [part]
                events = self._part_event("response.reasoning_text.done", text=text)
                events += self._part_event("response.content_part.done", part=part)
            case _:
                item["arguments"] = text
                events = self._item_event(
                    "response.function_call_arguments.done", arguments=text, name=item["name"]
                )
        item["status"] = "incomplete" if self._is_cut else "completed"
        self._is_open = False
        return events + self._event(
            "response.output_item.done", output_index=len(self._items) - 1, item=dict(item)
        )


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
