"""What pages take from the code: tables and lists, made while the site is assembled."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "MARKS",
    "decision_pages",
    "diagram_alts",
    "error_names",
    "package_page",
    "published_packages",
    "recipes",
]

ROOT = Path(__file__).resolve().parent.parent
WEBSITE = ROOT / "website"
DEVELOPMENT = {"poot-test-util", "poot-executor-parity", "poot-amd-sim"}  # never published
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)")


# --- packages and decisions ---


def published_packages() -> list[str]:
    """Return the names of the packages that have public names and are published."""
    return [
        path.name
        for path in sorted((ROOT / "packages").iterdir())
        if path.name not in DEVELOPMENT and has_exports(path)
    ]


def has_exports(package: Path) -> bool:
    """Return whether a package's __init__ says what is public."""
    init = package / "src" / package.name.replace("-", "_") / "__init__.py"
    return init.exists() and "__all__" in init.read_text()


def package_page(name: str) -> str:
    """Return a package's README (local links as plain text) and a directive for its public names."""
    readme = (ROOT / "packages" / name / "README.md").read_text()
    module = name.replace("-", "_")
    extras = [
        f"::: {module}.{sub}\n"
        for sub in ("language", "compile", "interpreter", "ops", "text")
        if (ROOT / "packages" / name / "src" / module / sub / "__init__.py").exists()
    ]
    return "\n".join([LINK.sub(r"\1", readme), "\n## Public names\n", f"::: {module}\n", *extras])


def decision_pages() -> list[str]:
    """Return the decisions in order, the index first."""
    found = sorted(path.name for path in (WEBSITE / "decisions").glob("0*.md"))
    return ["decisions/index.md", *(f"decisions/{name}" for name in found)]


def decisions_table() -> str:
    """Return the list of decisions with their titles."""
    lines: list[str] = []
    for path in sorted((WEBSITE / "decisions").glob("0*.md")):
        title = path.read_text().splitlines()[0].removeprefix("#").strip()
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines)


def packages_table() -> str:
    """Return a table of all packages: name and description of their project files."""
    rows = ["| package | what it holds |", "|---|---|"]
    published = set(published_packages())
    for path in sorted((ROOT / "packages").iterdir()):
        if not (path / "pyproject.toml").exists():
            continue
        project = tomllib.loads((path / "pyproject.toml").read_text())["project"]
        name = path.name
        shown = f"[{name}](packages/{name}.md)" if name in published else f"{name} (development)"
        rows.append(f"| {shown} | {project.get('description', '')} |")
    return "\n".join(rows)


def diagram_alts() -> dict[str, str]:
    """Return the alt text of each diagram by name."""
    index = json.loads((WEBSITE / "static/img/architecture/index.json").read_text())
    return {image["name"]: image["alt"] for image in index["images"]}


# --- tables from the code ---


def settings_table() -> str:
    """Return the environment variables that poot_core reads, with their meaning and default."""
    tree = ast.parse((ROOT / "packages/poot-core/src/poot_core/settings.py").read_text())
    known: dict[str, str] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="_KNOWN")], value=value)
                | ast.AnnAssign(target=ast.Name(id="_KNOWN"), value=ast.expr() as value)
            ):
                known = ast.literal_eval(value)
            case _:
                pass
    from poot_core import Settings

    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    rows = ["| variable | meaning |", "|---|---|"]
    for name, meaning in sorted(known.items()):
        default: Any = defaults.get(name.removeprefix("POOT_").lower(), "")
        shown = {True: "1", False: "0", None: "", "": ""}.get(default, str(default))
        rows.append(f"| `{name}` | {meaning}{f' (default `{shown}`)' if shown else ''} |")
    return "\n".join(rows)


def error_names() -> list[str]:
    """Return the classes of the error tree."""
    from poot_core import errors

    return list(errors.__all__)


