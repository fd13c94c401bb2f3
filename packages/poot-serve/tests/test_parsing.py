"""Parsers of answers: what they read, and that it makes no difference where a stream is cut.

The expected answers are written down by hand from each family's chat template.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from poot_llm import SamplingParams
from poot_llm.text import Tokenizer
from poot_serve._choice import AnswerReader, Update
from poot_serve._event_stream import Collected
from poot_serve._parsing.formats import AnswerFormat
from poot_serve._parsing.lexer import Lexer, marker_ids

TOOLS = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}}},
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "now": {},
}
HERMES = AnswerFormat("hermes", "think")
LLAMA = AnswerFormat("llama3", None)
MISTRAL = AnswerFormat("mistral", "mistral")
GRANITE = AnswerFormat("granite", None)
HARMONY = AnswerFormat("harmony", None)

# format, raw output, content, reasoning, calls
CASES = [
    (HERMES, "Just text, 世界 🙂.", "Just text, 世界 🙂.", "", []),
    (
        HERMES,
        '<think>\nWhich city?\n</think>\n\nLet me look.\n<tool_call>\n{"name": "weather", '
        '"arguments": {"city": "Zürich {\\"x\\"}"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}}\n</tool_call>',
        "Let me look.",
        "Which city?",
        [("weather", '{"city": "Zürich {\\"x\\"}"}'), ("add", '{"a": 1, "b": [2, {"c": "}"}]}')],
    ),
    (HERMES, '<tool_call>{"name": "now", "arguments": {}}</tool_call>', "", "", [("now", "{}")]),
    (HERMES, '<tool_call>{"name": "now"}</tool_call>', "", "", [("now", "{}")]),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", "",
     [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", "",
     [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", "", [("now", "{}")]),
    # No closing marker, and a next one without it.
    (HERMES, '<tool_call>{"name": "now", "arguments": {}}<tool_call>{"name":"add","arguments":{"a":2}}',
     "", "", [("now", "{}"), ("add", '{"a":2}')]),
    # What is no call is text, its marker included.
    (HERMES, "A <tool_call>not JSON</tool_call> B", "A <tool_call>not JSON B", "", []),
    (HERMES, '<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=b>\n4\n'
     '</parameter>\n</function>\n</tool_call>', "", "", [("add", '{"a": 3, "b": 4}')]),
    (HERMES, "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", "", [("now", "{}")]),
    (LLAMA, '{"name": "weather", "parameters": {"city": "Bern"}}', "", "",
     [("weather", '{"city": "Bern"}')]),
    (LLAMA, '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}', "", "",
     [("add", '{"a": 1}'), ("now", "{}")]),
    (LLAMA, '{"type": "function", "name": "add", "parameters": {"a": 1}}', "", "",
     [("add", '{"a": 1}')]),
    (LLAMA, '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', "", []),
    (LLAMA, '  {"some": "JSON"} and text', '{"some": "JSON"} and text', "", []),
    (LLAMA, "Text with {braces}.", "Text with {braces}.", "", []),
    (LLAMA, '<|python_tag|>{"name": "now", "parameters": {}}', "", "", [("now", "{}")]),
    (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]',
     "", "", [("add", '{"a": 1}'), ("now", "{}")]),
    (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Bern"}[TOOL_CALLS]now[ARGS]{}', "", "",
     [("weather", '{"city": "Bern"}'), ("now", "{}")]),
    (MISTRAL, '[THINK]Hm.[/THINK]Look:[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 5}', "Look:", "Hm.",
     [("add", '{"a": 5}')]),
    (MISTRAL, '[TOOL_CALLS]add{"a": 5}', "", "", [("add", '{"a": 5}')]),
    (GRANITE, '<|tool_call|>[{"name": "add", "arguments": {"a": 7}}]', "", "", [("add", '{"a": 7}')]),
    (HARMONY, "<|channel|>analysis<|message|>Hm, 世.<|end|><|start|>assistant<|channel|>final"
     "<|message|>It is so.", "It is so.", "Hm, 世.", []),
    (HARMONY, "<|channel|>analysis<|message|>Call.<|end|><|start|>assistant<|channel|>commentary "
     'to=functions.weather <|constrain|>json<|message|>{"city":"Bern"}<|call|>', "", "Call.",
     [("weather", '{"city":"Bern"}')]),
    (HARMONY, ' to=functions.now<|channel|>commentary json<|message|><|call|>', "", "", [("now", "{}")]),
    (HARMONY, "<|channel|>odd<|message|>Shown.", "Shown.", "", []),
    (HARMONY, "Headless.", "Headless.", "", []),
]  # fmt: skip
SPLITTER = re.compile(
    "("
    + "|".join(
        re.escape(marker)
        for form in (HERMES, LLAMA, MISTRAL, GRANITE, HARMONY)
        for marker in form.markers(with_tools=True)
    )
    + ")"
)


def build(*, with_markers: bool) -> Tokenizer:
    """Every byte is a token; markers are control tokens, or not there at all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if with_markers:
        found = {m for form in (HERMES, LLAMA, MISTRAL, GRANITE, HARMONY)
                 for m in form.markers(with_tools=True)}  # fmt: skip
        backend.add_special_tokens(sorted(found))
    return Tokenizer(backend)


TOKENIZERS = {True: build(with_markers=True), False: build(with_markers=False)}


