"""Peak memory of a process and all of its children, sampled from outside through /proc."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

__all__ = ["MemorySampler", "tree_bytes", "tree_pids"]

PROC = Path("/proc")
INTERVAL_S = 0.05


def tree_pids(root: int, proc: Path = PROC) -> list[int]:
    """Return a process and its descendants that live; empty if it is gone."""
    parents: dict[int, int] = {}
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            try:
                # The name in parentheses may hold anything; the parent is the second field after it.
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except (OSError, IndexError):
                continue
    found = [root] if root in parents else []
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def tree_bytes(root: int, proc: Path = PROC) -> int:
    """Return the proportional set size of a tree in bytes: shared pages count once.

    Mapped files count as far as they are resident. A process that ends meanwhile counts 0.
    """
    total = 0
    for pid in tree_pids(root, proc):
        try:
            rollup = (proc / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        for line in rollup.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


class MemorySampler:
    """Samples a process tree every 50 ms from a thread of its own; ``peak_bytes`` is the largest.

    Args:
        root: The process to watch.
        proc: Where processes are described; no such folder leaves ``peak_bytes`` None.
    """

    def __init__(self, root: int, proc: Path = PROC) -> None:
        self.peak_bytes: int | None = None
        self._root = root
        self._proc = proc
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if (self._proc / "self").exists():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            found = tree_bytes(self._root, self._proc)
            if found:
                self.peak_bytes = max(self.peak_bytes or 0, found)
            self._stop.wait(INTERVAL_S)
