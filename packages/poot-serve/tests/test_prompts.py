"""From a request to the prompt: what forces a call or a shape, and what templates refuse."""

from __future__ import annotations

import asyncio

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from poot_core import RequestError
from poot_llm import Constraint, SamplingParams
from poot_llm.text import Tokenizer
from poot_serve import EngineProcess, ServerState
from poot_serve._chat_run import ChatAsk, prepare_chat
from poot_serve._conversation import Conversation, render, template_messages
from poot_serve._frames import EngineOptionsFrame
from poot_serve._parsing.formats import AnswerFormat
from poot_serve._wire.chat import ContentPart, GivenCall, GivenFunction, Message
from poot_serve._wire.common import FunctionSpec, Tool

PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING = (
    PLAIN + "{% if enable_thinking is not defined or enable_thinking %}{{ '<think>\n' }}{% endif %}"
)
ALWAYS = PLAIN + "{{ '<think>\n' }}"
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('one system message alone') }}{% endif %}"
    "{% if m.role == 'robot' %}{{ raise_exception('unknown role') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
ADD = Tool(function=FunctionSpec(name="add", parameters={"type": "object", "properties": {}}))
NOW = Tool(function=FunctionSpec(name="now"))
USER = [{"role": "user", "content": "hi"}]


def tokenizer_of(template: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, chat_template=template)


def prepare(template: str, form: AnswerFormat, **asked):
    state = ServerState(
        engine=EngineProcess(EngineOptionsFrame(model="none")),
        tokenizer=tokenizer_of(template),
        model_name="m",
        answer_format=form,
    )
    ask = ChatAsk(messages=USER, params=SamplingParams(), **asked)
    return asyncio.run(prepare_chat(state, ask))


@pytest.mark.parametrize(
    ("form", "choice", "ends"),
    [
        (AnswerFormat("hermes", None), "add", '<tool_call>\n{"name": "add", "arguments": '),
        (AnswerFormat("hermes", None), "required", "<|assistant|><tool_call>\n"),
        (AnswerFormat("llama3", None), "add", '<|assistant|>{"name": "add", "parameters": '),
        (AnswerFormat("mistral", None), "add", '[TOOL_CALLS][{"name": "add", "arguments": '),
        (AnswerFormat("harmony", None), "add",
         "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"),
        (AnswerFormat(None, None), "add", "<|user|>hi<|assistant|>"),
    ],
)  # fmt: skip
def test_a_forced_call_begins_in_the_familys_own_words(form, choice, ends) -> None:
    found = prepare(PLAIN, form, tools=[ADD, NOW], choice=choice)
    assert found.prompt.endswith(ends)
    assert found.params.constraint.kind == ("grammar" if choice == "required" else "json_schema")
    assert found.params.constraint.field == "tools"
    assert found.forced == ("one" if choice == "required" else "named")


def test_strict_functions_hold_the_calls_of_a_free_answer() -> None:
    form = AnswerFormat("hermes", "think")
    strict = Tool(function=FunctionSpec(name="sum", parameters={"type": "object"}, strict=True))
    found = prepare(ALWAYS, form, tools=[ADD, strict])
    assert found.params.constraint.kind == "grammar"
    assert found.params.constraint.field == "tools"
    assert found.opens_reasoning, "it may still reason first"
    assert (found.forced, found.is_plain) == (None, False)
    assert prepare(ALWAYS, form, tools=[ADD, NOW]).params.constraint is None
    assert prepare(ALWAYS, form, tools=[strict], choice="none").params.constraint is None
    shape = prepare(ALWAYS, form, tools=[strict], constraint=Constraint.json_object())
    assert shape.params.constraint.kind == "json_object"


@pytest.mark.parametrize(
    ("template", "ends"), [(THINKING, "<|assistant|>"), (ALWAYS, "<think>\n\n</think>\n\n")]
)
def test_a_shape_leaves_no_room_for_reasoning(template, ends) -> None:
    form = AnswerFormat("hermes", "think")
    free = prepare(template, form)
    assert free.opens_reasoning
    bound = prepare(template, form, constraint=Constraint.json_object())
    assert bound.prompt.endswith(ends)
    assert not bound.opens_reasoning
    forced = prepare(template, form, tools=[ADD], choice="add")
    assert not forced.opens_reasoning
    assert forced.prompt.endswith(ends + '<tool_call>\n{"name": "add", "arguments": ')


def test_a_shape_goes_to_the_final_channel() -> None:
    found = prepare(PLAIN, AnswerFormat("harmony", None), constraint=Constraint.choice(["a"]))
    assert found.prompt.endswith("<|channel|>final<|message|>")
    assert found.is_plain


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"choice": "required"}, "tools is empty"),
        ({"choice": "sub", "tools": [ADD]}, "names 'sub'; tools holds add"),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(asked, says) -> None:
    with pytest.raises(RequestError, match=says):
        prepare(PLAIN, AnswerFormat("hermes", None), **asked)


def test_leading_system_messages_are_merged_where_the_template_wants_one() -> None:
    turns = [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, *USER]
    text = render(tokenizer_of(ONE_SYSTEM), Conversation(messages=turns))
    assert text == "<system>A\n\nB<user>hi"
    kept = render(tokenizer_of(PLAIN), Conversation(messages=turns, adds_prompt=False))
    assert kept == "<|system|>A<|system|>B<|user|>hi"


def test_an_error_of_the_template_names_the_message() -> None:
    turns = [*USER, {"role": "assistant", "content": "x"}, {"role": "robot", "content": "y"}, *USER]
    with pytest.raises(RequestError, match=r"messages\[2\]: .*unknown role") as caught:
        render(tokenizer_of(ONE_SYSTEM), Conversation(messages=turns))
    assert (caught.value.field, caught.value.status) == ("messages[2]", 400)


def test_messages_as_templates_read_them() -> None:
    call = GivenCall(id="call_1", function=GivenFunction(name="add", arguments='{"a": 1}'))
    given = [
        Message(role="developer", content=[ContentPart(type="text", text="a"),
                                           ContentPart(type="input_text", text="b")]),
        Message(role="assistant", content=None, reasoning="hm", tool_calls=[call]),
        Message(role="tool", tool_call_id="call_1", content="2"),
    ]  # fmt: skip
    plain = template_messages(given, AnswerFormat("hermes", None))
    assert plain[0] == {"role": "system", "content": "ab"}
    assert plain[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert plain[1]["reasoning_content"] == "hm"
    assert plain[2]["tool_call_id"] == "call_1"
    short = template_messages(given, AnswerFormat("mistral", None))
    made = short[2]["tool_call_id"]
    assert made == short[1]["tool_calls"][0]["id"]
    assert len(made) == 9
    assert made.isalnum()
