"""Build the site: assemble its pages, run the generator strictly, check every link of the result.

    uv run --group docs python scripts/docs_build.py [--out build/site]
    uv run --group docs python scripts/docs_build.py self-test

Pages stand in website/. While they are assembled in build/site-source, a page is added for each
published package (its README, then its public names from their docstrings), the navigation's lists of
packages and decisions are filled, and marks such as ``<!-- poot: settings -->`` become tables made
from the code (``docs_tables.py``).

Any of these ends the build: an unknown mark, an error class without a section, a recipe that a page
names and the justfile lacks, a picture whose file is missing, a link or anchor that leads nowhere, a
warning of the generator.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from docs_tables import (
    MARKS,
    decision_pages,
    diagram_alts,
    error_names,
    package_page,
    published_packages,
    recipes,
)

ROOT = Path(__file__).resolve().parent.parent
WEBSITE = ROOT / "website"
SOURCE = ROOT / "build" / "site-source"
OUTPUT = ROOT / "build" / "site"
NOT_PAGES = {"generator", "diagrams", "README.md"}
MARK = re.compile(r"<!-- poot: ([\w-]+) -->")
RECIPE = re.compile(r"`(?:uv run )?just ([a-z][a-z-]*)")
DIAGRAM = re.compile(
    r"!\[(?P<alt>[^\]]*)\]\((?P<path>[\w./]*img/architecture/(?P<name>[\w-]+)\.png)\)"
)


# --- assembling ---


def assemble(website: Path, source: Path, packages: list[str]) -> list[str]:
    """Write the generator's input with a page for each package; return what is wrong."""
    if source.exists():
        shutil.rmtree(source)
    docs = source / "docs"
    problems: list[str] = []
    for path in sorted(website.rglob("*")):
        relative = path.relative_to(website)
        if path.is_dir() or relative.parts[0] in NOT_PAGES:
            continue
        target = docs / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text, found = page_text(relative.as_posix(), path.read_text())
            target.write_text(text)
            problems += found
        else:
            shutil.copyfile(path, target)
    for name in packages:
        target = docs / "reference" / "packages" / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(package_page(name).replace("```python no-run", "```python"))
    write_config(website / "generator" / "mkdocs.yml", source, packages)
    return problems


def page_text(name: str, markdown: str) -> tuple[str, list[str]]:
    """Return a page as the generator reads it, and what is wrong with it."""
    problems: list[str] = []
    alts = diagram_alts()

    def fill(match: re.Match[str]) -> str:
        maker = MARKS.get(match[1])
        if maker is None:
            problems.append(f"{name}: the mark {match[1]!r} is unknown; known are {sorted(MARKS)}")
            return ""
        return maker()

    def picture(match: re.Match[str]) -> str:
        if match["name"] not in alts:
            problems.append(f"{name}: there is no diagram {match['name']!r}")
        return f"![{alts.get(match['name'], '')}]({match['path']})"

    if name == "reference/errors.md":
        problems += [
            f"{name}: no section for {error}"
            for error in error_names()
            if f"\n## {error}\n" not in markdown
        ]
    known = {recipe for recipe, _ in recipes()}
    problems += [
        f"{name}: the justfile has no recipe {recipe!r}"
        for recipe in dict.fromkeys(RECIPE.findall(markdown))
        if recipe not in known
    ]
    markdown = markdown.replace("```python no-run", "```python")  # a word for the runner alone
    return MARK.sub(fill, DIAGRAM.sub(picture, markdown)), problems


def write_config(template: Path, source: Path, packages: list[str]) -> None:
    """Fill the open lists of the navigation and the places of the packages."""
    config: dict[str, Any] = yaml.safe_load(template.read_text())
    config["docs_dir"] = "docs"
    config["site_dir"] = "site"
    fill_navigation(config["nav"], packages)
    for plugin in config["plugins"]:
        if isinstance(plugin, dict) and "mkdocstrings" in plugin:
            paths = [str(path) for path in sorted((ROOT / "packages").glob("*/src"))]
            plugin["mkdocstrings"]["handlers"]["python"]["paths"] = paths
    (source / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False))


def fill_navigation(entries: list[Any], packages: list[str]) -> None:
    """Put the lists that follow from the tree into the navigation."""
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        for title, value in entry.items():
            if value == [] and title == "Decisions":
                entry[title] = decision_pages()
            elif value == [] and title == "Packages":
                entry[title] = [{name: f"reference/packages/{name}.md"} for name in packages]
            elif isinstance(value, list):
                fill_navigation(value, packages)


# --- checking the result ---


