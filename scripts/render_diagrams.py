"""Render website/diagrams/*.svg to byte-reproducible PNGs and index.json, or check them.

    python scripts/render_diagrams.py [--only a,b] [--out DIR] [--publish-dir DIR] [--check]
    python scripts/render_diagrams.py self-test

One pinned renderer (resvg, through ``resvg-py``) and one bundled font make the bytes; system fonts are
not looked at. Only the two named directories are written to, and ``--check`` writes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import resvg_py

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "website" / "diagrams"
FONTS = SOURCES / "fonts"
OUTPUT = ROOT / "website" / "static" / "img" / "architecture"
README = ROOT / "README.md"
ZOOM = 2.0  # sources are 1100 wide; readers with dense screens see 2200
FAMILY = "Inter"
SVG = "{http://www.w3.org/2000/svg}"
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[^)\s]*/(?P<name>[\w-]+)\.png)\)")


class DiagramError(Exception):
    """A source that cannot be rendered as it should, or an output that is not current."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One picture in index.json.

    Attributes:
        name: File name without its extension.
        source: Path of the SVG, relative to the repository.
        source_sha256: Of the SVG's bytes.
        png_sha256: Of the PNG's bytes.
        bytes: Size of the PNG.
        width: In pixels.
        height: In pixels.
        alt: The SVG's <desc>, white space joined.
    """

    name: str
    source: str
    source_sha256: str
    png_sha256: str
    bytes: int
    width: int
    height: int
    alt: str


def sha256(data: bytes) -> str:
    """Return the hexadecimal digest."""
    return hashlib.sha256(data).hexdigest()


def alt_text(name: str, text: str) -> str:
    """Return an SVG's description; refuse one without, with other fonts, or with foreign content."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DiagramError(f"{name}.svg is not well-formed: {error}") from error
    alt = " ".join((root.findtext(f"{SVG}desc") or "").split())
    if not alt:
        raise DiagramError(f"{name}.svg has no <desc>; it becomes the picture's alt text")
    if any(c in alt for c in "[]()|"):
        raise DiagramError(f"{name}.svg: its <desc> holds one of []()|, which Markdown takes apart")
    for family in re.findall(r"font-family[:=]\s*[\"']?([^;\"'}]+)", text):
        if family.strip() != FAMILY:
            raise DiagramError(f"{name}.svg asks for the font {family.strip()!r}, not {FAMILY!r}")
    if "href=" in text or "<image" in text or "<foreignObject" in text:
        raise DiagramError(f"{name}.svg refers to something outside of itself")
    return alt


def missing_glyphs(text: str, covered: frozenset[int]) -> set[str]:
    """Return the characters of a source that the font does not hold."""
    shown = "".join(ElementTree.fromstring(text).itertext())
    return {c for c in shown if not c.isspace() and ord(c) not in covered}


def covered_codepoints(font: bytes) -> frozenset[int]:
    """Return what a TrueType font's format-4 character map covers."""
    (num_tables,) = struct.unpack_from(">H", font, 4)
    tables = {
        font[at : at + 4]: struct.unpack_from(">I", font, at + 8)[0]
        for at in range(12, 12 + 16 * num_tables, 16)
    }
    cmap = tables[b"cmap"]
    (count,) = struct.unpack_from(">H", font, cmap + 2)
    found: set[int] = set()
    for record in range(count):
        (offset,) = struct.unpack_from(">I", font, cmap + 8 + 8 * record)
        at = cmap + offset
        if struct.unpack_from(">H", font, at)[0] != 4:
            continue
        segments = struct.unpack_from(">H", font, at + 6)[0] // 2
        ends = struct.unpack_from(f">{segments}H", font, at + 14)
        starts = struct.unpack_from(f">{segments}H", font, at + 16 + 2 * segments)
        for start, end in zip(starts, ends, strict=True):
            found.update(range(start, end + 1))
    return frozenset(found - {0xFFFF})


