"""Makes sampling parameters and constraints from the fields of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from poot_core import RequestError
from poot_llm import Constraint, SamplingParams
from poot_serve._wire.common import ResponseFormat, SamplingFields, StructuredOutputs

__all__ = ["constraint_of", "params_of"]

# Fields that go by the same name on both sides.
_SAME = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_range",
    "dry_sequence_breakers", "xtc_probability", "xtc_threshold", "seed", "stop", "stop_token_ids",
    "ignore_eos", "min_tokens", "max_tokens", "prompt_logprobs", "logit_bias",
)  # fmt: skip


def params_of(body: SamplingFields, defaults: Mapping[str, Any], **others: Any) -> SamplingParams:
    """Return how to sample.

    Args:
        body: The request.
        defaults: The checkpoint's own sampling defaults, used where the request names none.
        **others: Further parameters, which go before both; None leaves one as it is.

    Raises:
        RequestError: If a value is out of range.
    """
    values = dict(defaults)
    for name in _SAME:
        given = getattr(body, name)
        if given is not None:
            values[name] = tuple(given) if isinstance(given, list) else given
    values.update({name: value for name, value in others.items() if value is not None})
    if values.get("stop") == "":
        del values["stop"]  # a client's way to say none
    return SamplingParams(**values)


def constraint_of(body: SamplingFields) -> Constraint | None:
    """Return the shape that the answer must have.

    Raises:
        RequestError: If several are asked for, or one is malformed.
    """
    found = {
        "response_format": _made("response_format", _of_format, body.response_format),
        "structured_outputs": _made("structured_outputs", _of_outputs, body.structured_outputs),
        "guided_json": _made("guided_json", Constraint.json_schema, body.guided_json),
        "guided_regex": _made("guided_regex", Constraint.regex, body.guided_regex),
        "guided_choice": _made("guided_choice", Constraint.choice, body.guided_choice),
        "guided_grammar": _made("guided_grammar", Constraint.grammar, body.guided_grammar),
    }
    given = {name: constraint for name, constraint in found.items() if constraint is not None}
    if len(given) > 1:
        names = " and ".join(given)
        raise RequestError(f"{names} exclude each other; give one of them", field=next(iter(given)))
    return next(iter(given.values()), None)


def _of_format(form: ResponseFormat) -> Constraint | None:
    """Return the constraint of a response format; plain text has none."""
    if form.type == "text":
        return None
    if form.type == "json_object":
        return Constraint.json_object()
    if form.json_schema is None:
        raise RequestError("a response format of type json_schema needs json_schema")
    schema = form.json_schema.schema
    return Constraint.json_object() if schema is None else Constraint.json_schema(schema)


def _of_outputs(outputs: StructuredOutputs) -> Constraint | None:
    made = [
        None if outputs.json is None else Constraint.json_schema(outputs.json),
        None if outputs.regex is None else Constraint.regex(outputs.regex),
        None if outputs.choice is None else Constraint.choice(outputs.choice),
        None if outputs.grammar is None else Constraint.grammar(outputs.grammar),
        Constraint.json_object() if outputs.json_object else None,
    ]
    given = [constraint for constraint in made if constraint is not None]
    if len(given) > 1:
        raise RequestError("give one of json, regex, choice, grammar and json_object")
    return given[0] if given else None


def _made(name: str, make: Any, value: Any) -> Constraint | None:
    """Return what ``make`` makes of a value; an error, now or later, names the field of the request."""
    if value is None:
        return None
    try:
        made = make(value)
        return None if made is None else replace(made, field=name)
    except RequestError as error:
        raise RequestError(f"{name}: {error.message}", field=name) from error