def error_table() -> str:
    """Return the error tree: class, builtin beside it, first line of its docstring."""
    from poot_core import errors

    rows = ["| error | meaning |", "|---|---|"]
    for name in errors.__all__:
        kind = getattr(errors, name)
        builtins = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
        first = (kind.__doc__ or "").strip().splitlines()[0]
        kin = f"; also a `{builtins[0]}`" if builtins else ""
        rows.append(f"| [{name}](#{name.lower()}) | {first.rstrip('.')}{kin} |")
    return "\n".join(rows)


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    return doc.splitlines()[0] if doc else ""


def families_table() -> str:
    """Return the families of poot-models."""
    rows = ["| module | family |", "|---|---|"]
    for path in sorted((ROOT / "packages/poot-models/src/poot_models/families").glob("[a-z]*.py")):
        rows.append(f"| `{path.stem}` | {first_line(path)} |")
    return "\n".join(rows)


def formats_table() -> str:
    """Return the packed weight formats of poot-quant."""
    from poot_quant import FORMATS

    rows = ["| format | elements a block | bytes a block | bits a weight |", "|---|---|---|---|"]
    formats: Any = FORMATS.values() if hasattr(FORMATS, "values") else FORMATS
    for each in formats:
        bits = 8 * each.block_bytes / each.block_elements
        rows.append(f"| {each.name} | {each.block_elements} | {each.block_bytes} | {bits:.2f} |")
    return "\n".join(rows)


def devices_table() -> str:
    """Return the installed devices: the entry points of the group poot.devices in the workspace."""
    rows = ["| name | package | what it says of itself |", "|---|---|---|"]
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        for name in project.get("entry-points", {}).get("poot.devices", {}):
            rows.append(f"| `{name}` | {project['name']} | {project.get('description', '')} |")
    return "\n".join(rows)


def commands() -> str:
    """Return every command's own help."""
    import typer
    from typer.main import get_command

    from poot_llm.cli._app import app as poot  # noqa: PLC2701 (the commands are no public names)
    from poot_serve._command import serve  # noqa: PLC2701

    poot_serve = typer.Typer()
    poot_serve.command()(serve)
    parts: list[str] = []
    for name, app in (("poot", poot), ("poot-serve", poot_serve)):
        command: Any = get_command(app)
        subcommands: dict[str, Any] = getattr(command, "commands", {})
        parts += [f"## {name}\n", (command.help or "").strip() + "\n"]
        if not subcommands:
            parts.append(options_table(command))
        for sub, each in subcommands.items():
            parts += [f"### {name} {sub}\n", (each.help or "").strip() + "\n", options_table(each)]
    return "\n".join(parts)


def options_table(command: Any) -> str:
    """Return the arguments and options of one command."""
    rows = ["| option | meaning |", "|---|---|"]
    for parameter in command.params:
        names = ", ".join([*parameter.opts, *getattr(parameter, "secondary_opts", [])])
        if parameter.param_type_name == "argument":
            names = str(parameter.name).upper()
        default = parameter.default if isinstance(parameter.default, (int, float, str)) else ""
        shown = "" if default in {"", False} else f" (default `{default}`)"
        rows.append(f"| `{names}` | {getattr(parameter, 'help', '') or ''}{shown} |")
    return "\n".join(rows) + "\n"


def installed_with(name: str) -> list[str]:
    """Return the names of everything that installs with a package, from the lock file."""
    packages = locked_packages()
    todo, seen = [name], {name}
    while todo:
        for version in packages.get(todo.pop(), []):
            for dependency in version.get("dependencies", []):
                if dependency["name"] not in seen:
                    seen.add(dependency["name"])
                    todo.append(dependency["name"])
    return sorted(seen)


def locked_packages() -> dict[str, list[dict[str, Any]]]:
    """Return the versions of each package in the lock file."""
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        packages.setdefault(package["name"], []).append(package)
    return packages


