"""Run the examples of the documentation.

``doctests`` runs those in docstrings. ``blocks`` runs every ``python`` block of READMEs, of the site and
of the other pages by itself, without a device or a checkpoint; parses ``json`` and ``toml`` blocks; and
checks that recipes, paths and options of poot's commands in ``console`` and ``sh`` blocks exist. A block
that cannot run is marked ``no-run`` after its language. ``blocks --model`` runs those of them that open
``model.gguf`` with the packaged default model under that name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lane import environment_of

from poot_test_util import load_lanes, packaged_model

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^( *)(`{3,}|~{3,})([^`\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"py": "python", "python": "python", "json": "json", "toml": "toml"}
SHELLS = {"console", "sh", "bash", "shell"}
MODEL = "model.gguf"
# Runs blocks from standard input, each as a file of its own (kernels are read from theirs).
RUNNER = """
import json, pathlib, runpy, sys, traceback
for line, code in json.load(sys.stdin):
    path = pathlib.Path(f"block_{line}.py")
    path.write_text("\\n" * (line - 1) + code)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        sys.exit(f"{sys.argv[1]}:{line}: the block fails")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: its language, the words after it, its text and where that begins."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int


def pages(root: Path = ROOT) -> list[Path]:
    """Return the Markdown pages whose blocks count."""
    found = [*root.glob("*.md"), *root.glob("packages/*/README.md"), *root.glob("benchmarks/*.md")]
    found += root.glob("examples/**/*.md")
    found += (p for p in root.glob("website/**/*.md") if "node_modules" not in p.parts)
    return sorted(found)


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for match in FENCE.finditer(text):
        language, *words = match[3].strip().split() or [""]
        body = re.sub(f"^{match[1]}", "", match[4], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start(4)) + 1
        yield Block(language=language, words=tuple(words), text=body, line=line)


def environment() -> dict[str, str]:
    """Return the environment of the model-free lane: no device, no checkpoint."""
    lanes = load_lanes(ROOT)
    return environment_of(lanes.lanes["model-free"], lanes, software=False)


def run_python(page: str, blocks: list[Block], *, model: Path | None = None) -> list[str]:
    """Run blocks, each by itself, in an empty folder; return what is wrong."""
    if not blocks:
        return []
    with tempfile.TemporaryDirectory() as folder:
        env = environment()
        if model:
            (Path(folder) / MODEL).symlink_to(model)
            env = dict(os.environ)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", RUNNER, page],
            input=json.dumps([(block.line, block.text) for block in blocks]),
            capture_output=True,
            text=True,
            cwd=folder,
            env=env,
            check=False,
        )
    return [done.stderr.strip()] if done.returncode else []


def parse_data(page: str, block: Block) -> list[str]:
    """Return what is wrong with a block of data."""
    try:
        json.loads(block.text) if block.language == "json" else tomllib.loads(block.text)
    except ValueError as error:
        return [f"{page}:{block.line}: no {block.language}: {error}"]
    return []


@cache
def recipes() -> frozenset[str]:
    """Return the recipes of the justfile."""
    just = str(Path(sys.executable).parent / "just")
    done = subprocess.run([just, "--summary"], cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(done.stdout.split())


@cache
def options(command: tuple[str, ...]) -> str | None:
    """Return the help text of one of poot's commands, or None if there is no such command."""
    program = Path(sys.executable).parent / command[0]
    if not program.exists():
        return None
    done = subprocess.run(
        [str(program), *command[1:], "--help"],
        capture_output=True,
        text=True,
        env={**environment(), "COLUMNS": "200"},
        check=False,
    )
    return done.stdout if done.returncode == 0 else None


def commands_of(block: Block) -> Iterator[tuple[int, list[str]]]:
    """Yield the words of each command of a shell block; in ``console`` those after a ``$``."""
    prompt = block.language == "console" or re.search(r"^\$ ", block.text, re.MULTILINE)
    joined = block.text.replace("\\\n", " \0")  # keeps count of the lines
    for number, line in enumerate(joined.split("\n")):
        text = line.replace("\0", "").strip()
        if prompt and not text.startswith("$ "):
            continue
        text = text.removeprefix("$ ")
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            continue  # quotes that span lines
        while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in {"sudo", "time", "env"}):
            words = words[1:]
        if words[:2] == ["uv", "run"]:
            words = words[2:]
            while words and words[0].startswith("-"):
                words = words[2:] if words[0] in {"--group", "--with", "--package"} else words[1:]
        if words:
            yield block.line + number, words


