"""Fail when a package imports what it does not declare, or declares what it does not import.

Devices are found through entry points, so nothing imports them: ``ALLOWED_UNUSED`` names them.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from pathlib import Path

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
ALLOWED_UNUSED = {("poot-llm", "poot-cpu-device")}
DISTRIBUTION_OF = {"huggingface_hub": "huggingface-hub", "ml_dtypes": "ml-dtypes"}
# Imported by tests of a package, from the workspace's development group.
STANDARD = sys.stdlib_module_names


def imported_modules(source: Path) -> set[str]:
    """Return the top-level modules that the files under ``source`` import."""
    found: set[str] = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found


def distribution(module: str) -> str:
    """Return the distribution that holds a module."""
    return DISTRIBUTION_OF.get(module, module.replace("_", "-"))


def problems_of(package: Path) -> list[str]:
    """Return what is undeclared or unused in one package."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    declared = {d.split("==")[0].split(">=")[0].strip() for d in project["dependencies"]}
    own = project["name"].replace("-", "_")
    used = {
        distribution(m) for m in imported_modules(package / "src") if m not in STANDARD and m != own
    }
    missing = [
        f"{project['name']} imports {name} without declaring it" for name in sorted(used - declared)
    ]
    idle = [
        f"{project['name']} declares {name} and never imports it"
        for name in sorted(declared - used)
        if (project["name"], name) not in ALLOWED_UNUSED
    ]
    return missing + idle


def main() -> int:
    """Check every package; return the number of problems."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    problems = [
        p
        for package in sorted(PACKAGES.iterdir())
        if package.is_dir()
        for p in problems_of(package)
    ]
    print("\n".join(problems) or "dependencies are declared and used")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
