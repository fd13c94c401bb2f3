"""Fail when the layer contracts leave a package out; ``self-test`` shows the contracts failing."""

from __future__ import annotations

import argparse
import configparser
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = ROOT / ".config" / "importlinter.ini"
# For development, never published; they may import whatever they test.
DEVELOPMENT = {"poot_amd_sim", "poot_executor_parity", "poot_test_util"}


def problems_of(contracts: str, packages: set[str]) -> list[str]:
    """Return the packages that the contracts do not hold, and those that do not exist."""
    settings = configparser.ConfigParser()
    settings.read_string(contracts)
    roots = set(settings["importlinter"]["root_packages"].split())
    layered = set(settings["importlinter:contract:layers"]["layers"].replace("|", " ").split())
    where = ".config/importlinter.ini"
    problems = [
        f"{p} is in no layer of {where}" for p in sorted(packages - (layered & roots) - DEVELOPMENT)
    ]
    return problems + [f"{where} names {p}, which is no package" for p in sorted(roots - packages)]


def catches(source_of_core: str) -> bool:
    """Return whether a contract of two layers is broken by a source text of the lower one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, text in (("lower_one", source_of_core), ("upper_one", "")):
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(text)
        contract = "[importlinter:contract:layers]\nname = layers\ntype = layers\nlayers =\n"
        (folder / "contracts.ini").write_text(
            "[importlinter]\nroot_packages =\n    lower_one\n    upper_one\n\n"
            + contract
            + "    upper_one\n    lower_one\n"
        )
        command = [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as c; c()",
        ]
        command += ["--config", "contracts.ini", "--no-cache"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if "Contracts:" not in done.stdout:
        sys.exit(f"import-linter did not run: {done.stdout}{done.stderr}")
    return done.returncode != 0


def self_test() -> list[str]:
    """Return which known-bad inputs pass."""
    missed = [] if catches("import upper_one\n") else ["an import of an upper layer"]
    if catches("import json\n"):
        missed.append("a good import is refused")
    good = CONTRACTS.read_text()
    known = set(good.split("[importlinter:contract", 1)[0].split("root_packages =")[1].split())
    if not problems_of(good, known | {"poot_new"}):
        missed.append("a package in no layer")
    if not problems_of(good, known - {"poot_core"}):
        missed.append("a layer that is no package")
    return missed


def main() -> int:
    """Check, or test the check; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", default="check", choices=["check", "self-test"])
    if parser.parse_args().command == "self-test":
        problems = self_test()
        print("\n".join(problems) or "the layer contracts catch every known-bad input")
    else:
        packages = {p.parent.name for p in (ROOT / "packages").glob("*/src/*/__init__.py")}
        problems = problems_of(CONTRACTS.read_text(), packages)
        print("\n".join(problems) or f"{len(packages)} packages are in a layer or for development")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