def check_command(words: list[str]) -> str | None:
    """Return what is wrong with one command, as far as poot can know."""
    match words:
        case ["just", name, *_] if not name.startswith("-") and name not in recipes():
            return f"no recipe {name!r}"
        case ["python" | "pytest", *rest]:
            paths = [
                word.split("::")[0] for word in rest if word.startswith(("packages/", "scripts/"))
            ]
            missing = [path for path in paths if not (ROOT / path).exists() and "X" not in path]
            return f"no file {missing[0]}" if missing else None
        case ["poot" | "poot-serve" as program, *rest]:
            return _check_options(program, rest)
        case _:
            return None


def _check_options(program: str, rest: list[str]) -> str | None:
    command = (program, *rest[:1]) if program == "poot" and rest else (program,)
    if command[-1].startswith("-"):
        command = command[:1]
    text = options(command)
    if text is None:
        return f"no command {' '.join(command)!r}"
    for word in rest:
        name = word.split("=")[0]
        if name.startswith("--") and name != "--help" and name not in text:
            return f"{' '.join(command)} has no option {name}"
    return None


def check_page(page: Path, *, model: Path | None = None) -> list[str]:
    """Return what is wrong with the blocks of a page."""
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    python: list[Block] = []
    problems: list[str] = []
    for block in blocks_of(page.read_text()):
        language = LANGUAGES.get(block.language, block.language)
        marked = "no-run" in block.words
        if language == "python" and (marked and MODEL in block.text if model else not marked):
            python.append(block)
        elif model or marked:
            continue
        elif language in {"json", "toml"}:
            problems += parse_data(name, block)
        elif language in SHELLS:
            for line, words in commands_of(block):
                if wrong := check_command(words):
                    problems.append(f"{name}:{line}: {wrong}")
    return problems + run_python(name, python, model=model)


def run_doctests(more: list[str]) -> int:
    """Run the examples in docstrings."""
    command = [sys.executable, "-m", "pytest", "-c", ".config/pytest.ini", "--rootdir=."]
    command += ["--doctest-modules", "-q", "-n", "2", "--junitxml=build/lanes/doctests.xml"]
    sources = [str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("packages/*/src"))]
    return subprocess.run(
        [*command, *(more or sources)], cwd=ROOT, env=environment(), check=False
    ).returncode


def self_test() -> list[str]:
    """Return which known-bad pages pass."""
    attempts = {
        "a block that raises": "```python\n1 / 0\n```\n",
        "a block that relies on another": "```python\nx = 1\n```\n\n```python\nprint(x)\n```\n",
        "a block in a list": "- so:\n\n    ```python\n    1 / 0\n    ```\n",
        "a block that opens a model": '```python\nopen("model.gguf")\n```\n',
        "a block that warns": "```python\nimport warnings; warnings.warn('x')\n```\n",
        "no JSON": "```json\n{'a': 1}\n```\n",
        "no TOML": "```toml\na = \n```\n",
        "a recipe that does not exist": "```console\n$ uv run just no-such-recipe\n```\n",
        "an option that does not exist": "```sh\nuv run poot-serve --no-such-option\n```\n",
        "a file that does not exist": "```sh\npython scripts/no_such_file.py\n```\n",
    }
    good = (
        "```python no-run\n1 / 0\n```\n\n```console\n$ uv run just test\n```\n\n```json\n{}\n```\n"
    )
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.md"
        for name, text in attempts.items():
            page.write_text(text)
            missed += [] if check_page(page) else [name]
        page.write_text(good)
        if found := check_page(page):
            missed.append(f"a good page is refused: {found}")
    return missed


def main() -> int:
    """Run one kind of example; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["doctests", "blocks", "self-test"])
    parser.add_argument("--model", action="store_true", help="only blocks that open model.gguf")
    parser.add_argument("paths", nargs="*", help="pages or source folders; all by default")
    arguments = parser.parse_args()
    if arguments.command == "doctests":
        return run_doctests(arguments.paths)
    if arguments.command == "self-test":
        missed = self_test()
        print("\n".join(missed) or "the block runner refuses every known-bad page")
        return min(len(missed), 1)
    model = packaged_model() if arguments.model else None
    chosen = [Path(p).resolve() for p in arguments.paths] or pages()
    problems = [p for page in chosen for p in check_page(page, model=model)]
    print("\n".join(problems) or f"the blocks of {len(chosen)} pages hold")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
