"""Hold every version of the workspace to the one in the root pyproject.toml; ``set X.Y.Z`` changes it.

Versions stand in each package's pyproject.toml, because a source distribution must carry its own, and
in the exact pins of the packages on each other.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
OWN = re.compile(r'^version = "([^"]+)"', re.MULTILINE)


def version_of(text: str) -> str:
    """Return the version that a pyproject.toml states."""
    return str(tomllib.loads(text)["project"]["version"])


def problems_of(name: str, text: str, version: str) -> list[str]:
    """Return the versions and pins of one pyproject.toml that are not the workspace's."""
    document = tomllib.loads(text)
    problems = []
    if document["project"]["version"] != version:
        problems.append(f"{name} is {document['project']['version']}, the workspace {version}")
    for entry in document["project"].get("dependencies", []):
        if entry.startswith("poot-") and f"=={version}" not in entry:
            problems.append(f"{name} pins {entry!r}; write =={version}")
    for group in document.get("dependency-groups", {}).values():
        for entry in group:
            if entry.startswith("poot-") and "==" in entry and f"=={version}" not in entry:
                problems.append(f"{name} pins {entry!r} for its tests; write =={version}")
    return problems


def set_version(text: str, version: str) -> str:
    """Return a pyproject.toml with its version and its pins on poot's packages changed."""
    text = OWN.sub(f'version = "{version}"', text, count=1)
    return re.sub(r'"(poot-[a-z-]+)==[^";\s]+', rf'"\1=={version}', text)


def self_test() -> list[str]:
    """Return which wrong versions pass."""
    good = '[project]\nname = "poot-b"\nversion = "1.2.0"\ndependencies = ["poot-a==1.2.0"]\n'
    attempts = {
        "another version": good.replace('version = "1.2.0"', 'version = "1.1.0"'),
        "a pin on another version": good.replace("a==1.2.0", "a==1.1.0"),
        "a pin that is none": good.replace("a==1.2.0", "a>=1.2.0"),
    }
    missed = [name for name, text in attempts.items() if not problems_of("poot-b", text, "1.2.0")]
    changed = set_version(good, "1.3.0rc1")
    if problems_of("poot-b", good, "1.2.0") or problems_of("poot-b", changed, "1.3.0rc1"):
        missed.append("good versions are refused")
    return missed


def main() -> int:
    """Check, set or test the check; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("check")
    commands.add_parser("set").add_argument("version", type=Version)
    commands.add_parser("self-test")
    arguments = parser.parse_args()
    files = sorted((ROOT / "packages").glob("*/pyproject.toml"))
    root = ROOT / "pyproject.toml"
    if arguments.command == "self-test":
        problems = self_test()
        print("\n".join(problems) or "the version gate catches every known-bad input")
        return min(len(problems), 1)
    if arguments.command == "set":
        for file in [root, *files]:
            file.write_text(set_version(file.read_text(), str(arguments.version)))
        print(f"{arguments.version} in {len(files)} packages; run `uv lock`")
        return 0
    version = version_of(root.read_text())
    problems = [p for f in files for p in problems_of(f.parent.name, f.read_text(), version)]
    print("\n".join(problems) or f"every package is {version}")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
