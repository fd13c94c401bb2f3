"""Reads the text that ``print_kernel`` writes."""

from __future__ import annotations

import json
import re
from typing import cast, get_args

from poot_core import DTYPES, KernelSyntaxError
from poot_kernel.ir.core import (
    Attribute,
    KernelFunction,
    Level,
    Location,
    Module,
    Op,
    Region,
    Value,
)
from poot_kernel.ir.layouts import Layout
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import (
    Access,
    ArrayType,
    ScalarType,
    SharedType,
    Space,
    TileType,
    TokenType,
    Type,
    VectorType,
)

__all__ = ["parse_kernel", "parse_module"]

_TOKEN = re.compile(
    r"\s*(?:(?P<string>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<value>%\w+)|(?P<entry>@\w+)"
    r"|(?P<dims>\d+(?:x\d+)+)"
    r"|(?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?))"
    r"|(?P<word>[A-Za-z_]\w*)|(?P<mark>[@(){}\[\]<>,:=]))"
)
_DTYPES = {dtype.name: dtype for dtype in DTYPES}


def parse_module(text: str) -> Module:
    """Return the module whose text is given.

    Raises:
        KernelSyntaxError: If the text is not kernel IR; names line and column.
    """
    parser = _Parser(text)
    kernels: list[KernelFunction] = []
    while not parser.at_end():
        kernels.append(parser.kernel())
    return Module(kernels)