class Links(HTMLParser):
    """Collects what a page links to and which anchors it has."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag's references and its id."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors.update(values[key] for key in ("id", "name") if key in values)
        for key in ("href", "src"):
            if key in values and tag in {"a", "img", "link", "script"}:
                self.targets.append(values[key])


def read_links(page: Path) -> Links:
    """Return the links of one page."""
    links = Links()
    links.feed(page.read_text())
    return links


def dead_links(site: Path) -> Iterator[str]:
    """Yield each link to a page, file or anchor of the site that does not exist."""
    pages = {page.resolve(): read_links(page) for page in sorted(site.rglob("*.html"))}
    for page, links in pages.items():
        if page.name == "404.html":  # served from anywhere, so its links start at the root
            continue
        for target in dict.fromkeys(links.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            path = path / "index.html" if path.is_dir() else path
            where = page.relative_to(site.resolve())
            if not path.exists():
                yield f"{where}: the link {target} leads nowhere"
            elif parts.fragment and path in pages:
                fragment = unquote(parts.fragment)
                if fragment not in pages[path].anchors and fragment != "__skip":
                    yield f"{where}: {target} has no such anchor"


# --- building ---


def generate(source: Path) -> list[str]:
    """Run the generator; return its warnings and, if it fails, what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean"],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    said = re.sub(r"\x1b\[[0-9;]*m|\x1b[78]", "", done.stdout + done.stderr)
    if done.returncode:
        return [f"the generator ended with {done.returncode}:", said]
    warnings = [part.strip() for part in said.split("Warning:")[1:]]
    # NOTE: brackets in a docstring's prose read as references by name; they are shown as they stand.
    return [f"the generator: {w}" for w in warnings if not w.startswith("unresolved autoref")]


def build(website: Path, source: Path, out: Path, packages: list[str]) -> list[str]:
    """Build everything; return what is wrong."""
    problems = assemble(website, source, packages)
    problems += generate(source)
    site = source / "site"
    if not site.exists():
        return problems
    problems += dead_links(site)
    if not problems:
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(site, out)
    return problems


def self_test() -> None:
    """Show that the build fails on each known-bad page, and passes without them."""
    bad = {
        "the mark 'nothing' is unknown": "<!-- poot: nothing -->",
        "the justfile has no recipe 'no-such-recipe'": "`just no-such-recipe`",
        "there is no diagram 'unheard-of'": "![x](static/img/architecture/unheard-of.png)",
        "page does not exist": "[dead](nothing.md)",
        "anchor does not exist": "[dead](index.md#nothing)",
        "no section for PootError": None,
    }
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        website = base / "website"
        for relative in ("static", "generator"):
            shutil.copytree(WEBSITE / relative, website / relative)
        config: dict[str, Any] = yaml.safe_load((website / "generator/mkdocs.yml").read_text())
        config["nav"] = [{"Home": "index.md"}]
        (website / "generator/mkdocs.yml").write_text(yaml.safe_dump(config))
        picture = "![x](static/img/architecture/serving-loop.png)"
        good = f"# Home\n\n`just test`, [self](index.md#home)\n\n{picture}\n"
        (website / "index.md").write_text(good)
        expect(build(website, base / "source", base / "out", []), "")
        for message, text in bad.items():
            if text is None:
                (website / "index.md").write_text(good)
                (website / "reference").mkdir()
                (website / "reference/errors.md").write_text("# Errors\n")
            else:
                (website / "index.md").write_text(good + text + "\n")
            expect(build(website, base / "source", base / "out2", []), message)
        if (base / "out2").exists():
            raise AssertionError("a failed build left a site behind")
        page = base / "links" / "a.html"
        page.parent.mkdir()
        page.write_text('<a href="b.html">b</a><a href="#c">c</a><p id="d"><a href="#d">d</a></p>')
        expect(list(dead_links(page.parent)), "b.html leads nowhere")
        page.with_name("b.html").write_text("")
        expect(list(dead_links(page.parent)), "#c has no such anchor")
    print("docs_build: self-test passed")


def expect(problems: list[str], message: str) -> None:
    """Assert that ``message`` is among the problems, or that there are none if it is empty."""
    if bool(problems) != bool(message) or not any(message in p for p in problems or [""]):
        raise AssertionError(f"expected {message!r}, got {problems}")


def main() -> None:
    """Parse the command line."""
    if sys.argv[1:] == ["self-test"]:
        self_test()
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if problems := build(WEBSITE, SOURCE, arguments.out, published_packages()):
        print(*problems, sep="\n", file=sys.stderr)
        sys.exit(f"error: {len(problems)} things are wrong with the site")
    print(f"the site is in {arguments.out}")


if __name__ == "__main__":
    main()
