"""What is removed when a process first opens a cache root: old epochs and forgotten scratch files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["EPOCH_FILE", "EPOCH_PREFIX", "SCRATCH_PREFIX", "prune"]

EPOCH_FILE = "EPOCH"
EPOCH_PREFIX = "epoch-"
SCRATCH_PREFIX = ".scratch-"
_KEPT_EPOCHS = 8
_IDLE_SECONDS = 24 * 3600
_SCRATCH_SECONDS = 3600


def prune(root: Path, *, keep: str, now: float) -> None:
    """Keep epoch ``keep`` and the 8 newest others, and drop scratch files older than an hour.

    An epoch beyond those goes only after 24 idle hours; kept sources of failed compilations go
    after 24 hours. Errors are ignored: another process may be pruning the same root.

    Args:
        root: Cache root.
        keep: Name of the current epoch.
        now: Seconds since 1970.
    """
    others: list[tuple[float, str]] = []
    for entry in _entries(root):
        if entry.name.startswith(SCRATCH_PREFIX):
            _drop_if_older(entry, now - _SCRATCH_SECONDS)
        elif entry.name.startswith(EPOCH_PREFIX):
            for inner in _entries(entry.path):
                if inner.name.startswith(SCRATCH_PREFIX):
                    _drop_if_older(inner, now - _SCRATCH_SECONDS)
            if entry.name != keep:
                others.append((_last_use(entry), entry.path))
    for failed in _entries(root / "failed"):
        _drop_if_older(failed, now - _IDLE_SECONDS)
    others.sort(reverse=True)
    for last_use, path in others[_KEPT_EPOCHS:]:
        if now - last_use > _IDLE_SECONDS:
            # Renamed first, so that no other process reads a half-removed epoch.
            doomed = os.path.join(root, SCRATCH_PREFIX + os.path.basename(path))
            with contextlib.suppress(OSError):
                os.rename(path, doomed)
                _remove_tree(doomed)


def _entries(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def _last_use(epoch: os.DirEntry[str]) -> float:
    for path in (os.path.join(epoch.path, EPOCH_FILE), epoch.path):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return 0.0


def _drop_if_older(entry: os.DirEntry[str], limit: float) -> None:
    with contextlib.suppress(OSError):
        if entry.stat(follow_symlinks=False).st_mtime < limit:
            if entry.is_dir(follow_symlinks=False):
                _remove_tree(entry.path)
            else:
                os.unlink(entry.path)


def _remove_tree(path: str) -> None:
    import shutil  # not needed by most processes, which find nothing to remove

    shutil.rmtree(path, ignore_errors=True)
