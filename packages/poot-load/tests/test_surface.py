"""The package's edge: names that resolve to paths, and an import that stays cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from poot_core import CheckpointError
from poot_load import resolve_model


def test_paths_resolve_to_themselves(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"x")
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"


@pytest.mark.parametrize("name", ["nowhere", "a/b/c", "/no/such/file", "x/y.gguf", "own er/x", ""])
def test_what_is_neither_path_nor_hub_id(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "":
        assert resolve_model(name) == Path()
        return
    with pytest.raises(CheckpointError, match="no model at"):
        resolve_model(name)


def test_the_hub_is_asked_for_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[object] = []
    files = ["README.md", "a.gguf"]

    class Api:
        def list_repo_files(self, repo: str) -> list[str]:
            asked.append(repo)
            return files

    def one_file(repo: str, file: str) -> str:
        asked.append((repo, file))
        return f"/hub/{file}"

    def snapshot(repo: str, allow_patterns: list[str]) -> str:
        asked.append((repo, "config.json" in allow_patterns))
        return "/hub/snapshot"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", one_file)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve_model("own/er:q/b.gguf") == Path("/hub/q/b.gguf")
    assert resolve_model("own/er") == Path("/hub/a.gguf")
    files.append("b.gguf")
    with pytest.raises(CheckpointError, match=r"name one as own/er:a\.gguf, own/er:b\.gguf"):
        resolve_model("own/er")
    files.append("model.safetensors")
    assert resolve_model("own/er") == Path("/hub/snapshot")
    assert ("own/er", True) in asked

    def broken(repo: str, file: str) -> str:
        raise OSError("no network\nlong story")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", broken)
    with pytest.raises(CheckpointError, match=r"does not give own/er:x\.gguf: no network$"):
        resolve_model("own/er:x.gguf")


def test_import_is_cheap() -> None:
    heavy = "{'tokenizers', 'huggingface_hub', 'msgspec', 'httpx', 'requests'}"
    code = f"import sys, poot_load; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    for block in text.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "README.md", "exec"), {})
    assert "llama 3\n" in capsys.readouterr().out
