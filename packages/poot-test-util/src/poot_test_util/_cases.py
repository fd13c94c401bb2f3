"""Lists of test cases that must pass: ``[@tag ...] node id``, and with a reason where it is unlisted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Row", "read_cases"]

_SEPARATOR = " # "


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a list.

    Attributes:
        node_id: The exact name of a case, or in a list of reasons a function for all its cases.
        tags: Words that stood before it, without their ``@``.
        reason: What stood after `` # ``.
    """

    node_id: str
    tags: frozenset[str] = frozenset()
    reason: str = ""


def read_cases(path: Path, tag: str | None = None) -> list[Row]:
    """Return the rows of a list, or those that carry a tag.

    An empty line and one that starts with ``#`` say nothing.

    Args:
        path: The list; a missing one has no rows.
        tag: Keep the rows that carry it; without one, all but the rows tagged ``large``.
    """
    rows: list[Row] = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        text, _, reason = text.partition(_SEPARATOR)
        tags: set[str] = set()
        while text.startswith("@"):
            word, _, text = text.partition(" ")
            tags.add(word[1:])
        rows.append(Row(node_id=text.strip(), tags=frozenset(tags), reason=reason.strip()))
    if tag is None:
        return [row for row in rows if "large" not in row.tags]
    return [row for row in rows if tag in row.tags]
