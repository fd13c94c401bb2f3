"""Result files: what the machine and the code were, and measured cells that replace older ones."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = ["Rounds", "conditions", "quantile", "store"]

_QUIET = 0.05
"""Share of the cores that others may take during a round that counts."""
_MOST_TRIES = 2
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
T = TypeVar("T")


class Rounds(Generic[T]):
    """Runs a measurement again where other processes took too much of the cores meanwhile (Linux).

    Attributes:
        shares: Of the cores, that others took during each round that counted.
    """

    def __init__(self) -> None:
        self.shares: list[float] = []

    def run(self, measure: Callable[[], T]) -> T:
        """Return what a quiet round gave, or the quietest of a few."""
        tried: list[tuple[float, T]] = []
        while len(tried) < _MOST_TRIES and (not tried or tried[-1][0] > _QUIET):
            start, before = time.perf_counter(), _others_s()
            found = measure()
            cores_s = (time.perf_counter() - start) * (os.cpu_count() or 1)
            tried.append((max(0.0, _others_s() - before) / cores_s, found))
        share, found = min(tried, key=lambda each: each[0])
        self.shares.append(round(share, 4))
        return found


def _others_s() -> float:
    """Return the CPU seconds of all but this process and those that it started."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    busy = (user + nice + system + irq + softirq + steal) * _TICK_S
    return busy - sum(map(_cpu_s, _tree(os.getpid())))


def _tree(process_id: int) -> Iterator[int]:
    yield process_id
    for task in Path(f"/proc/{process_id}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _tree(int(child))


def _cpu_s(process_id: int) -> float:
    # The name in brackets may hold spaces; utime and stime are the 12th and 13th field after it.
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value that a share q of all lies at or below (nearest rank).

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def conditions() -> dict[str, Any]:
    """Return what a figure depends on: processor, cores, commit, and the load before."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
    )
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "commit": commit.stdout.strip(),
        "processor": names[0] if names else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
    }


def store(path: Path, name: str, figures: dict[str, Any]) -> None:
    """Write figures under a name into a result file, in place of those of an earlier run."""
    found = json.loads(path.read_text()) if path.exists() else {}
    found[name] = figures
    path.write_text(json.dumps(found, indent=1) + "\n")
