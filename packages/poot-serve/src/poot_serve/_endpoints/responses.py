"""``POST /v1/responses``: stateless, so what came before is sent again with each request."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from poot_core import RequestError
from poot_llm import Constraint
from poot_serve._chat_run import ChatAsk, begin_choices, prepare_chat
from poot_serve._conversation import template_messages
from poot_serve._endpoints.chat import template_variables
from poot_serve._endpoints.requests import read_request, state_of
from poot_serve._endpoints.responses_answer import ResponsesAnswer
from poot_serve._event_stream import answer_with
from poot_serve._record import record_of
from poot_serve._sampling import constraint_of, params_of
from poot_serve._state import ServerState
from poot_serve._wire.chat import ContentPart, GivenCall, GivenFunction, Message
from poot_serve._wire.common import (
    FunctionSpec,
    JsonSchemaFormat,
    ResponseFormat,
    SamplingFields,
    Tool,
)
from poot_serve._wire.responses import InputItem, InputPart, NamedFunctionTool, ResponsesRequest

__all__ = ["responses"]


async def responses(http: HttpRequest) -> Response:
    """Answer a conversation of items."""
    state, record = state_of(http), record_of(http)
    body = await read_request(http, ResponsesRequest)
    ask = _ask_of(state, body)
    prepared = await prepare_chat(state, ask)
    choices = begin_choices(
        state,
        record,
        [prepared.prompt_ids],
        prepared.params,
        1,
        readers=lambda: prepared.reader(state),
        cache_salt=ask.cache_salt,
    )
    answer = ResponsesAnswer(
        body, record.model or "", len(prepared.prompt_ids), choices[0], prepared.params
    )
    return await answer_with(
        http,
        choices,
        answer,
        stream=bool(body.stream),
        timeout_s=state.limits.request_timeout_s,
        keep_alive_s=state.limits.keep_alive_s,
    )


def _ask_of(state: ServerState, body: ResponsesRequest) -> ChatAsk:
    for name in ("previous_response_id", "conversation"):
        if getattr(body, name):
            raise RequestError(
                f"{name} is not supported: this server keeps no answers; send the whole "
                "conversation as input",
                field=name,
            )
    if body.background:
        raise RequestError("background is not supported", field="background")
    given: list[Message] = []
    if body.instructions:
        given.append(Message(role="system", content=body.instructions))
    if isinstance(body.input, str):
        given.append(Message(role="user", content=body.input))
    else:
        for place, item in enumerate(body.input):
            _add(given, item, f"input[{place}]")
    if not given:
        raise RequestError("input holds no message", field="input")
    tools = _tools(body)
    choice = body.tool_choice or "auto"
    if isinstance(choice, NamedFunctionTool):
        choice = choice.name
    elif not tools and choice == "auto":
        choice = "none"
    fields = SamplingFields(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        max_tokens=body.max_output_tokens,
    )
    params = params_of(fields, state.sampling_defaults)
    effort = body.reasoning.effort if body.reasoning is not None else None
    return ChatAsk(
        messages=template_messages(given, state.answer_format),
        params=params,
        tools=tools,
        choice=choice,
        parallel=body.parallel_tool_calls is not False,
        constraint=_constraint(body),
        variables=template_variables(body.chat_template_kwargs, effort),
        cache_salt=body.cache_salt,
    )


def _constraint(body: ResponsesRequest) -> Constraint | None:
    form = body.text.format if body.text is not None else None
    response_format = None
    if form is not None:
        inner = JsonSchemaFormat(schema=form.schema) if form.type == "json_schema" else None
        response_format = ResponseFormat(type=form.type, json_schema=inner)
    # The same rules as for any other dialect, errors included.
    return constraint_of(
        SamplingFields(response_format=response_format, structured_outputs=body.structured_outputs)
    )


def _tools(body: ResponsesRequest) -> tuple[Tool, ...]:
    found: list[Tool] = []
    for place, tool in enumerate(body.tools or ()):
        if tool.type != "function":
            continue  # hosted tools of other services: the model is not told of them
        if not tool.name:
            raise RequestError(f"tools[{place}].name is missing", field=f"tools[{place}].name")
        function = FunctionSpec(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
        found.append(Tool(function=function))
    return tuple(found)


def _add(messages: list[Message], item: InputItem, where: str) -> None:
    """Add an item to the messages; calls join the assistant's turn that they belong to."""
    match item.type or "message":
        case "message":
            messages.append(Message(role=item.role or "user", content=_content(item.content)))
        case "function_call":
            call = GivenCall(
                id=item.call_id or item.id,
                function=GivenFunction(name=item.name or "", arguments=item.arguments),
            )
            _add_to_turn(messages, call=call)
        case "function_call_output":
            messages.append(
                Message(role="tool", tool_call_id=item.call_id, content=_content(item.output) or "")
            )
        case "reasoning":
            parts = item.content if isinstance(item.content, list) else item.summary
            text = "".join(part.text or "" for part in parts or ())
            if text:
                messages.append(Message(role="assistant", reasoning=text))
        case other:
            raise RequestError(f"{where} is of type {other!r}; it is not known", field=where)


def _add_to_turn(messages: list[Message], *, call: GivenCall) -> None:
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        messages.append(Message(role="assistant", tool_calls=[call]))
        return
    messages[-1] = Message(
        role="assistant",
        content=last.content,
        reasoning=last.reasoning,
        tool_calls=[*(last.tool_calls or ()), call],
    )


def _content(given: str | list[InputPart] | None) -> str | list[ContentPart] | None:
    if given is None or isinstance(given, str):
        return given
    return [ContentPart(type=part.type, text=part.text, refusal=part.refusal) for part in given]