def render(text: str) -> bytes:
    """Return the PNG of an SVG's text."""
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=text,
            zoom=ZOOM,
            skip_system_fonts=True,
            font_files=[str(path) for path in sorted(FONTS.glob("*.ttf"))],
            font_family=FAMILY,
            sans_serif_family=FAMILY,
        )
    )


def render_one(path: Path, covered: frozenset[int]) -> tuple[Entry, bytes]:
    """Return the index entry and the PNG of one source."""
    data = path.read_bytes()
    text = data.decode()
    alt = alt_text(path.stem, text)
    if missing := missing_glyphs(text, covered):
        raise DiagramError(f"{path.name} uses {sorted(missing)}, which the bundled font lacks")
    png = render(text)
    width, height = struct.unpack_from(">II", png, 16)
    return Entry(
        name=path.stem,
        source=f"website/diagrams/{path.name}",
        source_sha256=sha256(data),
        png_sha256=sha256(png),
        bytes=len(png),
        width=width,
        height=height,
        alt=alt,
    ), png


def index_text(entries: Sequence[Entry]) -> str:
    """Return index.json."""
    document = {
        "renderer": f"resvg {resvg_py.__resvg_version__}",
        "fonts": {p.name: sha256(p.read_bytes()) for p in sorted(FONTS.glob("*.ttf"))},
        "images": [asdict(entry) for entry in sorted(entries, key=lambda e: e.name)],
    }
    return json.dumps(document, indent=1) + "\n"


def read_index(folder: Path) -> list[Entry]:
    """Return the entries of a folder's index.json; none if there is no such file."""
    path = folder / "index.json"
    if not path.exists():
        return []
    return [Entry(**image) for image in json.loads(path.read_text())["images"]]


def chosen(sources: Path, only: str | None) -> list[Path]:
    """Return the sources to render."""
    every = {path.stem: path for path in sorted(sources.glob("*.svg"))}
    if not every:
        raise DiagramError(f"there is no SVG in {sources}")
    if only is None:
        return list(every.values())
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in every]:
        raise DiagramError(f"no source is named {unknown}; there are {sorted(every)}")
    return [every[name] for name in names]


def check(sources: Path, out: Path, readme: Path | None, only: str | None) -> list[str]:
    """Return what is not current: PNGs, index, left-over pictures, alt texts of the README."""
    covered = font_coverage()
    problems: list[str] = []
    fresh: list[Entry] = []
    for path in chosen(sources, only):
        entry, png = render_one(path, covered)
        fresh.append(entry)
        committed = out / f"{path.stem}.png"
        if not committed.exists():
            problems.append(f"{committed} is missing")
        elif committed.read_bytes() != png:
            problems.append(f"{committed} differs from what {entry.source} renders to")
    index = out / "index.json"
    if only is None:
        if not index.exists() or index.read_text() != index_text(fresh):
            problems.append(f"{index} does not describe the sources")
        names = {entry.name for entry in fresh}
        problems += [
            f"{left} has no source" for left in sorted(out.glob("*.png")) if left.stem not in names
        ]
    if readme is not None:
        problems += check_alt_texts(readme, fresh, out)
    return problems


def check_alt_texts(readme: Path, entries: Sequence[Entry], out: Path) -> list[str]:
    """Return pictures of a page whose alt text is not the one of the index."""
    alts = {entry.name: entry.alt for entry in entries}
    problems: list[str] = []
    for match in IMAGE.finditer(readme.read_text()):
        name = match["name"]
        if (readme.parent / match["path"]).resolve().parent != out.resolve():
            continue
        if name in alts and match["alt"] != alts[name]:
            problems.append(f"{readme.name}: the alt text of {name} is not its source's <desc>")
    return problems


def font_coverage() -> frozenset[int]:
    """Return the characters that every bundled font file covers."""
    fonts = [covered_codepoints(path.read_bytes()) for path in sorted(FONTS.glob("*.ttf"))]
    if not fonts:
        raise DiagramError(f"there is no font in {FONTS}")
    return frozenset.intersection(*fonts)


