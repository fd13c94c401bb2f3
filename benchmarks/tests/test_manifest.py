"""The manifest's rules, on small ones and on the one of the repository."""

from pathlib import Path

import pytest

from benchmarks.harness.manifest import ManifestError, read_manifest
from benchmarks.harness.runners import RUNNERS

GOOD = """
[models.small]
file = "small.gguf"
[engines.one]
runner = "poot"
[engines.two]
runner = "poot"
environment = { POOT_CPU_FEATURES = "avx2" }
[scenarios.decode]
kind = "bench"
decode = 8
cores = [0, 1]
[[cells]]
models = ["small"]
engines = ["one", "two"]
scenarios = ["decode"]
"""


def read(tmp_path: Path, text: str):
    path = tmp_path / "manifest.toml"
    path.write_text(text)
    return read_manifest(path, ("poot",))


def test_cells_are_every_combination(tmp_path: Path) -> None:
    manifest = read(tmp_path, GOOD)
    assert [cell.name for cell in manifest.cells] == ["small/one/decode", "small/two/decode"]
    assert manifest.cells[0].scenario.cores == (0, 1)
    assert manifest.cells[1].engine.environment == {"POOT_CPU_FEATURES": "avx2"}


def test_selection(tmp_path: Path) -> None:
    manifest = read(tmp_path, GOOD)
    assert len(manifest.select([])) == 2
    assert [c.engine.name for c in manifest.select(["sma*", "two"])] == ["two"]
    assert [c.name for c in manifest.select(["small/one/decode"])] == ["small/one/decode"]
    with pytest.raises(ManifestError, match="no cell has 'three' in its name"):
        manifest.select(["three"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('file = "small.gguf"', 'path = "x"', r"unknown keys \['path'\]"),
        ('file = "small.gguf"', "", "model 'small'.*file"),
        ('runner = "poot"', 'runner = "rust"', "wants the runner 'rust'"),
        ('kind = "bench"', 'kind = "fast"', "is of kind 'fast'"),
        ("decode = 8", "decode = -1", "decode is -1, no count"),
        ("decode = 8", "", "measures neither"),
        ('engines = ["one", "two"]', 'engines = ["four"]', "names the engine 'four'"),
        ('scenarios = ["decode"]', "", "lists 'models', 'engines' and 'scenarios'"),
        ("[[cells]]", "[other]\n[[cells]]", "unknown tables"),
    ],
)
def test_what_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read(tmp_path, GOOD.replace(old, new, 1))


def test_the_manifest_of_the_repository_reads() -> None:
    path = Path(__file__).resolve().parent.parent / "manifest.toml"
    manifest = read_manifest(path, tuple(RUNNERS))
    assert {cell.engine.name for cell in manifest.cells} >= {"poot", "llama_cpp", "torch"}
    assert {cell.scenario.kind for cell in manifest.cells} == {"bench", "start", "serve"}
