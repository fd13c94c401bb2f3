"""The distributions of the workspace: names, requirements, order of dependence, and building them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PRIVATE = "Private :: Do Not Upload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One package of the workspace.

    Attributes:
        name: Of the distribution.
        folder: Where its pyproject.toml lies.
        requirements: What it declares.
        test_requirements: What its tests need beyond that and pytest.
        is_published: Whether it is for users.
    """

    name: str
    folder: Path
    requirements: tuple[str, ...]
    test_requirements: tuple[str, ...]
    is_published: bool

    @property
    def module(self) -> str:
        """The name under which it is imported."""
        return self.name.replace("-", "_")

    @property
    def siblings(self) -> set[str]:
        """The packages of the workspace that it declares."""
        names = {canonicalize_name(Requirement(r).name) for r in self.requirements}
        return {name for name in names if name.startswith("poot-")}

    @property
    def external(self) -> list[str]:
        """What it declares from outside of the workspace."""
        return [r for r in self.requirements if not r.startswith("poot-")]


def read_distributions(root: Path = ROOT) -> dict[str, Distribution]:
    """Return every package by name, each after the packages that it depends on."""
    found: dict[str, Distribution] = {}
    for file in sorted((root / "packages").glob("*/pyproject.toml")):
        document: dict[str, Any] = tomllib.loads(file.read_text())
        project = document["project"]
        found[project["name"]] = Distribution(
            name=project["name"],
            folder=file.parent,
            requirements=tuple(project.get("dependencies", [])),
            test_requirements=tuple(document.get("dependency-groups", {}).get("test", [])),
            is_published=PRIVATE not in project.get("classifiers", []),
        )
    order = TopologicalSorter({name: one.siblings & set(found) for name, one in found.items()})
    return {name: found[name] for name in order.static_order()}


def run(command: list[str], **options: Any) -> str:
    """Run a command and return what it prints; raise with its output when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout


def build(out: Path, *, sdists: bool = False) -> None:
    """Build every package into a folder."""
    kinds = [] if sdists else ["--wheel"]
    command = ["uv", "build", "--quiet", "--all-packages", "--no-sources", *kinds]
    run([*command, "--out-dir", str(out)], cwd=ROOT)


def new_environment(folder: Path) -> str:
    """Make an empty environment and return its Python."""
    run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder)])
    return str(folder / "bin" / "python")


def install(python: str, wheels: Path, *wanted: str) -> None:
    """Install into an environment; poot's own packages come from a plain folder of wheels."""
    command = ["uv", "pip", "install", "--quiet", "--python", python, "--find-links", str(wheels)]
    run([*command, *wanted])
