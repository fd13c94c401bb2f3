"""Fail when a public name of a package is used nowhere else: no module, test, script or example."""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("packages", "scripts", "benchmarks", "examples")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def public_names(package: Path) -> list[str]:
    """Return the names in ``__all__`` of a package's ``__init__``."""
    for path in (package / "src").glob("*/__init__.py"):
        for node in ast.parse(path.read_text()).body:
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                value = getattr(node, "value", None)
                return list(ast.literal_eval(value)) if value else []
    return []


def words_by_file(root: Path = ROOT) -> dict[Path, Counter[str]]:
    """Return how often each identifier stands in each Python file."""
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    return {
        path: Counter(WORD.findall(path.read_text())) for path in files if ".venv" not in path.parts
    }


def unused(package: Path, words: dict[Path, Counter[str]]) -> list[str]:
    """Return the public names that no file but their definition and ``__init__`` mentions."""
    found: list[str] = []
    for name in public_names(package):
        users = [p for p, count in words.items() if count[name] and p.name != "__init__.py"]
        if len(users) < 2 and sum(words[p][name] for p in users) < 3:
            found.append(f"{package.name}: {name} is public and nothing uses it")
    return found


def self_test() -> list[str]:
    """Return which known-bad inputs pass."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        source = root / "packages" / "poot-a" / "src" / "poot_a"
        tests = root / "packages" / "poot-a" / "tests"
        source.mkdir(parents=True)
        tests.mkdir()
        (source / "__init__.py").write_text('__all__ = ["used", "idle"]\n')
        (source / "_a.py").write_text("def used(): ...\ndef idle(): ...\n")
        (tests / "test_a.py").write_text("from poot_a import used\nused()\n")
        found = unused(root / "packages" / "poot-a", words_by_file(root))
    return [] if found == ["poot-a: idle is public and nothing uses it"] else [str(found)]


def main() -> int:
    """Check every package, or test the check; return 1 if anything is dead."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", default="check", choices=["check", "self-test"])
    if parser.parse_args().command == "self-test":
        missed = self_test()
        print("\n".join(missed) or "the dead-code gate catches a public name that nothing uses")
        return min(len(missed), 1)
    words = words_by_file()
    problems = [
        p for package in sorted((ROOT / "packages").iterdir()) for p in unused(package, words)
    ]
    print("\n".join(problems) or "every public name is used")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
