"""What pytest collects in the workspace, kept in build/ until a file that may change it is newer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lane import PATHS

ROOT = Path(__file__).resolve().parent.parent
DUMP = ROOT / "build" / "tests.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """One test: as ``poot_test_util.TestCase`` names it, with its lanes."""

    node_id: str
    package: str
    marks: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """The name without the parameters of one case."""
        return self.node_id.split("[", 1)[0]


def collect_tests(*, root: Path = ROOT, dump: Path = DUMP, fresh: bool = False) -> list[Collected]:
    """Return every test of the workspace; end the program where one cannot be imported."""
    if fresh or not dump.is_file() or _newest(root) > dump.stat().st_mtime:
        dump.parent.mkdir(parents=True, exist_ok=True)
        dump.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-c", str(root / ".config" / "pytest.ini")]
        command += [f"--rootdir={root}", "--collect-only", "-qq", "-rs", "--dump-tests", str(dump)]
        done = subprocess.run(
            [*command, *PATHS], cwd=root, capture_output=True, text=True, check=False
        )
        skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
        if done.returncode or skipped or not dump.is_file():
            tail = "\n".join(done.stdout.splitlines()[-40:])
            sys.exit(f"pytest collects with {done.returncode} and skips {skipped}:\n{tail}")
    return [_read(line) for line in dump.read_text().splitlines()]


def _read(line: str) -> Collected:
    record = json.loads(line)
    tuples = {name: tuple(record[name]) for name in ("devices", "groups", "lanes")}
    return Collected(
        node_id=record["node_id"],
        package=record["package"],
        marks=frozenset(record["marks"]),
        **tuples,
    )


def _newest(root: Path) -> float:
    newest = (root / ".config" / "lanes.toml").stat().st_mtime
    for top in PATHS:
        for folder, names, files in os.walk(root / top):
            names[:] = [n for n in names if n not in {"__pycache__", ".venv", "node_modules"}]
            newest = max(newest, os.stat(folder).st_mtime)
            newest = max([newest, *(os.stat(os.path.join(folder, f)).st_mtime for f in files)])
    return newest
