"""Build every distribution, check its wheel, install it alone and run its own tests.

Each package goes into a fresh environment from built wheels, with what it declares and nothing else;
what its ``test`` dependency group names comes after it was imported. Then all wheels are installed one
by one in the order of their dependence from a plain folder, and the outside project of examples/ runs
with the one package that it names. ``--lowest-direct`` installs the lowest versions of what each package
declares. ``self-test`` shows a package with an undeclared import failing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from check_wheels import folder_problems
from distributions import (
    ROOT,
    Distribution,
    build,
    install,
    new_environment,
    read_distributions,
    run,
)
from lane import environment_of

from poot_test_util import load_lanes

RUNNERS = ("pytest>=8.4", "pytest-timeout>=2.3")
SELECT = "not (checkpoint or device or sim or client or web)"
EXAMPLE = ROOT / "examples" / "inspect_checkpoint"
EXAMPLE_MODEL = ROOT / "packages" / "poot-llm" / "tests" / "data" / "llama"
NO_TEST = "5"


def clean_environment() -> dict[str, str]:
    """Return the environment of the model-free lane without this interpreter's own paths."""
    lanes = load_lanes(ROOT)
    environment = environment_of(lanes.lanes["model-free"], lanes, software=False)
    return {k: v for k, v in environment.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def install_alone(one: Distribution, wheels: Path, folder: Path, *, lowest: bool) -> str:
    """Install one package with what it declares, import it, and return the environment's Python."""
    (wheel,) = wheels.glob(f"{one.module}-*.whl")
    python = new_environment(folder / one.name)
    if lowest:
        install(python, wheels, "--resolution", "lowest-direct", str(wheel), *one.external)
    else:
        install(python, wheels, str(wheel))
    run(
        [python, "-I", "-W", "error", "-c", f"import {one.module} as m; m.__all__"],
        env=clean_environment(),
    )
    return python


def run_tests(one: Distribution, python: str, wheels: Path) -> None:
    """Run the tests of a package in its environment."""
    install(python, wheels, *RUNNERS, *one.test_requirements)
    config = str(ROOT / ".config" / "pytest.ini")
    command = [python, "-m", "pytest", "-c", config, f"--rootdir={one.folder}", "-q", "--no-header"]
    command += ["-m", SELECT, "-k", "not real_dims", str(one.folder / "tests")]
    try:
        run(command, env=clean_environment())
    except RuntimeError as error:
        if f"ended with {NO_TEST}\n" not in str(error):
            raise


def check_package(
    one: Distribution, wheels: Path, folder: Path, *, tests: bool, lowest: bool
) -> None:
    """Install one package alone, import it and run its tests."""
    python = install_alone(one, wheels, folder, lowest=lowest)
    if tests and (one.folder / "tests").is_dir():
        run_tests(one, python, wheels)
    shutil.rmtree(folder / one.name)
    print(f"{one.name} stands alone{' on its lowest versions' if lowest else ''}", flush=True)


def check_order(found: Iterable[Distribution], wheels: Path, folder: Path) -> None:
    """Install all wheels one by one, each after what it needs, from a plain folder and no index."""
    chosen = list(found)
    python = new_environment(folder / "in-order")
    external = sorted({requirement for one in chosen for requirement in one.external})
    install(python, wheels, *external)
    command = ["uv", "pip", "install", "--quiet", "--python", python, "--no-index", "--find-links"]
    for one in chosen:
        (wheel,) = wheels.glob(f"{one.module}-*.whl")
        run([*command, str(wheels), str(wheel)])
        run([python, "-I", "-c", f"import {one.module}"], env=clean_environment())
    shutil.rmtree(folder / "in-order")
    print(f"{len(chosen)} wheels install in order from a plain folder", flush=True)


def check_outside_project(wheels: Path, folder: Path) -> None:
    """Run the project of examples/ with the one package that it names."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    python = new_environment(folder / "outside")
    install(python, wheels, *project["dependencies"])
    program = str(EXAMPLE / "inspect_checkpoint.py")
    text = run([python, program, str(EXAMPLE_MODEL)], env=clean_environment())
    if "MB of weights" not in text:
        raise RuntimeError(f"{program} printed {text!r}")
    shutil.rmtree(folder / "outside")
    print(f"examples/{EXAMPLE.name} runs with {project['dependencies']} alone", flush=True)


def self_test() -> list[str]:
    """Return which bad packages pass."""
    source = (
        '[project]\nname = "poot-bad"\nversion = "0.1.0"\ndependencies = []\n'
        '[build-system]\nrequires = ["hatchling>=1.27"]\nbuild-backend = "hatchling.build"\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["src/poot_bad"]\n'
    )
    attempts = {
        "an import that is not declared": "import numpy\n__all__ = []\n",
        "no list of public names": "import json\n",
        "a warning when it is imported": "import warnings\n__all__ = []\nwarnings.warn('x')\n",
    }
    missed = [name for name, text in attempts.items() if _stands(source, text)]
    return missed if _stands(source, "__all__ = []\n") else [*missed, "a good package is refused"]


def _stands(project: str, text: str) -> bool:
    with tempfile.TemporaryDirectory() as temporary:
        folder, wheels = Path(temporary) / "source", Path(temporary) / "wheels"
        package = folder / "src" / "poot_bad"
        package.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(project)
        (package / "__init__.py").write_text(text)
        run(["uv", "build", "--quiet", "--wheel", "--out-dir", str(wheels)], cwd=folder)
        one = Distribution(
            name="poot-bad", folder=folder, requirements=(), test_requirements=(),
            is_published=True,
        )  # fmt: skip
        try:
            install_alone(one, wheels, Path(temporary), lowest=False)
        except RuntimeError:
            return False
        return True


def main() -> int:
    """Check all packages, or those named; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="package folders, all by default; or `self-test`")
    parser.add_argument("--no-tests", action="store_true", help="build, install and import only")
    parser.add_argument("--lowest-direct", action="store_true", help="lowest declared versions")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    if arguments.names == ["self-test"]:
        missed = self_test()
        print("\n".join(missed) or "a package that does not stand alone is refused")
        return min(len(missed), 1)
    found = read_distributions()
    chosen = [one for one in found.values() if not arguments.names or one.name in arguments.names]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheels = folder / "wheels"
        build(wheels)
        work: list[Callable[[], object]] = [
            lambda one=one: check_package(
                one, wheels, folder, tests=not arguments.no_tests, lowest=arguments.lowest_direct
            )
            for one in chosen
        ]
        if not arguments.names and not arguments.lowest_direct:
            published = [one for one in chosen if one.is_published]
            work.append(lambda: check_order(published, wheels, folder))
            work.append(lambda: check_outside_project(wheels, folder))
        problems = folder_problems(wheels)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for future in [pool.submit(step) for step in work]:
                try:
                    future.result()
                except RuntimeError as error:
                    problems.append(str(error)[-6000:])
    print("\n".join(problems), file=sys.stderr)
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
