"""Answers drawn at random from a grammar: every call that the parsers read in them fits its function."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from poot_core import RequestError
from poot_llm import Constraint, SamplingParams
from poot_llm._vocabulary import Vocabulary
from poot_llm.text import Tokenizer
from poot_serve._choice import AnswerReader, Update
from poot_serve._event_stream import Collected
from poot_serve._parsing.call_grammar import forced_calls, strict_calls
from poot_serve._parsing.formats import AnswerFormat
from poot_serve._parsing.lexer import Lexer, marker_ids

TOOLS = {
    "add": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/small"}, "b": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 99}},
    },
    "io.read/now": {"type": "object", "properties": {}, "additionalProperties": False},
}
END = "<|end_of_answer|>"
PIECES = [
    "name", "arguments", "parameters", "add", "io.read/now", '{"name": "', '"arguments": ', "\n",
    "assistant", "analysis", "commentary", "final", " to=functions.", "json", "call",
]  # fmt: skip


def tokenizer_of(markers: tuple[str, ...]) -> Tokenizer:
    """Every byte is a token, some words are, and so are the markers given."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in PIECES])
    # Qwen's markers are no control tokens, those of others are.
    plain = [m for m in markers if "tool_call>" in m and "|" not in m]
    backend.add_tokens([AddedToken(m, special=False, normalized=False) for m in plain])
    backend.add_special_tokens([AddedToken(m, special=True) for m in markers if m not in plain])
    backend.add_special_tokens([AddedToken(END, special=True)])
    return Tokenizer(backend)


def draw(
    grammar: str, tokenizer: Tokenizer, favoured: set[int], seed: int
) -> tuple[list[int], bool]:
    """Return a random answer that the grammar allows, and whether it came to its end."""
    size = tokenizer.vocab_size
    end = tokenizer.encode(END, adds_special=False)[0]
    matcher = Vocabulary(tokenizer, size, [end]).compile(Constraint.grammar(grammar))
    rng = random.Random(seed)
    ids: list[int] = []
    while len(ids) < 240 and not matcher.is_complete:
        allowed = set(np.flatnonzero(matcher.mask(size)).tolist())
        liked = sorted(allowed & favoured)
        if end in allowed and len(ids) > 60:
            return ids, True
        if liked and rng.random() < 0.5:
            chosen = rng.choice(liked)
        else:
            chosen = rng.choice(sorted(allowed - {end}) or [end])
        if chosen == end:
            return ids, True
        ids.append(chosen)
        matcher.consume(chosen)
    return ids, matcher.is_complete


def check_arguments(name: str, text: str) -> None:
    found = json.loads(text)
    if name == "io.read/now":
        assert found == {}
        return
    assert name == "add"
    assert {"a"} <= set(found) <= {"a", "b"}
    assert type(found["a"]) is int
    assert 0 <= found["a"] <= 99
    assert found.get("b", "x") in {"x", "y"}


def read(tokenizer: Tokenizer, form: AnswerFormat, ids: list[int]) -> Collected:
    markers = form.markers(with_tools=True)
    known = marker_ids(tokenizer, markers)
    spelled = set(markers) - {marker.text for marker in known.values()}
    lexer = Lexer(tokenizer, SamplingParams(), ids=known, texts=sorted(spelled))
    found = Collected()
    deltas = AnswerReader(lexer, form.parser(TOOLS)).push(ids, "length")
    found.add(Update(deltas, ids, None, "length"))
    return found


FORMATS = [
    AnswerFormat("hermes", "think"), AnswerFormat("granite", None), AnswerFormat("llama3", None),
    AnswerFormat("mistral", "mistral"), AnswerFormat("harmony", None),
]  # fmt: skip


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("are_tokens", [True, False])
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.tools)
def test_calls_of_a_free_answer_fit(form, are_tokens, parallel) -> None:
    markers = form.markers(with_tools=True)
    tokenizer = tokenizer_of(markers if are_tokens else ())
    ids = {marker.text: token for token, marker in marker_ids(tokenizer, markers).items()}
    grammar = strict_calls(form, TOOLS, ids, parallel=parallel)
    if form.is_harmony and not are_tokens:
        assert grammar is None
        return
    assert grammar is not None
    openers = set(ids.values()) | {tokenizer.encode("{", adds_special=False)[0]}
    num_calls = num_plain = 0
    for seed in range(10):
        answer, is_whole = draw(grammar, tokenizer, openers if seed % 5 else set(), seed)
        found = read(tokenizer, form, answer)
        calls = found.calls if is_whole else found.calls[:-1]
        for call in calls:
            check_arguments(call.name, call.arguments)
        assert parallel or len(calls) <= 1 or form.is_harmony
        num_calls += len(calls)
        num_plain += not found.calls
    if are_tokens or form.tools == "llama3":
        assert num_calls > 3
    assert num_plain or form.is_harmony, "text alone is an answer too"


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.tools)
def test_forced_calls_fit(form, parallel) -> None:
    tokenizer = tokenizer_of(())
    grammar = forced_calls(form, TOOLS, parallel=parallel)
    whole = 0
    for seed in range(4):
        answer, is_whole = draw(grammar, tokenizer, set(), seed)
        if not is_whole:
            continue
        whole += 1
        found = json.loads(tokenizer.decode(answer))
        calls = found if isinstance(found, list) else [found]
        assert calls
        assert parallel or isinstance(found, dict)
        for call in calls:
            assert list(call) == ["name", form.arguments_key]
            check_arguments(call["name"], json.dumps(call[form.arguments_key]))
    assert whole


def test_mistrals_newer_notation_is_held_too() -> None:
    form = AnswerFormat("mistral", None)
    tokenizer = tokenizer_of(form.markers(with_tools=True))
    ids = {m.text: i for i, m in marker_ids(tokenizer, form.markers(with_tools=True)).items()}
    grammar = strict_calls(form, TOOLS, ids, parallel=True)
    size = tokenizer.vocab_size
    end = tokenizer.encode(END, adds_special=False)
    vocabulary = Vocabulary(tokenizer, size, end)

    def is_allowed(text: str) -> bool:
        matcher = vocabulary.compile(Constraint.grammar(grammar))
        for token_id in tokenizer.encode(text, adds_special=False):
            if not matcher.mask(size)[token_id]:
                return False
            matcher.consume(token_id)
        return bool(matcher.mask(size)[end[0]])

    assert is_allowed('Well.[TOOL_CALLS]add[ARGS]{"a": 1}')
    assert is_allowed(
        '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a": 2}'
    )
    assert not is_allowed('[TOOL_CALLS]add[ARGS]{"c": 1}')
    assert not is_allowed('[TOOL_CALLS]sub[ARGS]{"a": 1}')


def test_a_schema_that_is_none_names_tools() -> None:
    form = AnswerFormat("hermes", None)
    tokenizer = tokenizer_of(())
    grammar = forced_calls(form, {"add": {"type": "nothing"}}, parallel=False)
    end = tokenizer.encode(END, adds_special=False)
    constraint = Constraint(kind="grammar", value=grammar, field="tools")
    with pytest.raises(RequestError, match="grammar of tools cannot be compiled") as caught:
        Vocabulary(tokenizer, tokenizer.vocab_size, end).compile(constraint)
    assert caught.value.field == "tools"
