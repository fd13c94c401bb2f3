"""What shape an answer must have: JSON, a schema, a regular expression, a choice or a grammar."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from poot_core import RequestError

__all__ = ["Constraint", "ConstraintKind"]

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]

_MOST_BYTES = 256 << 10
_MOST_DEPTH = 64
"""Nesting of a schema, a pattern or a grammar. A compiler that recurses needs a bound."""
_MOST_CHOICES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A shape that every answer has; checked for size here and compiled off the engine's loop.

    Attributes:
        kind: What ``value`` is.
        value: ``json_schema``: the schema as JSON text. ``regex``: a pattern of Rust's regex syntax that
            the whole answer matches. ``choice``: a JSON list of texts. ``grammar``: a grammar in
            llguidance's Lark dialect. ``json_object``: empty.
        field: The field of the request that asked for it, which errors name; the kind if it is empty.

    Raises:
        RequestError: If the value is too large, nested too deeply or no JSON where it has to be.

    >>> Constraint.choice(["yes", "no"]).value
    '["yes","no"]'
    """

    kind: ConstraintKind
    value: str = ""
    field: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(ConstraintKind):
            known = ", ".join(get_args(ConstraintKind))
            raise RequestError(
                f"a constraint of kind {self.kind!r}; it must be one of {known}", field="constraint"
            )
        size = len(self.value.encode("utf-8", "surrogatepass"))
        if size > _MOST_BYTES:
            raise RequestError(
                f"the {self.kind} has {size} bytes; at most {_MOST_BYTES} are taken",
                field=self.kind,
            )
        depth = _depth(self.value)
        if depth > _MOST_DEPTH:
            raise RequestError(
                f"the {self.kind} is nested {depth} levels deep; at most {_MOST_DEPTH} are taken",
                field=self.kind,
            )

    @classmethod
    def json_object(cls) -> Self:
        """Return the constraint that the answer is a JSON object."""
        return cls(kind="json_object")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> Self:
        """Return the constraint that the answer is JSON that fits a schema.

        Raises:
            RequestError: If it is a text that is no JSON.
        """
        if isinstance(schema, str):
            try:
                json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise RequestError(
                    f"the JSON schema is no JSON: {error}", field="json_schema"
                ) from error
            return cls(kind="json_schema", value=schema)
        return cls(kind="json_schema", value=_json("json_schema", schema))

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Return the constraint that the whole answer matches a pattern."""
        return cls(kind="regex", value=pattern)

    @classmethod
    def choice(cls, texts: Iterable[str]) -> Self:
        """Return the constraint that the answer is one of some texts.

        Raises:
            RequestError: If there is none, one is empty, or there are too many.
        """
        listed = list(texts)
        if not 1 <= len(listed) <= _MOST_CHOICES or not all(listed):
            raise RequestError(
                f"a choice of {len(listed)} texts; give 1 to {_MOST_CHOICES}, none of them empty",
                field="choice",
            )
        return cls(kind="choice", value=_json("choice", listed))

    @classmethod
    def grammar(cls, text: str) -> Self:
        """Return the constraint that the answer is a sentence of a Lark grammar."""
        return cls(kind="grammar", value=text)


def _json(field: str, value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the {field} is no JSON: {error}", field=field) from error


def _depth(text: str) -> int:
    """Return how deeply brackets nest, wherever they stand: an upper bound for any reader."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    return deepest