def read(form, events, *, tokenizer, stop=(), opens_reasoning=False) -> Collected:
    """Return the answer that events of token ids make."""
    markers = form.markers(with_tools=True)
    ids = marker_ids(tokenizer, markers)
    spelled = set(markers) - {marker.text for marker in ids.values()}
    lexer = Lexer(tokenizer, SamplingParams(stop=stop), ids=ids, texts=spelled)
    reader = AnswerReader(lexer, form.parser(TOOLS, opens_reasoning=opens_reasoning))
    found = Collected()
    for place, event in enumerate(events):
        reason = "length" if place == len(events) - 1 else None
        found.add(Update(reader.push(event, reason), list(event), None, reason))
        if reader.stop is not None:
            break
    found.stop = reader.stop
    return found


def summary(found: Collected) -> tuple[str, str, list[tuple[str, str]], str | None]:
    calls = [(call.name, call.arguments) for call in found.calls]
    return found.text, "".join(found.reasoning), calls, found.stop


def cut(ids: list[int], places: list[int]) -> list[list[int]]:
    bounds = sorted({0, len(ids), *(place % (len(ids) + 1) for place in places)})
    return [ids[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize("are_tokens", [True, False], ids=["ids", "spelled"])
@pytest.mark.parametrize(("form", "raw", "content", "reasoning", "calls"), CASES)
def test_what_is_read(form, raw, content, reasoning, calls, are_tokens) -> None:
    tokenizer = TOKENIZERS[are_tokens]
    ids = tokenizer.encode(raw, adds_special=False)
    for events in ([ids], [[token_id] for token_id in ids]):
        found = summary(read(form, events, tokenizer=tokenizer))
        assert found == (content, reasoning, calls, None)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


@settings(max_examples=300, deadline=None)
@given(
    case=st.sampled_from(CASES),
    are_tokens=st.booleans(),
    places=st.lists(st.integers(0, 500), max_size=12),
    end=st.integers(0, 500),
    stop=st.sampled_from([(), ("a",), ("}}",), ("l", "look"), ("世",), ("\n\n",)]),
)
def test_cuts_make_no_difference(case, are_tokens, places, end, stop) -> None:
    form, raw = case[:2]
    tokenizer = TOKENIZERS[are_tokens]
    ids = tokenizer.encode(raw, adds_special=False)
    ids = ids[: end % (len(ids) + 1)] or ids  # answers end anywhere
    whole = summary(read(form, [[i] for i in ids], tokenizer=tokenizer, stop=stop))
    assert summary(read(form, cut(ids, places), tokenizer=tokenizer, stop=stop)) == whole


pieces = st.lists(
    st.one_of(
        st.sampled_from([m for f in (HERMES, LLAMA, MISTRAL, HARMONY)
                         for m in f.markers(with_tools=True)]),
        st.sampled_from(['{"name": "add", "arguments": {"a": 1}}', '{"name": "now"}', "[", "]", ",",
                         '{"name": 3}', '{"name": "x", "arguments": "{}"', "analysis", "final",
                         " to=functions.now", "\n", "{", "}", '"', "\\", "<function=add>",
                         "<parameter=a>1</parameter>", "</function>", "ü", "🙂"]),
        st.text(max_size=8),
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    form=st.sampled_from([HERMES, LLAMA, MISTRAL, GRANITE, HARMONY, AnswerFormat(None, "think")]),
    parts=pieces,
    places=st.lists(st.integers(0, 500), max_size=12),
    are_tokens=st.booleans(),
    opens=st.booleans(),
)
def test_cuts_of_any_text_make_no_difference(form, parts, places, are_tokens, opens) -> None:
    tokenizer = TOKENIZERS[are_tokens]
    ids = tokenizer.encode("".join(parts), adds_special=False)
    if not ids:
        return
    opens = opens and form.reasoning is not None
    whole = read(form, [[i] for i in ids], tokenizer=tokenizer, opens_reasoning=opens)
    found = read(form, cut(ids, places), tokenizer=tokenizer, opens_reasoning=opens)
    assert summary(found) == summary(whole)
    for call in whole.calls:
        assert "<|" not in call.name


def test_a_marker_that_is_spelled_stays_text_where_it_is_a_token() -> None:
    tokenizer = TOKENIZERS[True]
    ids = TOKENIZERS[False].encode('<tool_call>{"name": "now"}</tool_call>', adds_special=False)
    found = read(HERMES, [ids], tokenizer=tokenizer)
    assert summary(found) == ('<tool_call>{"name": "now"}</tool_call>', "", [], None)


def test_reasoning_that_the_prompt_opened_goes_on() -> None:
    tokenizer = TOKENIZERS[True]
    ids = tokenizer.encode("So.\n</think>\n\nYes.", adds_special=False)
    found = read(HERMES, [ids], tokenizer=tokenizer, opens_reasoning=True)
    assert summary(found) == ("Yes.", "So.", [], None)
    assert HERMES.opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not HERMES.opens_reasoning("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ '<|channel|>analysis<|message|>' }}", "harmony", None),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral", None),
        ("<tool_call> ... <think>", "hermes", "think"),
        ("<|tool_call|>", "granite", None),
        ("<|python_tag|>", "llama3", None),
        ("plain", None, None),
        (None, None, None),
    ],
)
def test_the_format_is_told_by_the_template(template, tools, reasoning) -> None:
    assert AnswerFormat.detect(template) == AnswerFormat(tools, reasoning)
    assert AnswerFormat.detect(template, tools="none", reasoning="none") == AnswerFormat(None, None)
