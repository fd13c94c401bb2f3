"""Grammars that hold calls to the schemas of their functions, in llguidance's dialect of Lark.

``forced_calls`` is for an answer that must be calls and nothing else. ``strict_calls`` leaves the model
free to write text, reasoning and calls as it likes; only where it begins a call does it have to end one
that fits. Both describe what the parsers of this folder read, marker by marker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from poot_serve._parsing.formats import AnswerFormat
from poot_serve._parsing.harmony import HarmonyParser
from poot_serve._parsing.marked_calls import MistralCalls

__all__ = ["forced_calls", "strict_calls"]

_SPACE = r"[ \n\r\t]{0,16}"  # unbounded space is all that some models ever write
_JSON_SPACE = r"[\x20\x0A\x0D\x09]{0,16}"
_TEXT = "TEXT: /(.|\\n)+/"

Parameters = Mapping[str, dict[str, Any]]
"""JSON schemas of the functions' parameters, by name."""


def forced_calls(form: AnswerFormat, tools: Parameters, *, parallel: bool) -> str:
    """Return the grammar of one call as a JSON object, or of several in a list where ``parallel``."""
    start = f"start: call | {_listed('call')}" if parallel else "start: call"
    return "\n".join([start, *_calls(form.arguments_key, tools)])


def strict_calls(
    form: AnswerFormat, tools: Parameters, ids: Mapping[str, int], *, parallel: bool
) -> str | None:
    """Return the grammar of an answer in which every call fits its function, or None without a format.

    Args:
        form: How the model writes calls and reasoning.
        tools: What may be called.
        ids: Markers that are single tokens; the others are spelled.
        parallel: Whether one answer may hold several calls.
    """
    match form.tools:
        case None:
            return None
        case "harmony":
            return _harmony(tools, ids)
        case "llama3":
            return _bare(form, tools, ids, parallel=parallel)
        case _:
            return _marked(form, tools, ids, parallel=parallel)


def _marked(
    form: AnswerFormat, tools: Parameters, ids: Mapping[str, int], *, parallel: bool
) -> str:
    """Calls between markers, in the midst of text."""
    opener, *others = form.markers(with_tools=True)
    rules = _calls(form.arguments_key, tools)
    listed = _listed("call") if parallel else rf"/\[{_SPACE}/ call /{_SPACE}\]/"
    if form.tools == "hermes":
        closer = f"<[{ids[others[0]]}]>" if others[0] in ids else json.dumps(others[0])
        rules += [f"block: open SPACE call SPACE {closer}", f"SPACE: /{_SPACE}/"]
    elif form.tools == "mistral" and MistralCalls.ARGS in ids:
        # Newer models write the name and the arguments apart, with a marker before each call.
        pairs = _named(ids, tools)
        rules += [f"block: open ({listed} | {' | '.join(name for name, _ in pairs)})"]
        rules += [f"{name}: {rule}" for name, rule in pairs]
    else:
        rules.append(f"block: open {listed}")
    is_last = not parallel or form.tools == "granite"  # nothing closes its list but the end
    if opener in ids:
        free = " | ".join(["TEXT", *_reasoning(form, ids)])
        start = f"start: ({free})* block?" if is_last else f"start: ({free} | block)*"
        opened = f"open: <[{ids[opener]}]>"
    else:
        # A marker that is spelled ends the text before it as soon as it stands there.
        start = "start: block | TEXT?" if is_last else "start: block* TEXT?"
        opened = f"open[lazy]: /(.|\\n)*/ {json.dumps(opener)}"
    return "\n".join([start, opened, _TEXT, *rules])


def _bare(form: AnswerFormat, tools: Parameters, ids: Mapping[str, int], *, parallel: bool) -> str:
    """Llama 3: the answer is calls from its first brace on, or begins with something else."""
    (marker,) = form.markers(with_tools=True)[:1]
    calls = rf"call (/{_SPACE};{_SPACE}/ call)*" if parallel else "call"
    rules = [f"calls: {calls}", *_calls(form.arguments_key, tools)]
    marked = f" | PROSE? <[{ids[marker]}]> calls" if marker in ids else ""
    start = f"start: calls | PROSE?{marked}"
    return "\n".join([start, r"PROSE: /[ \n\r\t]*[^ \n\r\t{](.|\n)*/", *rules])


