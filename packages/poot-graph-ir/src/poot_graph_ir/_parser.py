"""Reading the text that ``print_graph`` writes."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from math import inf, nan

import numpy as np

from poot_core import DTYPES, Dim, DType, PootError, SymbolicDim
from poot_graph_ir._graph import Attribute, Body, Equation, Graph, Literal, Location, Scope, Value
from poot_graph_ir._types import ElementType, Storage, TensorType
from poot_quant import FORMATS

__all__ = ["GraphSyntaxError", "parse"]


class GraphSyntaxError(PootError, ValueError):
    """The text of a graph cannot be read; names the line and what was expected."""


_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<value>%\d+)
  | (?P<literal>\#[0-9a-f]{32})
  | (?P<body>@[\w.]+)
  | (?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|inf|nan)\b)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<mark>[\[\](){}=:,])
    """,
    re.VERBOSE,
)
_DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in DTYPES}
_WORDS: dict[str, bool | None] = {"none": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    offset: int


def parse(text: str) -> Graph:
    """Return the graph that ``print_graph`` printed with its literals.

    The text is checked for form, for values that are used before they are defined, and for literals
    whose bytes are not those of their digest; ``verify`` checks the rest.

    Raises:
        GraphSyntaxError: If the text is not the text of a graph.
    """
    return _Parser(text).graph()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize()
        self._position = 0
        self._bodies: dict[str, Body] = {}
        self._literals: dict[str, Literal] = {}

    # --- tokens ---

    def _tokenize(self) -> list[_Token]:
        tokens: list[_Token] = []
        offset = 0
        while offset < len(self._text):
            match = _TOKEN.match(self._text, offset)
            if match is None or match.lastgroup is None:
                raise self._error(offset, "a token")
            if match.lastgroup != "space":
                tokens.append(_Token(match.lastgroup, match.group(), offset))
            offset = match.end()
        tokens.append(_Token("end", "", len(self._text)))
        return tokens

    def _error(self, offset: int, expected: str) -> GraphSyntaxError:
        line = self._text.count("\n", 0, offset) + 1
        column = offset - (self._text.rfind("\n", 0, offset) + 1) + 1
        found = self._text[offset : offset + 20].partition("\n")[0]
        return GraphSyntaxError(
            f"expected {expected} at line {line}, column {column}, got {found!r}",
            line=line,
            column=column,
        )

    @property
    def _next(self) -> _Token:
        return self._tokens[self._position]

    def _at(self, text: str) -> bool:
        return self._next.text == text and self._next.kind in {"mark", "word"}

    def _skip(self, text: str) -> bool:
        found = self._at(text)
        self._position += found
        return found

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            raise self._error(self._next.offset, repr(text))

    def _take(self, kind: str) -> str:
        token = self._next
        if token.kind != kind:
            raise self._error(token.offset, f"a {kind}")
        self._position += 1
        return token.text

    def _string(self) -> str:
        offset = self._next.offset
        try:
            return json.loads(self._take("string"))
        except json.JSONDecodeError:
            raise self._error(offset, "a quoted string") from None

    def _integer(self) -> int:
        offset, text = self._next.offset, self._take("number")
        if not text.lstrip("-").isdigit():
            raise self._error(offset, "an integer")
        return int(text)

    # --- graph ---

    def graph(self) -> Graph:
        self._find_literals()
        self._expect("graph")
        name = self._string()
        while self._skip("body"):
            self._body()
        known: dict[str, Value] = {}
        inputs: list[Value] = []
        self._expect("inputs")
        self._expect("{")
        while not self._skip("}"):
            inputs.append(self._input(known))
        self._expect("equations")
        self._expect("{")
        equations: list[Equation] = []
        while not self._skip("}"):
            equations.append(self._equation(known))
        outputs = self._named("outputs", known)
        updates = self._named("updates", known)
        return Graph(name, tuple(inputs), tuple(equations), outputs, updates)

    def _input(self, known: dict[str, Value]) -> Value:
        offset = self._next.offset
        identity = self._take("value")
        self._expect(":")
        kind = self._type()
        self._expect("=")
        word = self._take("word")
        if word not in {"const", "slot", "state"}:
            raise self._error(offset, "a const, slot or state")
        return self._define(known, identity, offset, kind, Storage(word), self._string())

    def _named(self, title: str, known: dict[str, Value]) -> tuple[tuple[str, Value], ...]:
        self._expect(title)
        self._expect("{")
        found: list[tuple[str, Value]] = []
        while not self._skip("}"):
            name = self._string()
            self._expect("=")
            found.append((name, self._use(known)))
        return tuple(found)

    def _body(self) -> None:
        name = self._take("body")
        known: dict[str, Value] = {}
        arguments: list[Value] = []
        self._expect("(")
        while not self._skip(")"):
            offset, identity = self._next.offset, self._take("value")
            self._expect(":")
            arguments.append(
                self._define(known, identity, offset, self._type(), Storage.ARGUMENT, "")
            )
            self._skip(",")
        self._expect("{")
        equations: list[Equation] = []
        while not self._skip("yield"):
            equations.append(self._equation(known))
        outputs = [self._use(known)]
        while self._skip(","):
            outputs.append(self._use(known))
        self._expect("}")
        self._bodies[name] = Body(tuple(arguments), tuple(equations), tuple(outputs))

    def _equation(self, known: dict[str, Value]) -> Equation:
        results: list[tuple[str, int, TensorType]] = []
        while True:
            offset, identity = self._next.offset, self._take("value")
            self._expect(":")
            results.append((identity, offset, self._type()))
            if not self._skip(","):
                break
        self._expect("=")
        op = self._take("word")
        body = None
        if self._next.kind == "body":
            offset, name = self._next.offset, self._take("body")
            body = self._bodies.get(name)
            if body is None:
                raise self._error(offset, "the name of a body above")
        self._expect("(")
        operands: list[Value] = []
        while not self._skip(")"):
            operands.append(self._use(known))
            self._skip(",")
        attributes = self._attributes()
        scope, location = self._scope(), self._location()
        outputs = tuple(
            self._define(known, identity, offset, kind, Storage.COMPUTED, "")
            for identity, offset, kind in results
        )
        return Equation(op, tuple(operands), outputs, attributes, body, scope, location)

    def _scope(self) -> Scope:
        path: list[str] = []
        if self._skip("in"):
            while self._next.kind == "string":
                path.append(self._string())
        return Scope(tuple(path), self._integer() if self._skip("layer") else None)

    def _location(self) -> Location | None:
        if not self._skip("at"):
            return None
        path = self._string()
        self._expect(":")
        line = self._integer()
        return Location(path, line, self._string())

    def _define(
        self,
        known: dict[str, Value],
        identity: str,
        offset: int,
        kind: TensorType,
        storage: Storage,
        name: str,
    ) -> Value:
        if identity in known:
            raise self._error(offset, "a value that is not defined yet")
        value = known[identity] = Value(int(identity[1:]), kind, storage, name)
        return value

    def _use(self, known: dict[str, Value]) -> Value:
        offset, identity = self._next.offset, self._take("value")
        if identity not in known:
            raise self._error(offset, "a value that is defined above")
        return known[identity]

    # --- types, attributes, literals ---

    def _type(self) -> TensorType:
        offset, name = self._next.offset, self._take("word")
        dtype: ElementType | None = _DTYPES.get(name) or FORMATS.get(name)
        if dtype is None:
            raise self._error(offset, "a dtype or a packed format")
        self._expect("[")
        shape: list[Dim] = []
        while not self._skip("]"):
            word = self._next.kind == "word"
            shape.append(SymbolicDim(self._take("word")) if word else self._integer())
            self._skip(",")
        return TensorType(tuple(shape), dtype)

    def _attributes(self) -> dict[str, Attribute]:
        attributes: dict[str, Attribute] = {}
        if self._skip("{"):
            while not self._skip("}"):
                name = self._take("word")
                self._expect("=")
                attributes[name] = self._attribute()
                self._skip(",")
        return attributes

    def _attribute(self) -> Attribute:
        token = self._next
        match token.kind:
            case "string":
                return self._string()
            case "number":
                self._position += 1
                return _number(token.text)
            case "literal":
                self._position += 1
                if token.text not in self._literals:
                    raise self._error(token.offset, "a literal of the table at the end")
                return self._literals[token.text]
            case "word":
                self._position += 1
                if token.text in {"inf", "nan"}:
                    return _number(token.text)
                if token.text in _WORDS:
                    return _WORDS[token.text]
                return _DTYPES.get(token.text) or SymbolicDim(token.text)
            case _:
                self._expect("(")
                items: list[Attribute] = []
                while not self._skip(")"):
                    items.append(self._attribute())
                    self._skip(",")
                return tuple(items)

    def _find_literals(self) -> None:
        """Read the table at the end first, so that equations can name its rows."""
        for start, token in enumerate(self._tokens[:-1]):
            if (token.kind, token.text) == ("word", "literals"):
                self._position = start + 1
                self._expect("{")
                while not self._skip("}"):
                    self._literal()
        self._position = 0

    def _literal(self) -> None:
        offset, digest = self._next.offset, self._take("literal")
        self._expect(":")
        kind = self._type()
        self._expect("=")
        if not isinstance(kind.dtype, DType):
            raise self._error(offset, "a literal of a dense dtype")
        shape = [dim for dim in kind.shape if isinstance(dim, int)]
        try:
            raw = base64.b64decode(self._string(), validate=True)
            literal = Literal(np.frombuffer(raw, kind.dtype.numpy).reshape(shape))
        except (binascii.Error, ValueError):
            raise self._error(offset, f"a literal of {kind}") from None
        if f"#{literal.digest}" != digest or literal.type != kind:
            raise self._error(offset, f"a literal with the digest #{literal.digest}")
        self._literals[digest] = literal


def _number(text: str) -> int | float:
    special = {"inf": inf, "-inf": -inf, "nan": nan, "-nan": nan}
    if text in special:
        return special[text]
    return int(text) if text.lstrip("-").isdigit() else float(text)
