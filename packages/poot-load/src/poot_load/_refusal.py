"""The one way in which poot-load says no: file, field, found, allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poot_core import CheckpointError

__all__ = ["refusal"]


def refusal(path: Path | str, field: str, found: Any, allowed: str) -> CheckpointError:
    """Return the error for a field that holds something it must not.

    Args:
        path: The file.
        field: What was read, such as ``tensor 'blk.0.attn_q.weight': offset``.
        found: What stands there; text is shown as it is (pass ``repr`` of text from the file), and
            long text is cut.
        allowed: What may stand there.
    """
    shown = found if isinstance(found, str) else repr(found)
    if len(shown) > 200:
        shown = shown[:200] + "..."
    return CheckpointError(
        f"{path}: {field} is {shown}; allowed: {allowed}",
        path=str(path),
        field=field,
        found=shown,
        allowed=allowed,
    )