def parse_kernel(text: str) -> KernelFunction:
    """Return the one kernel whose text is given; it is not verified.

    Raises:
        KernelSyntaxError: If the text is not one kernel; names line and column.
    """
    parser = _Parser(text)
    kernel = parser.kernel()
    if not parser.at_end():
        raise parser.error("the end")
    return kernel


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._position = 0
        self._values: dict[str, Value] = {}

    # ---- tokens

    def at_end(self) -> bool:
        return self._position >= len(self._text)

    def error(self, expected: str) -> KernelSyntaxError:
        rest = self._text[self._position :]
        start = self._position + len(rest) - len(rest.lstrip())
        line = self._text.count("\n", 0, start) + 1
        column = start - self._text.rfind("\n", 0, start)
        found = self._text[start : start + 20].split("\n")[0]
        return KernelSyntaxError(
            f"kernel IR, line {line}, column {column}: expected {expected}, found {found!r}",
            line=line, column=column,
        )  # fmt: skip

    def _peek(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._position)
        if match is None or match.lastgroup is None:
            return "none", ""
        return match.lastgroup, match[match.lastgroup]

    def _take(self, kind: str, text: str | None = None) -> str:
        found = self._peek()
        if found[0] != kind or (text is not None and found[1] != text):
            raise self.error(repr(text) if text else kind)
        match = _TOKEN.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return found[1]

    def _accept(self, kind: str, text: str) -> bool:
        if self._peek() != (kind, text):
            return False
        self._take(kind)
        return True

    def _string(self) -> str:
        return cast("str", json.loads(self._take("string")))

    def _integer(self) -> int:
        text = self._take("number")
        try:
            return int(text)
        except ValueError:
            raise self.error("an integer") from None

    # ---- kernels

    def kernel(self) -> KernelFunction:
        self._values = {}
        self._take("word", "kernel")
        name = self._take("entry")[1:]
        self._take("mark", "(")
        body = Region(arguments=self._arguments(")"))
        for value, spelling in zip(body.arguments, list(self._values), strict=True):
            value.name = spelling[1:]
        kernel = KernelFunction(name=name, body=body, level="lane", grid=())
        while not self._accept("mark", "{"):
            self._fact(kernel)
        while not self._accept("mark", "}"):
            body.operations.append(self._operation())
        return kernel

    def _fact(self, kernel: KernelFunction) -> None:
        fact = self._take("word")
        self._take("mark", "(")
        match fact:
            case "level":
                level = self._take("word")
                if level not in get_args(Level):
                    raise self.error("lane or tile")
                kernel.level = cast("Level", level)
            case "grid":
                kernel.grid = tuple(size for size in self._sizes_open() if size is not None)
                return
            case "workgroup":
                kernel.workgroup_size = self._integer()
            case "fastmath":
                flags = [self._take("word")]
                while self._accept("mark", ","):
                    flags.append(self._take("word"))
                kernel.fastmath = frozenset(flags)
            case "index":
                kernel.index_bits = self._integer()
            case _:
                raise self.error("level, grid, workgroup, fastmath or index")
        self._take("mark", ")")

    def _arguments(self, end: str) -> list[Value]:
        arguments: list[Value] = []
        while not self._accept("mark", end):
            if arguments:
                self._take("mark", ",")
            spelling = self._take("value")
            self._take("mark", ":")
            self._values[spelling] = Value(self._type())
            arguments.append(self._values[spelling])
        return arguments

    def _operation(self) -> Op:
        names: list[str] = []
        while self._peek()[0] == "value":
            names.append(self._take("value"))
            self._take("mark", "," if self._accept_more() else "=")
        op = Op(self._take("word"), [], [], {}, [])
        while self._peek()[0] == "value":
            spelling = self._take("value")
            if spelling not in self._values:
                raise self.error(f"{spelling} to be defined before it is used")
            op.operands.append(self._values[spelling])
            if not self._accept("mark", ","):
                break
        if self._accept("mark", "{"):
            while not self._accept("mark", "}"):
                if op.attributes:
                    self._take("mark", ",")
                key = self._take("word")
                self._take("mark", "=")
                op.attributes[key] = self._attribute()
        types: list[Type] = []
        if names:
            self._take("mark", ":")
            types.append(self._type())
            while len(types) < len(names):
                self._take("mark", ",")
                types.append(self._type())
        if self._accept("mark", "@"):
            op.location = self._location()
        if self._accept("mark", "["):
            op.regions.append(self._region())
            while self._accept("mark", "["):
                op.regions.append(self._region())
        for spelling, found in zip(names, types, strict=True):
            self._values[spelling] = Value(found, definition=op)
            op.results.append(self._values[spelling])
        return op

    def _accept_more(self) -> bool:
        return self._peek() == ("mark", ",")

    def _region(self) -> Region:
        self._take("mark", "(")
        region = Region(arguments=self._arguments(")"))
        while not self._accept("mark", "]"):
            region.operations.append(self._operation())
        return region

    def _location(self) -> Location:
        self._take("mark", "(")
        path = self._string()
        self._take("mark", ",")
        line = self._integer()
        self._take("mark", ",")
        column = self._integer()
        self._take("mark", ")")
        return Location(path, line, column)

    # ---- attributes and types

    def _attribute(self) -> Attribute:
        kind, text = self._peek()
        if kind == "number":
            self._take(kind)
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if kind == "string":
            return self._string()
        if self._accept("mark", "("):
            items: list[Attribute] = []
            while not self._accept("mark", ")"):
                if items:
                    self._take("mark", ",")
                items.append(self._attribute())
            return tuple(items)
        word = self._take("word")
        if word in {"inf", "nan"}:
            return float(word)
        if word in {"true", "false"}:
            return word == "true"
        if word == "layout":
            return Layout.parse(self._string())
        if word == "size":
            return Size.parse(self._string())
        if word in _DTYPES:
            return _DTYPES[word]
        raise self.error("an attribute value")

    def _sizes_open(self) -> list[Size | None]:
        sizes: list[Size | None] = []
        while not self._accept("mark", ")"):
            if sizes:
                self._take("mark", ",")
            text = self._string()
            sizes.append(None if text == "?" else Size.parse(text))
        return sizes

    def _type(self) -> Type:
        word = self._take("word")
        if word in _DTYPES:
            return ScalarType(_DTYPES[word])
        self._take("mark", "<")
        if word == "token":
            tile = self._type()
            self._take("mark", ">")
            if not isinstance(tile, TileType):
                raise self.error("a tile type")
            return TokenType(tile)
        name = self._take("word")
        if name not in _DTYPES:
            raise self.error("a dtype")
        dtype = _DTYPES[name]
        self._take("mark", ",")
        found: Type
        match word:
            case "vec":
                found = VectorType(dtype, self._integer())
            case "tile":
                dims = self._take("dims" if self._peek()[0] == "dims" else "number")
                self._take("mark", ",")
                space = cast("Space", self._take("word"))
                found = TileType(tuple(map(int, dims.split("x"))), dtype, space)
            case "shared":
                self._take("mark", "(")
                sizes = tuple(size for size in self._sizes_open() if size is not None)
                found = SharedType(dtype, sizes)
            case "array":
                found = self._array(dtype.name)
            case _:
                raise self.error("a type")
        self._take("mark", ">")
        return found

    def _array(self, dtype: str) -> ArrayType:
        self._take("mark", "(")
        shape = tuple(self._sizes_open())
        self._take("mark", ",")
        strides = None
        if self._accept("word", "strides"):
            self._take("mark", "(")
            strides = tuple(size for size in self._sizes_open() if size is not None)
            self._take("mark", ",")
        access = cast("Access", self._take("word"))
        self._take("mark", ",")
        return ArrayType(_DTYPES[dtype], shape, strides, access, self._integer())
