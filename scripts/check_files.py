"""Fail for files that do not belong in the repository: too large, markers of a merge."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

LARGEST_BYTES = 2 << 20
# A line of seven and a blank or the line's end, as git writes them; spelt so that this file has none.
MARKERS = tuple(letter * 7 for letter in "<>")


def problems_of(path: Path) -> list[str]:
    """Return what is wrong with one file."""
    if not path.is_file():
        return []
    if (size := path.stat().st_size) > LARGEST_BYTES:
        return [f"{path}: {size} bytes; more than {LARGEST_BYTES} do not belong here"]
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return []
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(tuple(f"{m} " for m in MARKERS)):
            problems.append(f"{path}:{number}: a marker of a merge")
    if text and not text.endswith("\n"):
        problems.append(f"{path}: no newline at its end")
    return problems


def self_test() -> list[str]:
    """Return which bad files pass."""
    attempts = {
        "a large file": "x" * LARGEST_BYTES + "\n",
        "a marker of a merge": f"a\n{MARKERS[0]} HEAD\n",
        "no newline at the end": "a",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        missed: list[str] = []
        for name, text in attempts.items():
            path.write_text(text)
            missed += [] if problems_of(path) else [name]
    return missed


def main() -> int:
    """Check the files named; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="files, or `self-test`")
    paths = parser.parse_args().paths
    problems = (
        self_test() if paths == ["self-test"] else [p for n in paths for p in problems_of(Path(n))]
    )
    print("\n".join(problems) or "files are as they should be")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