def write(sources: Path, out: Path, publish: Path | None, only: str | None) -> None:
    """Render into ``out`` and copy to ``publish``."""
    covered = font_coverage()
    out.mkdir(parents=True, exist_ok=True)
    fresh = {entry.name: entry for entry in read_index(out)}
    if only is None:
        fresh = {}
    for path in chosen(sources, only):
        entry, png = render_one(path, covered)
        (out / f"{path.stem}.png").write_bytes(png)
        fresh[entry.name] = entry
        print(f"{entry.name}: {entry.width} x {entry.height}, {entry.bytes} bytes")
    (out / "index.json").write_text(index_text(list(fresh.values())))
    if publish is not None:
        publish.mkdir(parents=True, exist_ok=True)
        for name in [f"{name}.png" for name in sorted(fresh)] + ["index.json"]:
            if (out / name).exists():
                shutil.copyfile(out / name, publish / name)


def self_test() -> None:
    """Show that --check accepts what was rendered and fails on each known-bad input."""
    script = [sys.executable, __file__]
    picture = '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="40">{}</svg>'
    good = picture.format('<desc>A word.</desc><text x="4" y="20" font-family="Inter">Word</text>')
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        sources, out, published = base / "sources", base / "out", base / "published"
        sources.mkdir()
        source = sources / "word.svg"
        source.write_text(good)
        (readme := base / "README.md").write_text("![A word.](out/word.png)\n")
        write(sources, out, published, None)
        first = (out / "word.png").read_bytes()
        expect(check(sources, out, readme, None), "")
        expect(check(sources, published, None, None), "")
        readme.write_text("![Another word.](out/word.png)\n")
        expect(check(sources, out, readme, None), "the alt text of word")
        source.write_text(good.replace("Word", "Ward"))
        expect(check(sources, out, None, None), "differs from what")
        source.write_text(good)
        write(sources, out, None, "word")
        if (out / "word.png").read_bytes() != first:
            raise AssertionError("two renderings of one source differ")
        (out / "stray.png").write_bytes(first)
        expect(check(sources, out, None, None), "has no source")
        (out / "stray.png").unlink()
        (out / "word.png").unlink()
        expect(check(sources, out, None, None), "is missing")
        bad = {
            "has no <desc>": good.replace("<desc>A word.</desc>", ""),
            "the bundled font lacks": good.replace("Word", "\u4e16"),
            "asks for the font": good.replace('"Inter"', '"Comic Sans MS"'),
            "outside of itself": good.replace("<text", '<image href="a.png"/><text'),
            "not well-formed": good.replace("</text>", ""),
        }
        for message, text in bad.items():
            source.write_text(text)
            try:
                check(sources, out, None, None)
            except DiagramError as error:
                if message not in str(error):
                    raise AssertionError(f"{error} does not say {message!r}") from error
            else:
                raise AssertionError(f"a source that {message} was accepted")
    done = subprocess.run(
        [*script, "--check", "--out", "/nonexistent"], capture_output=True, text=True, check=False
    )
    if done.returncode != 1 or "is missing" not in done.stderr:
        raise AssertionError(f"--check over an empty folder: {done.returncode}, {done.stderr!r}")
    print("render_diagrams: self-test passed")


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
    parser.add_argument("--only", help="names of sources, separated by commas")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    parser.add_argument("--publish-dir", type=Path, help="also copy PNGs and index.json there")
    parser.add_argument("--check", action="store_true", help="fail if an output is not current")
    arguments = parser.parse_args()
    if arguments.check and arguments.publish_dir:
        parser.error("--check writes nothing, so --publish-dir has no meaning with it")
    try:
        if arguments.check:
            problems = check(SOURCES, arguments.out, README, arguments.only)
            if problems:
                print(*problems, "run `just diagrams`", sep="\n", file=sys.stderr)
                sys.exit(1)
            print("the diagrams are current")
        else:
            write(SOURCES, arguments.out, arguments.publish_dir, arguments.only)
    except DiagramError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
