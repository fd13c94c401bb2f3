"""Rebuilt tokenizers on disk, by content: atomic writes, checked reads, few entries."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from poot_core import Settings

__all__ = ["default_cache_dir", "load_entry", "store_entry"]

_DIGEST_BYTES = 16
_KEPT = 16
_SUFFIX = ".tokenizer"


def default_cache_dir() -> Path | None:
    """Return where rebuilt tokenizers are kept; None when ``POOT_KERNEL_CACHE`` turns caches off."""
    if Settings.from_environment().kernel_cache_dir is None:
        return None
    xdg = os.environ.get("XDG_CACHE_HOME")
    root = Path(xdg) if xdg else Path("~/.cache").expanduser()
    return root / "poot" / "tokenizers"


def load_entry(directory: Path | None, key: str) -> bytes | None:
    """Return what was stored under ``key``, or None if there is nothing or it is damaged."""
    if directory is None:
        return None
    path = directory / (key + _SUFFIX)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[_DIGEST_BYTES:]
    if data[:_DIGEST_BYTES] != _digest(content):
        return None
    with suppress(OSError):
        os.utime(path)  # the newest entries are kept
    return content


def store_entry(directory: Path | None, key: str, content: bytes) -> None:
    """Keep ``content`` under ``key``; a disk that is full or read-only costs only the entry."""
    if directory is None:
        return
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=directory, suffix=".scratch")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(content) + content)
            os.replace(scratch, directory / (key + _SUFFIX))
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
        _trim(directory)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _trim(directory: Path) -> None:
    entries = sorted(directory.glob("*" + _SUFFIX), key=lambda path: path.stat().st_mtime)
    for path in entries[:-_KEPT]:
        path.unlink(missing_ok=True)
