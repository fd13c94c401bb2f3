"""Fail when a package imports what it does not declare, or declares what it does not import.

Devices are found through entry points, so nothing imports them; ``ALLOWED_UNUSED`` names the rest.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
# Declared on purpose though nothing imports them.
ALLOWED_UNUSED = {
    ("poot-serve", "httptools"): "uvicorn takes it where it is installed",
    ("poot-serve", "uvloop"): "uvicorn takes it where it is installed",
}
STANDARD = sys.stdlib_module_names
DISTRIBUTIONS = packages_distributions()


def imported_modules(source: Path) -> set[str]:
    """Return the top-level modules that the files under ``source`` import, by name as a text too."""
    found: set[str] = set()
    for path in source.rglob("*.py"):
        tree = ast.parse(path.read_text())
        importers = {"import_module"} | _wrappers(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
            elif isinstance(node, ast.Call) and _called(node) in importers:
                found |= {a.value.split(".")[0] for a in node.args if _is_text(a)}
    return found


def _wrappers(tree: ast.Module) -> set[str]:
    """Return the file's functions that hand a name of a module on to ``import_module``."""
    return {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(
            isinstance(node, ast.Call)
            and _called(node) == "import_module"
            and not _is_text(node.args[0])
            for node in ast.walk(function)
        )
    }


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_text(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Constant) and isinstance(argument.value, str)


def distributions_of(module: str) -> set[str]:
    """Return the distributions that may hold a module."""
    found = DISTRIBUTIONS.get(module, [module])
    return {canonicalize_name(name) for name in found}


def is_allowed(project: str, name: str) -> bool:
    """Whether a declared dependency that nothing imports is meant: a device is found by entry point."""
    return (project, name) in ALLOWED_UNUSED or (
        project == "poot-llm" and re.fullmatch("poot-[a-z]+-device", name) is not None
    )


def problems_of(package: Path) -> list[str]:
    """Return what is undeclared or unused in one package."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    name = project["name"]
    declared = {canonicalize_name(Requirement(d).name) for d in project["dependencies"]}
    extras = project.get("optional-dependencies", {}).values()
    optional = {canonicalize_name(Requirement(d).name) for extra in extras for d in extra}
    modules = imported_modules(package / "src") - STANDARD - {name.replace("-", "_")}
    holders = {module: distributions_of(module) for module in modules}
    for module, held in holders.items():
        # A namespace whose parts are extras that are not installed.
        held |= {one for one in optional if one.startswith(f"{module}-")}
    used = set[str]().union(*holders.values())
    missing = [
        f"{name} imports {module} ({', '.join(sorted(held))}) without declaring it"
        for module, held in sorted(holders.items())
        if not held & (declared | optional)
    ]
    idle = [
        f"{name} declares {one} and never imports it"
        for one in sorted((declared | optional) - used)
        if not is_allowed(name, one)
    ]
    return missing + idle


def self_test() -> list[str]:
    """Return which known-bad inputs pass."""
    with tempfile.TemporaryDirectory() as temporary:
        package = Path(temporary) / "poot-a"
        (package / "src" / "poot_a").mkdir(parents=True)
        (package / "src" / "poot_a" / "__init__.py").write_text("import json\nimport tokenizers\n")
        declared = 'name = "poot-a"\ndependencies = ["numpy>=2.1"]\n'
        (package / "pyproject.toml").write_text(f"[project]\n{declared}")
        found = problems_of(package)
        wrapped = "import importlib\n\n\ndef get(name):\n    return importlib.import_module(name)\n"
        (package / "src" / "poot_a" / "late.py").write_text(f'{wrapped}\n\nget("msgspec.json")\n')
        found += problems_of(package)
    wanted = [
        "poot-a imports tokenizers (tokenizers) without declaring it",
        "poot-a declares numpy and never imports it",
        "poot-a imports msgspec (msgspec) without declaring it",
        "poot-a imports tokenizers (tokenizers) without declaring it",
        "poot-a declares numpy and never imports it",
    ]
    return [] if found == wanted else [f"{found} instead of {wanted}"]


def main() -> int:
    """Check every package, or test the check; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", default="check", choices=["check", "self-test"])
    if parser.parse_args().command == "self-test":
        missed = self_test()
        print("\n".join(missed) or "the dependency gate catches undeclared and unused ones")
        return min(len(missed), 1)
    problems = [
        p
        for package in sorted(PACKAGES.iterdir())
        if (package / "pyproject.toml").exists()
        for p in problems_of(package)
    ]
    print("\n".join(problems) or "dependencies are declared and used")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
