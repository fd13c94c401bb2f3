"""From what a person types to a path: a local file or directory, or a model on the hub."""

from __future__ import annotations

import re
from pathlib import Path

from poot_core import CheckpointError

__all__ = ["resolve_model"]

_HUB_ID = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[\w./-]+))?$", re.ASCII)
_WANTED = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
]


def resolve_model(name: str | Path) -> Path:
    """Return the local path of a model, downloading it from the Hugging Face hub if need be.

    Args:
        name: A path of a directory, a .gguf or a .safetensors file; or ``owner/name`` for a
            repository of safetensors; or ``owner/name:file.gguf`` for one file of a repository.

    Raises:
        CheckpointError: If it is no path and no hub id, or the hub does not give it.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    match = _HUB_ID.match(str(name))
    if match is None or (path.suffix in {".gguf", ".safetensors"} and match["file"] is None):
        raise CheckpointError(
            f"no model at {str(name)!r}; give the path of a directory, a .gguf or a .safetensors "
            "file, or a hub id such as owner/name or owner/name:file.gguf",
            path=str(name),
        )
    return _download(match["repo"], match["file"])


def _download(repo: str, file: str | None) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    try:
        if file is not None:
            return Path(hf_hub_download(repo, file))
        names = HfApi().list_repo_files(repo)
        if not any(name.endswith(".safetensors") for name in names):
            found = [name for name in names if name.endswith(".gguf")]
            if len(found) == 1:
                return Path(hf_hub_download(repo, found[0]))
            choices = "; name one as " + ", ".join(f"{repo}:{n}" for n in found) if found else ""
            raise CheckpointError(f"{repo} holds no safetensors{choices}", path=repo)
        return Path(snapshot_download(repo, allow_patterns=_WANTED))
    except CheckpointError:
        raise
    except Exception as error:  # the hub's own tree, requests, and the file system
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"the hub does not give {repo}{':' + file if file else ''}: {detail}", path=repo
        ) from error