def least_glibc(package: dict[str, Any], machine: str) -> tuple[int, int] | None:
    """Return the oldest glibc that a wheel of a package accepts; None if none is bound to one."""
    found: list[tuple[int, int]] = []
    for wheel in package.get("wheels", []):
        name = wheel["url"].rsplit("/", 1)[-1]
        if name.endswith("-any.whl"):
            return None
        tags = name.removesuffix(".whl").split("-")[-1]
        if not tags.endswith(machine):
            continue
        found += [(int(a), int(b)) for a, b in re.findall(r"manylinux_(\d+)_(\d+)", tags)]
        found += [(2, 17)] if "manylinux2014" in tags else []
    return min(found, default=None)


def glibc_table() -> str:
    """Return the oldest glibc that each binary wheel of the server needs, the newest demand first."""
    packages = locked_packages()
    rows: list[tuple[tuple[int, int], str]] = []
    for name in installed_with("poot-serve"):
        needs = [
            [least_glibc(version, machine) for machine in ("x86_64", "aarch64")]
            for version in packages.get(name, [])
        ]
        bound = [need for pair in needs for need in pair if need is not None]
        if bound:
            columns = [[n for n in column if n is not None] for column in zip(*needs, strict=True)]
            shown = [".".join(map(str, max(column))) if column else "" for column in columns]
            rows.append((max(bound), f"| {name} | {shown[0]} | {shown[1]} |"))
    rows.sort(key=lambda row: (tuple(-part for part in row[0]), row[1]))
    most = rows[0][0] if rows else (0, 0)
    return "\n".join(
        [
            f"The newest demand is glibc {most[0]}.{most[1]}.\n",
            "| wheel | glibc on x86-64 | glibc on AArch64 |",
            "|---|---|---|",
            *(text for _, text in rows),
        ]
    )


def metrics_table() -> str:
    """Return the server's Prometheus metrics: what its source names ``poot_...`` with a help text."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "packages/poot-serve/src/poot_serve").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(args=parts) | ast.Tuple(elts=parts):
                    texts = [
                        part.value
                        for part in parts
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    ]
                case _:
                    continue
            if len(texts) > 1:
                name, *rest = texts
                if re.fullmatch(r"poot_[a-z_]+", name):
                    found[name] = max(rest, key=len)
    if not found:
        return ""
    rows = [
        "`GET /metrics` answers in Prometheus' text format:\n",
        "| metric | meaning |",
        "|---|---|",
    ]
    return "\n".join([*rows, *(f"| `{name}` | {text} |" for name, text in sorted(found.items()))])


def recipes() -> list[tuple[str, str]]:
    """Return the justfile's recipes with the comment above each."""
    found: list[tuple[str, str]] = []
    comment = ""
    for line in (ROOT / "justfile").read_text().splitlines():
        if line.startswith("#"):
            comment = line.removeprefix("#").strip()
            continue
        match = re.match(r"@?([a-z][\w-]*)(?: [^:]*)?:(?!=)", line)
        if match:
            found.append((match[1], comment))
        if not line.startswith("["):
            comment = ""
    return found


def recipes_table() -> str:
    """Return the recipes as a table."""
    rows = ["| recipe | what it does |", "|---|---|"]
    return "\n".join([*rows, *(f"| `just {name}` | {text} |" for name, text in recipes())])


def included(path: str) -> Callable[[], str]:
    """Return a maker of a file of the repository without its title, headings one level down."""

    def read() -> str:
        lines = (ROOT / path).read_text().splitlines()
        return LINK.sub(r"\1", "\n".join(lines[1:] if lines[0].startswith("# ") else lines))

    return read


MARKS: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "errors": error_table,
    "families": families_table,
    "formats": formats_table,
    "devices": devices_table,
    "commands": commands,
    "packages": packages_table,
    "decisions": decisions_table,
    "recipes": recipes_table,
    "metrics": metrics_table,
    "glibc": glibc_table,
    "contributing": included("CONTRIBUTING.md"),
    "benchmarks": included("benchmarks/README.md"),
}