def _harmony(tools: Parameters, ids: Mapping[str, int]) -> str | None:
    """Messages on channels; one with a recipient holds the arguments of a call."""
    parser = HarmonyParser
    if any(marker not in ids for marker in parser.MARKERS):
        return None  # without its control tokens the format cannot be written at all
    mark = {name: f"<[{ids[name]}]>" for name in parser.MARKERS}
    end = f"({mark[parser.END]} | {mark[parser.CALL]} | {mark[parser.RETURN]})?"
    kind = f'({mark[parser.CONSTRAIN]}? "json")?'
    rules = [
        f'start: first ({mark[parser.START]} "assistant" next)*',
        "first: note | call",
        "next: note | call",
        f"note: {mark[parser.CHANNEL]} /(analysis|final|commentary) ?/ {mark[parser.MESSAGE]} body",
        f"body: TEXT? {end}",
    ]
    calls: list[str] = []
    for place, (name, schema) in enumerate(tools.items()):
        to = rf"to=functions\.{_pattern(name)}"
        body = f"{mark[parser.MESSAGE]} %json {_schema(schema)} {end}"
        header = f"{mark[parser.CHANNEL]} /(commentary|analysis) {to} ?/ {kind}"
        before = f"/ {to} ?/ {mark[parser.CHANNEL]} /(commentary|analysis) ?/ {kind}"
        rules.append(f"call_{place}: ({header} | {before}) {body}")
        calls.append(f"call_{place}")
    return "\n".join([*rules, f"call: {' | '.join(calls)}", _TEXT])


def _calls(arguments_key: str, tools: Parameters) -> list[str]:
    """Return the rules of ``call``: an object with a function's name and its arguments."""
    rules: list[str] = []
    for place, (name, schema) in enumerate(tools.items()):
        head = rf'\{{{_SPACE}"name"{_SPACE}:{_SPACE}"{_pattern(name)}"{_SPACE},{_SPACE}'
        head += rf'"{arguments_key}"{_SPACE}:{_SPACE}'
        # The schema is a root of its own, so that its references find what they mean.
        rules.append(rf"call_{place}: /{head}/ %json {_schema(schema)} /{_SPACE}\}}/")
    alternatives = " | ".join(f"call_{place}" for place in range(len(rules)))
    return [f"call: {alternatives}", *rules]


def _named(ids: Mapping[str, int], tools: Parameters) -> list[tuple[str, str]]:
    """Return the rules of ``name[CALL_ID]id[ARGS]{...}``, by name."""
    args = f"<[{ids[MistralCalls.ARGS]}]>"
    call_id = ""
    if MistralCalls.CALL_ID in ids:
        call_id = f"(<[{ids[MistralCalls.CALL_ID]}]> /[a-zA-Z0-9]{{9}}/)?"
    return [
        (f"named_{place}", f"/{_pattern(name)}/ {call_id} {args} %json {_schema(schema)}")
        for place, (name, schema) in enumerate(tools.items())
    ]


def _listed(item: str) -> str:
    return rf"/\[{_SPACE}/ {item} (/{_SPACE},{_SPACE}/ {item})* /{_SPACE}\]/"


def _reasoning(form: AnswerFormat, ids: Mapping[str, int]) -> list[str]:
    markers = form.markers(with_tools=False)
    return [f"<[{ids[marker]}]>" for marker in markers if marker in ids]


def _schema(schema: dict[str, Any]) -> str:
    space = {"x-guidance": {"whitespace_pattern": _JSON_SPACE}}
    return json.dumps({**(schema or {"type": "object"}), **space}, ensure_ascii=False)


def _pattern(name: str) -> str:
    """Return a pattern that is a function's name; names are letters, digits and ``_.:/-``."""
    return name.replace(".", r"\.").replace("/", r"\/")
