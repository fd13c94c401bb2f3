"""The tokenizer files of a checkpoint directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from poot_load._json import read_object
from poot_load._refusal import refusal

__all__ = ["TokenizerFiles", "tokenizer_files"]

_MAX_TEMPLATE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a directory says of its tokenizer.

    Attributes:
        tokenizer: Path of tokenizer.json, or None.
        settings: Content of tokenizer_config.json; empty if there is none.
        chat_template: Default template, or None.
    """

    tokenizer: Path | None
    settings: dict[str, Any]
    chat_template: str | None


def tokenizer_files(directory: Path) -> TokenizerFiles | None:
    """Return a directory's tokenizer files, or None if it has none.

    Raises:
        CheckpointError: If one is malformed.
    """
    tokenizer = directory / "tokenizer.json"
    settings = read_object(directory / "tokenizer_config.json")
    template = _template(directory, settings or {})
    if not tokenizer.is_file():
        if settings is None and template is None:
            return None
        return TokenizerFiles(None, settings or {}, template)
    return TokenizerFiles(tokenizer, settings or {}, template)


def _template(directory: Path, settings: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        if (size := path.stat().st_size) > _MAX_TEMPLATE_BYTES:
            raise refusal(path, "file size", size, f"at most {_MAX_TEMPLATE_BYTES} bytes")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise refusal(path, "content", error.reason, "UTF-8") from None
    value = settings.get("chat_template")
    if value is None:
        old = read_object(directory / "chat_template.json") or {}
        value = old.get("chat_template")
    if isinstance(value, list):  # several templates, each with a name
        named: dict[str, Any] = {}
        for item in cast("list[object]", value):
            if isinstance(item, dict):
                entry = cast("dict[str, Any]", item)
                named[str(entry.get("name"))] = entry.get("template")
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        path = directory / "tokenizer_config.json"
        raise refusal(path, "'chat_template'", repr(value), "a string or a list of named strings")
    return value
