"""JSON from checkpoint directories: bounded, without duplicate keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from poot_load._refusal import refusal

__all__ = ["parse_object", "read_list", "read_object"]

_MAX_CONFIG_BYTES = 64 << 20


class _DuplicateKeyError(ValueError):
    """Two members of an object have the same name."""


def parse_object(path: Path, field: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``.

    Raises:
        CheckpointError: If it is no UTF-8, no JSON, no object, too deep, or has duplicate keys.
    """
    value = _parse(path, field, data, "a JSON object")
    if not isinstance(value, dict):
        raise refusal(path, field, f"a JSON {type(value).__name__}", "a JSON object")
    return cast("dict[str, Any]", value)


def read_object(path: Path, *, most_bytes: int = _MAX_CONFIG_BYTES) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if there is no such file.

    Raises:
        CheckpointError: If it is too long, unreadable or no JSON object.
    """
    data = _read(path, most_bytes)
    return None if data is None else parse_object(path, "content", data)


def _read(path: Path, most_bytes: int) -> bytes | None:
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise refusal(path, "file size", size, f"at most {most_bytes} bytes")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refusal(path, "file", error.strerror or "unreadable", "a readable file") from None


def _parse(path: Path, field: str, data: bytes, wanted: str) -> object:
    try:
        return json.loads(data.decode(), object_pairs_hook=_members)
    except RecursionError:
        raise refusal(path, field, "nested too deeply", wanted) from None
    except ValueError as error:  # no UTF-8 is one, too
        raise refusal(path, field, str(error), wanted) from None


def read_list(path: Path) -> list[Any] | None:
    """Return the JSON list in a file, or None if there is no such file.

    Raises:
        CheckpointError: If it is too long, unreadable or no JSON list.
    """
    data = _read(path, _MAX_CONFIG_BYTES)
    if data is None:
        return None
    value = _parse(path, "content", data, "a JSON list")
    if not isinstance(value, list):
        raise refusal(path, "content", f"a JSON {type(value).__name__}", "a JSON list")
    return cast("list[Any]", value)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _DuplicateKeyError(f"an object with two members {twice[:80]!r}")
    return out
