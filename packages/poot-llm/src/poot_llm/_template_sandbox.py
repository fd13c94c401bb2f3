"""The Jinja environment of chat templates: transformers' dialect, metered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from poot_core import RequestError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.parser import Parser

    from poot_llm._template import TemplateLimits

__all__ = ["Sandbox"]


class _LimitError(TemplateError):
    """A rendering left its limits."""


class _Generation(Extension):
    """``{% generation %}`` marks what the assistant wrote (for training); here it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """An immutable sandbox that meters loops, arithmetic on texts and calls."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, limits: TemplateLimits) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.limits = limits
        self.deadline = 0.0
        self.filters.update(
            tojson=_tojson,
            metered_loop=self._loop,
            metered_text=self._text,
            center=self._center,
            format=self._format,
        )

    def tick(self) -> None:
        """Raise where the rendering has run too long."""
        if monotonic() > self.deadline:
            raise _LimitError(f"it ran longer than {self.limits.seconds:g} s")

    def check_size(self, value: Any) -> Any:
        """Return the value, or raise where it is larger than the output may be."""
        if isinstance(value, str | bytes | list | tuple) and (
            len(value) > self.limits.output_characters  # pyright: ignore[reportUnknownArgumentType]
        ):
            raise _LimitError(f"it made more than {self.limits.output_characters} characters")
        return value  # pyright: ignore[reportUnknownVariableType]

    def check_count(self, value: Any) -> None:
        """Raise where a number (a width, a count) is larger than the output may be."""
        if isinstance(value, int) and value > max(self.limits.output_characters, 2**31):
            raise _LimitError(f"it asks for {value} characters or items")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute ``+ * ** %`` unless the result may be large."""
        self.tick()
        most = self.limits.output_characters
        if operator == "**" and (
            not isinstance(left, int | float) or abs(left) > 1e6 or abs(right) > 64
        ):
            raise _LimitError("it raises to a power that is too large")
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and len(text) * max(0, count) > most:  # pyright: ignore[reportUnknownArgumentType]
                    raise _LimitError(f"it made more than {most} characters")
            if _bits(left) + _bits(right) > 4096:
                raise _LimitError("it computes a number that is too large")
        if operator == "%":
            _check_format(left)
        return self.check_size(super().call_binop(context, operator, left, right))

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call what the sandbox allows, within the limits."""
        self.tick()
        for argument in args[2:]:  # past the context and the callee
            self.check_count(argument)
        return self.check_size(super().call(*args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "metered_loop")
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [_filtered(node, "metered_text") for node in concat.nodes]
        return tree

    def _loop(self, items: Any) -> Any:
        """Return the items, a tick each; sized as before so that ``loop.last`` and the like work."""
        self.tick()
        if isinstance(items, list | tuple | str | Mapping):
            return _Metered(items, self.tick)  # pyright: ignore[reportUnknownArgumentType]
        return items if not hasattr(items, "__iter__") else _ticking(items, self.tick)

    def _text(self, value: Any) -> Any:
        self.tick()
        # Half of what fits: two such parts make at most the limit.
        if isinstance(value, str) and len(value) > self.limits.output_characters // 2:
            raise _LimitError(f"it made more than {self.limits.output_characters} characters")
        return value

    def _center(self, value: Any, width: int = 80) -> str:
        if width > self.limits.output_characters:
            raise _LimitError(f"it asks for {width} characters")
        return str(value).center(width)

    def _format(self, value: Any, *args: Any, **kwargs: Any) -> str:
        _check_format(value)
        return self.check_size(str(value) % (kwargs or args))


class _Metered:
    """A sized iterable that ticks."""

    def __init__(self, items: Any, tick: Callable[[], None]) -> None:
        self._items = items
        self._tick = tick

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return _ticking(self._items, self._tick)


def _ticking(items: Any, tick: Callable[[], None]) -> Iterator[Any]:
    for item in items:
        tick()
        yield item


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _check_format(form: Any) -> None:
    if isinstance(form, str) and re.search(r"%[^a-zA-Z%]*(\d{5}|\*)", form):
        raise _LimitError("it formats with a width that is too large")


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes < > & ' for HTML, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


class Sandbox:
    """Compiles and renders templates; every failure of theirs is a RequestError."""

    def __init__(self, limits: TemplateLimits, now: datetime | None) -> None:
        self._environment = _Environment(limits)
        names = cast("dict[str, Any]", self._environment.globals)
        names["raise_exception"] = _raise_exception
        names["strftime_now"] = lambda form: (now or datetime.now()).strftime(form)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    def compile(self, source: str) -> Template:
        """Return the compiled template."""
        try:
            return self._environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise RequestError(
                f"the chat template is malformed: {_reason(error)}", field="chat_template"
            ) from error

    def render(self, template: Template, names: Mapping[str, Any]) -> str:
        """Return the text of a template."""
        environment = self._environment
        environment.deadline = monotonic() + environment.limits.seconds
        parts: list[str] = []
        size = 0
        try:
            for part in template.generate(**names):
                size += len(part)
                if size > environment.limits.output_characters:
                    raise _LimitError(
                        f"it made more than {environment.limits.output_characters} characters"
                    )
                environment.tick()
                parts.append(part)
        except (
            TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError,
            RecursionError, MemoryError,
        ) as error:  # fmt: skip
            raise RequestError(
                f"the chat template does not render these messages: {_reason(error)}",
                field="messages",
            ) from error
        return "".join(parts)


def _reason(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    text = str(error) or type(error).__name__
    return f"{text} (line {line} of the template)" if line else text
