"""Structured output: whatever is sampled under a constraint fits it, with every kind of tokenizer."""

import json
import re

import numpy as np
import pytest
from llm_fakes import FakeEngine, run_all, tokens_of
from llm_tokenizers import byte_level, sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from poot_core import RequestError
from poot_llm import Constraint, Driver, Request, SamplingParams, Tokenizer, Vocabulary

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["é", "no"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


def words() -> Backend:
    """A tokenizer whose decoder does not work token by token."""
    pieces = [
        *'abcdefghij{}[]":,0123456789 é-',
        "[END]",
        "no",
        "yes",
        "true",
        "name",
        "age",
        "kind",
    ]
    vocab = {piece: place for place, piece in enumerate(pieces)}
    backend = Backend(models.WordLevel(vocab, unk_token="-"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Replace("  ", " ")
    backend.add_special_tokens(["[END]"])
    return backend


KINDS = {"bytes": byte_level, "pieces": sentencepiece, "words": words}
END = {"bytes": "<|im_end|>", "pieces": "</s>", "words": "[END]"}


def make(kind: str, *, wider: int = 7) -> tuple[Driver, Tokenizer]:
    backend = KINDS[kind]()
    tokenizer = Tokenizer(backend)
    end = backend.token_to_id(END[kind])
    size = backend.get_vocab_size() + wider  # logits are often wider than the vocabulary
    engine = FakeEngine(size, context_tokens=600, num_blocks=600, max_sequences=8)
    vocabulary = Vocabulary(tokenizer, size, [end])
    return Driver(engine, eos_token_ids=[end], vocabulary=vocabulary), tokenizer


def answers(driver: Driver, tokenizer: Tokenizer, constraint: Constraint, **more) -> list[str]:
    values = {"max_tokens": 500, "temperature": 1.0, **more}
    ids = [
        driver.add(
            Request(
                prompt_ids=[1, 2, seed],
                params=SamplingParams(seed=seed, constraint=constraint, **values),
            )
        )
        for seed in range(6)
    ]
    events = run_all(driver, ids)
    texts = []
    for request_id in ids:
        assert events[request_id][-1].finish_reason == "stop", events[request_id][-1]
        found = tokens_of(events[request_id])
        end = driver._vocabulary.end_ids[0]
        texts.append(tokenizer.decode([i for i in found if i != end], continues=True))
    return texts


@pytest.mark.parametrize("kind", KINDS)
def test_json_of_a_schema(kind: str) -> None:
    for text in answers(*make(kind), Constraint.json_schema(SCHEMA)):
        found = json.loads(text)
        assert set(found) == {"name", "age", "kind"}
        assert isinstance(found["name"], str)
        assert len(found["name"]) <= 5
        assert 0 <= found["age"] <= 99
        assert found["kind"] in {"é", "no"}


@pytest.mark.parametrize("kind", KINDS)
def test_choices_and_patterns(kind: str) -> None:
    driver, tokenizer = make(kind)
    found = answers(driver, tokenizer, Constraint.choice(["yes", "no", 'é"1']))
    assert set(found) <= {"yes", "no", 'é"1'}
    assert len(set(found)) > 1
    for text in answers(driver, tokenizer, Constraint.regex(r"[a-c]{3}-[0-9]{2,4}")):
        assert re.fullmatch(r"[a-c]{3}-[0-9]{2,4}", text)
    for text in answers(driver, tokenizer, Constraint.regex(r"[0-9]{3}"), temperature=0.0):
        assert re.fullmatch(r"[0-9]{3}", text)


def test_grammars_and_objects() -> None:
    driver, tokenizer = make("bytes")
    grammar = Constraint.grammar('start: "(" item ("," item)* ")"\nitem: /[a-z]{1,3}/')
    for text in answers(driver, tokenizer, grammar):
        assert re.fullmatch(r"\([a-z]{1,3}(,[a-z]{1,3})*\)", text)
    # Random logits may write a long object: only its beginning is certain then.
    params = SamplingParams(seed=1, constraint=Constraint.json_object(), max_tokens=30)
    request_id = driver.add(Request(prompt_ids=[4], params=params))
    text = tokenizer.decode(tokens_of(run_all(driver, [request_id])[request_id]), continues=True)
    assert text.startswith("{")


def test_a_constraint_goes_with_everything_else() -> None:
    driver, tokenizer = make("bytes")
    more = {
        "logit_bias": {5: 100.0}, "repetition_penalty": 1.3, "dry_multiplier": 0.8, "top_k": 5,
        "min_tokens": 400, "ignore_eos": True, "xtc_probability": 0.5, "logprobs": 2,
    }  # fmt: skip
    assert set(answers(driver, tokenizer, Constraint.choice(["yes", "no"]), **more)) <= {
        "yes",
        "no",
    }


def test_company_does_not_matter() -> None:
    def run(*, together: bool) -> list[list[int]]:
        driver, _ = make("bytes")
        constraint = Constraint.json_schema(SCHEMA)
        got = []
        pending = []
        for seed in range(5):
            params = SamplingParams(seed=seed, constraint=constraint, max_tokens=60)
            pending.append(driver.add(Request(prompt_ids=[seed, 9], params=params)))
            if not together:
                got.append(tokens_of(run_all(driver, pending)[pending[-1]]))
                pending.clear()
        return got if not together else [tokens_of(e) for e in run_all(driver, pending).values()]

    assert run(together=True) == run(together=False)


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (lambda: Constraint.json_schema({"type": "no such type"}), "json_schema"),
        (lambda: Constraint.json_schema("{"), "json_schema"),
        (lambda: Constraint.json_schema("[1]"), "json_schema"),
        (lambda: Constraint.regex("(unclosed"), "regex"),
        (lambda: Constraint.regex("(" * 60_000 + ")" * 60_000), "regex"),
        (lambda: Constraint.grammar("start: missing"), "grammar"),
        (lambda: Constraint.grammar("a" * 300_000), "grammar"),
        (lambda: Constraint.choice([]), "choice"),
        (lambda: Constraint.choice(["a", ""]), "choice"),
        (lambda: Constraint.json_schema("[" * 70 + "]" * 70), "json_schema"),
    ],
)
def test_what_cannot_be_compiled_names_its_field(constraint, field) -> None:
    driver, _ = make("bytes")
    with pytest.raises(RequestError) as caught:
        driver.add(Request(prompt_ids=[1], params=SamplingParams(constraint=constraint())))
    assert caught.value.field == field
    assert len(caught.value.message) < 1000
    assert not driver.has_work


def test_the_compile_cache_is_bounded_and_its_entries_are_not_shared() -> None:
    driver, tokenizer = make("bytes")
    for number in range(70):
        driver.prepare(
            Request(
                prompt_ids=[1], params=SamplingParams(constraint=Constraint.regex(f"a{number}"))
            )
        )
    compiler = driver._vocabulary._compiler
    assert len(compiler._compiled) == 64
    assert set(answers(driver, tokenizer, Constraint.regex("a69"))) == {"a69"}
    assert set(answers(driver, tokenizer, Constraint.regex("a69"))) == {"a69"}


def test_models_without_a_vocabulary_refuse() -> None:
    driver = Driver(FakeEngine())
    for params, field in (
        (SamplingParams(constraint=Constraint.json_object()), "constraint"),
        (SamplingParams(dry_multiplier=1.0), "dry_multiplier"),
    ):
        with pytest.raises(RequestError, match="no tokenizer") as caught:
            driver.add(Request(prompt_ids=[1], params=params))
        assert caught.value.field == field


def test_tokens_that_hold_a_text() -> None:
    _, tokenizer = make("bytes")
    vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size + 5, [])
    found = vocabulary.tokens_with(("e", "\n"))
    expected = [b"e" in data or b"\n" in data for data in vocabulary.tokens]
    np.testing.assert_array_equal(found, expected)
    assert found.sum() > 2
    assert vocabulary.tokens_with(("e", "\n")) is found
