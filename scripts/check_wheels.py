"""Fail for wheels with stray files, without py.typed, or with metadata that a user would miss.

python scripts/check_wheels.py FOLDER
python scripts/check_wheels.py self-test
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

STRAY_ENDS = (".pyc", ".so", ".orig", ".ipynb", ".log")


def wheel_problems(wheel: Path) -> list[str]:
    """Return what is wrong with a wheel."""
    module = wheel.name.split("-", 1)[0]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [n for n in names if n.endswith(".dist-info/METADATA")]
        text = archive.read(metadata)
    stray = [
        n for n in names if not n.startswith((f"{module}/", f"{module}-")) or n.endswith(STRAY_ENDS)
    ]
    stray += [n for n in names if "/tests/" in n or n.rsplit("/", 1)[-1].startswith("test_")]
    problems = [f"{wheel.name}: stray file {name}" for name in stray]
    if f"{module}/py.typed" not in names:
        problems.append(f"{wheel.name}: no py.typed")
    if not any(n.endswith(".dist-info/licenses/LICENSE") for n in names):
        problems.append(f"{wheel.name}: no text of the licence")
    return problems + [f"{wheel.name}: {p}" for p in metadata_problems(text)]


def metadata_problems(text: bytes) -> list[str]:
    """Return what is wrong with the metadata of a wheel."""
    try:
        found = Metadata.from_email(text, validate=True)
    except ExceptionGroup as errors:
        return [str(error) for error in errors.exceptions]
    wanted = {
        "summary": found.summary,
        "README": found.description,
        "licence": found.license_expression,
        "Requires-Python": found.requires_python,
    }
    problems = [f"no {what} in the metadata" for what, value in wanted.items() if not value]
    if found.license_expression not in {None, "MIT"}:
        problems.append(f"licence {found.license_expression} instead of MIT")
    for requirement in found.requires_dist or []:
        if (
            requirement.name.startswith("poot-")
            and str(requirement.specifier) != f"=={found.version}"
        ):
            problems.append(f"{requirement} is not pinned to =={found.version}")
    return problems


def folder_problems(folder: Path) -> list[str]:
    """Return what is wrong with the wheels of a folder."""
    wheels = sorted(folder.glob("*.whl"))
    problems = [p for wheel in wheels for p in wheel_problems(wheel)]
    # Duplicate top levels, bytecode, empty modules and records that do not match are its business.
    program = str(Path(sys.executable).parent / "check-wheel-contents")
    done = subprocess.run(
        [program, "--no-config", *map(str, wheels)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        problems += [line for line in done.stdout.splitlines() if not line.endswith("OK")]
    return problems if wheels else [f"no wheel in {folder}"]


def self_test() -> list[str]:
    """Return which bad wheels pass."""
    headers = {
        "Metadata-Version": "2.4",
        "Name": "poot-a",
        "Version": "1.0",
        "Summary": "A thing.",
        "License-Expression": "MIT",
        "Requires-Python": ">=3.11",
        "Requires-Dist": "poot-b==1.0",
        "Description-Content-Type": "text/markdown",
    }
    text = "poot_a-1.0.dist-info/licenses/LICENSE"
    good = {"poot_a/__init__.py": "", "poot_a/py.typed": "", text: "MIT"}
    no_type, no_text = (
        {k: v for k, v in good.items() if k != n} for n in ("poot_a/py.typed", text)
    )
    attempts = {
        "a stray file": ({**good, "tests/test_a.py": ""}, headers),
        "bytecode": ({**good, "poot_a/a.pyc": ""}, headers),
        "no py.typed": (no_type, headers),
        "no text of the licence": (no_text, headers),
        "no licence": (good, {k: v for k, v in headers.items() if k != "License-Expression"}),
        "another licence": (good, {**headers, "License-Expression": "Apache-2.0"}),
        "a pin that is none": (good, {**headers, "Requires-Dist": "poot-b>=1.0"}),
        "metadata that is invalid": (good, {**headers, "Requires-Python": "three"}),
    }
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, (files, lines) in attempts.items():
            missed += [] if wheel_problems(_wheel(Path(temporary), files, lines)) else [name]
        if found := wheel_problems(_wheel(Path(temporary), good, headers)):
            missed.append(f"a good wheel is refused: {found}")
    return missed


def _wheel(folder: Path, files: dict[str, str], headers: dict[str, str]) -> Path:
    path = folder / "poot_a-1.0-py3-none-any.whl"
    text = "".join(f"{name}: {value}\n" for name, value in headers.items()) + "\n# A thing\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, "poot_a-1.0.dist-info/METADATA": text}.items():
            archive.writestr(name, content)
    return path


def main() -> int:
    """Check a folder, or test the check; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="of wheels, or `self-test`")
    folder = parser.parse_args().folder
    problems = self_test() if folder == "self-test" else folder_problems(Path(folder))
    good = "bad wheels are refused" if folder == "self-test" else "wheels hold what they should"
    print("\n".join(problems) or good)
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
