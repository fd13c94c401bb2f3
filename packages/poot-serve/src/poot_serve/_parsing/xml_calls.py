"""Calls as Qwen's coders write them: ``<function=name><parameter=key>value</parameter></function>``."""

from __future__ import annotations

import json
from typing import Any

from poot_serve._parsing.deltas import CallArguments, CallBegin, Content, Delta

__all__ = ["XmlCall"]


class XmlCall:
    """Reads one call; the arguments grow by one parameter at a time.

    Args:
        tools: Parameters of each function, as JSON schemas: a value whose type is not a string is read
            as JSON.
    """

    def __init__(self, tools: dict[str, dict[str, Any]]) -> None:
        self._tools = tools
        self._text = ""  # not understood yet
        self._name: str | None = None
        self._num_parameters = 0
        self._is_closed = False

    def feed(self, text: str) -> list[Delta]:
        """Return what the text says."""
        deltas: list[Delta] = []
        self._text += text
        while self._advance(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        """Return what was held back: the end of the arguments, or text that is no call."""
        if self._name is None:
            return [Content(self._text)] if self._text.strip() else []
        return [] if self._is_closed else self._close()

    def _advance(self, deltas: list[Delta]) -> bool:
        """Read one element; return whether there may be another."""
        if self._is_closed:
            return False
        if self._name is None:
            found = self._between("<function=", ">")
            if found is None:
                return False
            self._name = found.strip()
            deltas.append(CallBegin(self._name))
            return True
        ends, begins = self._text.find("</function>"), self._text.find("<parameter=")
        if ends >= 0 and not 0 <= begins < ends:
            deltas += self._close()
            return False
        found = self._between("<parameter=", "</parameter>")
        if found is None:
            return False
        key, _, value = found.partition(">")
        lead = "{" if self._num_parameters == 0 else ", "
        self._num_parameters += 1
        text = json.dumps(self._typed(key.strip(), value), ensure_ascii=False)
        deltas.append(CallArguments(f"{lead}{json.dumps(key.strip())}: {text}"))
        return True

    def _between(self, opener: str, closer: str) -> str | None:
        start = self._text.find(opener)
        end = -1 if start < 0 else self._text.find(closer, start)
        if end < 0:
            return None
        found = self._text[start + len(opener) : end]
        self._text = self._text[end + len(closer) :]
        return found

    def _close(self) -> list[Delta]:
        self._is_closed = True
        return [CallArguments("}" if self._num_parameters else "{}")]

    def _typed(self, key: str, value: str) -> Any:
        value = value.removeprefix("\n").removesuffix("\n")
        properties = self._tools.get(self._name or "", {}).get("properties")
        schema = properties.get(key) if isinstance(properties, dict) else None
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind in {None, "string"}:
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
