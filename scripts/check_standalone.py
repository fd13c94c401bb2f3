"""Build every distribution, install each alone from wheels into a fresh environment, run its own tests.

Only what a package declares is installed with it, and what its ``test`` dependency group names. The
wheels are checked too: they carry ``py.typed`` and nothing but their one module.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(
    path for path in (ROOT / "packages").iterdir() if (path / "pyproject.toml").exists()
)
RUNNERS = ["pytest>=8.4", "pytest-timeout>=2.3"]


def run(command: list[str], **options: object) -> None:
    """Run a command; end the program with its output when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")


def check_wheel(wheel: Path, module: str) -> None:
    """End the program if the wheel holds anything stray or lacks py.typed."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    stray = [
        n for n in names if not n.startswith((f"{module}/", f"{module}-")) or n.endswith(".pyc")
    ]
    if stray or f"{module}/py.typed" not in names:
        sys.exit(f"{wheel.name}: stray files {stray} or no py.typed")


def check_package(package: Path, wheels: Path, folder: Path, *, tests: bool) -> None:
    """Install one package alone, import it and run its tests."""
    project = tomllib.loads((package / "pyproject.toml").read_text())
    name = project["project"]["name"]
    module = name.replace("-", "_")
    (wheel,) = wheels.glob(f"{module}-*.whl")
    check_wheel(wheel, module)
    environment = folder / name
    run(["uv", "venv", "--quiet", "--python", sys.executable, str(environment)])
    python = str(environment / "bin" / "python")
    wanted = [str(wheel), *RUNNERS, *project.get("dependency-groups", {}).get("test", [])]
    run(
        [
            "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
            "--find-links",
            str(wheels),
            *wanted,
        ]
    )
    run([python, "-I", "-c", f"import {module}; assert {module}.__all__ is not None"])
    if tests:
        config = str(ROOT / ".config" / "pytest.ini")
        select = ["-m", "not checkpoint and not device", "-q", "--no-header"]
        clean = {k: v for k, v in os.environ.items() if k not in {"POOT_MODELS_DIR", "PYTHONPATH"}}
        run(
            [
                python,
                "-m",
                "pytest",
                "-c",
                config,
                f"--rootdir={package}",
                *select,
                str(package / "tests"),
            ],
            env=clean,
        )
    print(f"{name} stands alone", flush=True)


def main() -> None:
    """Check all packages, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="package folders; all by default")
    parser.add_argument("--no-tests", action="store_true", help="build, install and import only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheels = folder / "wheels"
        run(
            [
                "uv",
                "build",
                "--quiet",
                "--all-packages",
                "--wheel",
                "--no-sources",
                "--out-dir",
                str(wheels),
            ],
            cwd=ROOT,
        )
        for package in PACKAGES:
            if not arguments.names or package.name in arguments.names:
                check_package(package, wheels, folder, tests=not arguments.no_tests)


if __name__ == "__main__":
    main()
