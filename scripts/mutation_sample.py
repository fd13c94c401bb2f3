"""Mutate modules at random and report the mutants that no test kills.

A copy of each area's package is mutated, one mutation at a time drawn by a seed, and the area's tests
run over it. A mutant that survives is a missing test, or code that nothing needs. cosmic-ray makes the
mutations. This is a sample for a person to read, not a gate.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from lane import environment_of

from poot_test_util import load_lanes

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "build" / "mutation.txt"
# Mutations that rarely say anything (decorators, unions of annotations, loops that run zero times), and
# those that want arguments.
LEFT_OUT = (
    "RemoveDecorator",
    "ReplaceBinaryOperator_BitOr",
    "ZeroIterationForLoop",
    "Variable",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """What is mutated, and the tests that are to notice."""

    package: str
    modules: tuple[str, ...]
    tests: tuple[str, ...] = ("tests",)


AREAS = {
    "matcher": Area(package="poot-executor", modules=("passes/*.py", "_absorb.py", "_rewrite.py")),
    "planner": Area(
        package="poot-executor",
        modules=("_planned.py", "_memory.py", "_schedule.py", "_weights.py"),
    ),
    "oracle": Area(package="poot-eval", modules=("*.py",)),
    "loader": Area(package="poot-load", modules=("_gguf*.py", "_safetensors*.py", "_mapping.py")),
    "cache": Area(
        package="poot-kernel",
        modules=("compile/_cache.py", "compile/_prune.py"),
        tests=("tests/test_compile_cache.py",),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change: the operator, and which of its places in the module."""

    module: Path
    operator: str
    occurrence: int


def mutations_of(module: Path) -> Iterator[Mutation]:
    """Yield every mutation of a module."""
    tree = get_ast(module.read_text())
    for name in operator_names():
        if any(word in name for word in LEFT_OUT):
            continue
        operator = get_operator(name)()
        places = sum(1 for node in ast_nodes(tree) for _ in operator.mutation_positions(node))
        for occurrence in range(places):
            yield Mutation(module=module, operator=name, occurrence=occurrence)


def survives(mutation: Mutation, area: Area, source: Path) -> str | None:
    """Return the difference of a mutant that no test kills, or None."""
    target = source / mutation.module.relative_to(ROOT / "packages" / area.package / "src")
    before = target.read_text()
    after = mutate_code(before, get_operator(mutation.operator)(), mutation.occurrence)
    if after is None or after == before:
        return None
    target.write_text(after)
    try:
        return _difference(before, after) if passes(area, source) else None
    finally:
        target.write_text(before)


def passes(area: Area, source: Path) -> bool:
    """Return whether the area's tests pass over a copy of its package."""
    lanes = load_lanes(ROOT)
    environment = environment_of(lanes.lanes["model-free"], lanes, software=False)
    environment["PYTHONPATH"] = str(source)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    tests = [str(ROOT / "packages" / area.package / name) for name in area.tests]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        ".config/pytest.ini",
        "--rootdir=.",
        "-x",
        "-q",
    ]
    try:
        done = subprocess.run(
            [*command, "--lane", "model-free", "-o", "timeout=120", *tests],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _difference(before: str, after: str) -> str:
    pairs = zip(before.split("\n"), after.split("\n"), strict=False)
    number, old, new = next((n, a, b) for n, (a, b) in enumerate(pairs, 1) if a != b)
    return f"line {number}\n    - {old.strip()}\n    + {new.strip()}"


def sample(area: Area, count: int, generator: random.Random) -> list[Mutation]:
    """Draw mutations of an area."""
    folder = ROOT / "packages" / area.package / "src" / area.package.replace("-", "_")
    modules = sorted({p for pattern in area.modules for p in folder.rglob(pattern)})
    found = [m for module in modules if module.name != "__init__.py" for m in mutations_of(module)]
    return generator.sample(found, min(count, len(found)))


def run_area(name: str, count: int, seed: int) -> list[str]:
    """Return the survivors of an area, a text each."""
    area = AREAS[name]
    chosen = sample(area, count, random.Random(f"{seed} {name}"))
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "src"
        shutil.copytree(ROOT / "packages" / area.package / "src", source)
        if not passes(area, source):  # every mutant would count as killed
            raise SystemExit(f"{name}: its tests fail without any mutation")
        for number, mutation in enumerate(chosen, 1):
            found = survives(mutation, area, source)
            where = f"{mutation.module.relative_to(ROOT)}: {mutation.operator.split('/')[-1]}"
            print(
                f"{name} {number}/{len(chosen)} {'SURVIVES' if found else 'killed'} {where}",
                flush=True,
            )
            if found:
                survivors.append(f"{where}, {found}")
    return survivors


def main() -> None:
    """Sample the areas named and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(AREAS)}; all by default")
    parser.add_argument("--count", type=int, default=10, help="mutations an area")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if unknown := set(arguments.areas) - set(AREAS):
        parser.error(f"no area {', '.join(sorted(unknown))}; there are {', '.join(AREAS)}")
    lines: list[str] = []
    for name in arguments.areas or AREAS:
        survivors = run_area(name, arguments.count, arguments.seed)
        lines += [f"{name}: {len(survivors)} survivors", *(f"  {s}" for s in survivors)]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
